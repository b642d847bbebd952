//! Taking changes back.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::lock::Lock;
use super::record::{self, Content, Made, recorded};
use super::replace::{Step, sweep, take};
use crate::configuration::{Document, Malformed};
use crate::danger::dangers;
use crate::directory::{Directory, Documents, File};
use crate::effective::items;
use crate::plan::{Change, How};
use crate::{Error, Roles};

/// What was taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// Files that are as they were, byte for byte.
    pub restored: Vec<PathBuf>,
    /// Files that were made, and are no more.
    pub removed: Vec<PathBuf>,
    /// Files that were edited since, or of which other roles need entries: these lost the
    /// entries that were written, and nothing else.
    pub edited: Vec<PathBuf>,
    /// The changes that were taken back.
    pub changes: Vec<Change>,
    /// Entries that have been edited since, and stay so.
    pub kept: Vec<String>,
}

impl Undone {
    /// Whether there was nothing to take back.
    pub fn is_empty(&self) -> bool {
        self.restored.is_empty() && self.removed.is_empty() && self.edited.is_empty()
    }
}

/// The next state of a file, and what remains to be said of it.
struct Back {
    content: Content,
    now: Option<Vec<u8>>,
    next: Option<Vec<u8>>,
    document: Option<Document>,
    /// Whether nothing of it remains recorded.
    whole: bool,
}

/// Takes back what was written for these roles and for no other, on the machine below a root (`/`).
///
/// # Errors
///
/// [`Error::Undo`] where a file that was edited since can't be understood, and
/// [`Error::Dangerous`] where a daemon would not start any more. Nothing is changed then.
pub fn undo(conf_dir: &Path, roles: &Roles, root: &Path) -> Result<Undone, Error> {
    let conf_dir = &std::fs::canonicalize(conf_dir)
        .map_err(|source| Error::Read { path: conf_dir.to_owned(), source })?;
    let _lock = Lock::take(conf_dir)?;
    let former = recorded(conf_dir)?;
    let contents = record::contents(conf_dir, former.as_ref())?;
    let mut undone = Undone::default();
    if contents.is_empty() {
        return Ok(undone);
    }
    let directory = Directory::read(conf_dir).map_err(|error| Error::Undo(Box::new(error)))?;

    let mut before = directory.documents().clone();
    let mut backs = Vec::new();
    let mut left = Vec::new();
    // The other way round than it was written.
    for content in contents.into_iter().rev() {
        put(
            &mut before,
            content.file,
            content.before.as_deref().map(Document::parse).transpose().ok().flatten(),
        );
        if content.changes.iter().any(|made| made.change.roles.is_subset(roles)) {
            backs.push(back(&directory, content, roles, &mut undone)?);
        } else {
            left.push(content);
        }
    }
    check(&directory, &before, &backs, root)?;

    let mut steps = Vec::new();
    for back in &backs {
        let path = directory.file(back.content.file);
        sweep(&path);
        match (&back.now, &back.next) {
            (Some(now), Some(next)) if now != next => {
                steps.push(Step::write(&path, Some(now), next, &path)?);
            }
            (Some(now), None) => steps.push(Step::remove(&path, now)?),
            _ => {}
        }
    }
    take(steps)?;
    for back in backs {
        let file = back.content.file;
        let path = directory.file(file);
        match (&back.now, &back.next) {
            (Some(_), None) => undone.removed.push(path),
            (Some(_), Some(next)) if back.content.before.as_ref() == Some(next) => {
                undone.restored.push(path);
            }
            (Some(now), Some(next)) if now != next => undone.edited.push(path),
            _ => {}
        }
        if !back.whole {
            left.push(Content { after: back.next.unwrap_or_default(), ..back.content });
        }
    }
    left.sort_by_key(|content| content.file);
    record::store(conf_dir, former.as_ref(), &left)?;
    Ok(undone)
}

