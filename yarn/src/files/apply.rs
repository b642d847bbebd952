//! Making a plan's changes.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::lock::Lock;
use super::record::{self, Content, Made, recorded};
use super::replace::{Step, sweep, take};
use super::undo::without;
use crate::Error;
use crate::configuration::Document;
use crate::daemons::Running;
use crate::directory::{Directory, File};
use crate::plan::{Change, Plan};

/// Makes the changes of a plan, all or none, and gives the files that were written. `running` are
/// the daemons that run with the directory.
///
/// # Errors
///
/// Where a file can't be written, or was changed since it was read. Nothing is changed then.
pub fn apply(
    directory: &Directory,
    plan: &Plan,
    running: &[Running],
) -> Result<Vec<PathBuf>, Error> {
    if plan.is_empty() {
        return Ok(Vec::new());
    }
    let conf_dir = directory.path();
    let _lock = Lock::take(conf_dir)?;
    for file in plan.after.keys() {
        sweep(&directory.file(*file));
    }
    // A new file is readable to whom the others are.
    let like = [File::YarnSite, File::CoreSite, File::CapacityScheduler]
        .into_iter()
        .find(|file| directory.bytes(*file).is_some())
        .map_or_else(|| conf_dir.to_owned(), |file| directory.file(file));
    let mut steps = Vec::new();
    for (file, document) in &plan.after {
        let (path, before) = (directory.file(*file), directory.bytes(*file));
        steps.push(Step::write(&path, before, &document.to_bytes(), &like)?);
    }
    let former = recorded(conf_dir)?;
    // Kept here: the copies go as soon as there is a new record.
    let former_contents = record::contents(conf_dir, former.as_ref())?;
    let mut contents = former_contents.clone();
    for (file, document) in &plan.after {
        let changes = plan.changes.iter().filter(|change| change.file == *file);
        let before = directory.bytes(*file).map(<[u8]>::to_vec);
        let at = contents.iter().position(|content| content.file == *file);
        let known = at.map(|at| contents.remove(at));
        let former = known.as_ref().map_or(&[][..], |known| &known.changes);
        let changes = made(changes, former, &directory.file(*file), running);
        contents.push(content(directory, *file, before, document, changes, known)?);
    }
    contents.sort_by_key(|content| content.file);
    record::store(conf_dir, former.as_ref(), &contents)?;
    if let Err(error) = take(steps) {
        // Every file is as it was, so the former record holds.
        record::store(conf_dir, former.as_ref(), &former_contents)?;
        return Err(error);
    }
    Ok(plan.after.keys().map(|file| directory.file(*file)).collect())
}

/// Changes that are made now. One that was made before, and is made again since somebody took it
/// out, is as old as it was, unless a daemon started in between.
fn made<'a>(
    changes: impl Iterator<Item = &'a Change>,
    former: &[Made],
    file: &Path,
    running: &[Running],
) -> Vec<Made> {
    let now = record::now();
    let modified = std::fs::metadata(file).and_then(|about| about.modified()).ok();
    let gap = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map(|t| t.as_secs());
    let started_in_gap = running.iter().any(|each| gap.is_none_or(|gap| each.started >= gap));
    let made = |change: &Change| {
        let same = |old: &&Made| old.change.key == change.key && old.change.value == change.value;
        let since = former.iter().find(same).filter(|_| !started_in_gap).map(|old| old.since);
        Made { change: change.clone(), since: since.unwrap_or(now) }
    };
    changes.map(made).collect()
}

/// What is recorded of a file that gets further changes.
fn content(
    directory: &Directory,
    file: File,
    before: Option<Vec<u8>>,
    document: &Document,
    changes: Vec<Made>,
    known: Option<Content>,
) -> Result<Content, Error> {
    let (before, mut all) = match known {
        // As it was written: what it was before that is what it was before all.
        Some(known) if Some(&known.after) == before.as_ref() => (known.before, known.changes),
        // Edited since: what it would be without what was written.
        Some(known) => match directory.documents().get(&file) {
            Some(edited) => {
                let (document, left) = without(edited, &known.changes).map_err(|malformed| {
                    Error::Malformed { path: directory.file(file), malformed }
                })?;
                (Some(document.to_bytes()), left)
            }
            None => (None, Vec::new()),
        },
        None => (before, Vec::new()),
    };
    // What is changed again was not as it was written: the older change is no more.
    all.retain(|old| changes.iter().all(|new| new.change.key != old.change.key));
    all.extend(changes);
    Ok(Content { file, changes: all, before, after: document.to_bytes() })
}