/// Finds out how a file is to be.
fn back(
    directory: &Directory,
    mut content: Content,
    roles: &Roles,
    undone: &mut Undone,
) -> Result<Back, Error> {
    let file = content.file;
    let now = directory.bytes(file).map(<[u8]>::to_vec);
    let (chosen, others): (Vec<_>, Vec<_>) =
        content.changes.drain(..).partition(|made| made.change.roles.is_subset(roles));
    let whole = others.is_empty();
    let as_written = now.as_ref() == Some(&content.after);
    if whole && (as_written || now == content.before) {
        if as_written {
            undone.changes.extend(chosen.into_iter().map(|made| made.change));
        }
        let next = content.before.clone();
        let document = next.as_deref().map(Document::parse).transpose().ok().flatten();
        return Ok(Back { content, now, next, document, whole });
    }
    let Some(document) = directory.documents().get(&file) else {
        // Whoever removed the file removed the entries.
        return Ok(Back { content, now: None, next: None, document: None, whole: true });
    };
    let failed = |malformed| Error::Malformed { path: directory.file(file), malformed };
    let (document, gone) = without(document, &chosen).map_err(failed)?;
    for made in chosen {
        let gone = gone.contains(&made);
        let change = made.change;
        if gone {
            let now = document.last(&change.key);
            undone.kept.extend(now.map(|now| {
                format!("{}:{}: {}", directory.file(file).display(), now.line, change.key)
            }));
        } else {
            undone.changes.push(change);
        }
    }
    if !as_written {
        let (without_others, _) = without(&document, &others).map_err(failed)?;
        content.before = Some(without_others.to_bytes());
    }
    content.changes = others;
    // A file that was made, and has nothing of anybody's any more.
    let made_by_us = content.before.as_deref().is_none_or(|b| b == Document::empty().to_bytes());
    let empty = whole && made_by_us && document == Document::empty();
    let next = (!empty).then(|| document.to_bytes());
    Ok(Back { content, now, next, document: (!empty).then_some(document), whole })
}

/// A document without changes that were made to it, and those of them that are no more as they
/// were made.
pub(super) fn without(
    document: &Document,
    changes: &[Made],
) -> Result<(Document, Vec<Made>), Malformed> {
    let mut document = document.clone();
    let mut gone = Vec::new();
    for made in changes.iter().rev() {
        let change = &made.change;
        let key = change.key.as_str();
        let value = document.last(key).and_then(|last| last.value.clone());
        let as_written = value.as_ref() == Some(&change.value);
        let has = |item: &String| value.as_deref().is_some_and(|list| items(list).contains(item));
        let taken = match &change.how {
            How::Added { .. } if as_written => document.remove(key)?,
            How::Set { from } | How::Joined { from, .. } if as_written => {
                document.restore(key, from)?
            }
            How::Added { item: Some(item) } | How::Joined { item, .. } if has(item) => {
                document.withdraw(key, item)?
            }
            _ => false,
        };
        if !taken {
            gone.push(made.clone());
        }
    }
    Ok((document, gone))
}

/// Looks for dangers after each step that were neither there now nor before everything.
fn check(
    directory: &Directory,
    before: &Documents,
    backs: &[Back],
    root: &Path,
) -> Result<(), Error> {
    let mut documents = directory.documents().clone();
    let mut known: BTreeSet<_> = dangers(directory, &documents, root);
    known.extend(dangers(directory, before, root));
    for back in backs {
        put(&mut documents, back.content.file, back.document.clone());
        let after = dangers(directory, &documents, root);
        let new: Vec<_> = after.difference(&known).cloned().collect();
        if !new.is_empty() {
            return Err(Error::Dangerous { path: directory.path().to_owned(), dangers: new });
        }
    }
    Ok(())
}

fn put(documents: &mut Documents, file: File, document: Option<Document>) {
    match document {
        Some(document) => documents.insert(file, document),
        None => documents.remove(&file),
    };
}
