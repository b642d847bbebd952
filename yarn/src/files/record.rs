//! What was changed in a directory, and how the files were before and after.

use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::replace::write_own;
use crate::Error;
use crate::directory::File;
use crate::plan::Change;

/// The directory of the record, in the one that it is about.
const DIRECTORY: &str = ".creel";
const NAME: &str = "record.json";
const SCHEMA: u32 = 1;

/// What was changed in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    schema: u32,
    /// Counts the records of the directory.
    generation: u64,
    /// The files that were changed.
    pub files: Vec<Written>,
}

/// A file that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The file.
    pub file: File,
    /// What was changed in it.
    pub changes: Vec<Made>,
    /// The copy of the file as it was without these changes; absent if there was none.
    before: Option<String>,
    /// The copy of the file as it was written.
    after: String,
}

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// What was changed.
    #[serde(flatten)]
    pub change: Change,
    /// Since when every daemon that started found it, in seconds since the Unix epoch.
    pub since: u64,
}

/// A file's content, without the recorded changes and with them.
#[derive(Clone)]
pub(super) struct Content {
    pub(super) file: File,
    pub(super) changes: Vec<Made>,
    pub(super) before: Option<Vec<u8>>,
    pub(super) after: Vec<u8>,
}

/// The record of a configuration directory, if creel changed anything in it.
///
/// # Errors
///
/// [`Error::Record`] where there is one that can't be read.
pub fn recorded(conf_dir: &Path) -> Result<Option<Record>, Error> {
    let path = conf_dir.join(DIRECTORY).join(NAME);
    let failed = |reason: String| Error::Record { path: path.clone(), reason };
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    };
    let record: Record =
        serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
    if record.schema != SCHEMA {
        return Err(failed(format!(
            "it is of schema {}, and {SCHEMA} is understood: another version of creel wrote it",
            record.schema
        )));
    }
    Ok(Some(record))
}

/// Reads the copies that a record names.
pub(super) fn contents(conf_dir: &Path, record: Option<&Record>) -> Result<Vec<Content>, Error> {
    let directory = conf_dir.join(DIRECTORY);
    let read = |name: &str| {
        let path = directory.join(name);
        std::fs::read(&path).map_err(|error| Error::Record { path, reason: error.to_string() })
    };
    let files = record.map_or(&[][..], |record| &record.files);
    let content = |written: &Written| {
        Ok(Content {
            file: written.file,
            changes: written.changes.clone(),
            before: written.before.as_deref().map(read).transpose()?,
            after: read(&written.after)?,
        })
    };
    files.iter().map(content).collect()
}

/// Writes the record anew; without contents there is none any more. The former one is valid until
/// this is done.
pub(super) fn store(
    conf_dir: &Path,
    former: Option<&Record>,
    contents: &[Content],
) -> Result<(), Error> {
    let directory = conf_dir.join(DIRECTORY);
    let failed = |source: io::Error| Error::Write { path: directory.clone(), source };
    if contents.is_empty() {
        return match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        };
    }
    let made = make(&directory).map_err(failed)?;
    let generation = former.map_or(0, |record| record.generation) + 1;
    let write = || -> io::Result<Record> {
        let mut files = Vec::new();
        for content in contents {
            let copy = |when: &str, bytes: &[u8]| {
                let name = format!("{}.{when}-{generation}", content.file.name());
                write_own(&directory.join(&name), bytes).map(|()| name)
            };
            files.push(Written {
                file: content.file,
                changes: content.changes.clone(),
                before: content.before.as_deref().map(|b| copy("before", b)).transpose()?,
                after: copy("after", &content.after)?,
            });
        }
        let record = Record { schema: SCHEMA, generation, files };
        let json = serde_json::to_vec_pretty(&record)?;
        write_own(&directory.join(NAME), &json)?;
        Ok(record)
    };
    match write() {
        Ok(record) => {
            sweep(&directory, Some(&record));
            Ok(())
        }
        Err(error) => {
            if made {
                // There was none before, and nothing in it is needed.
                let _ = std::fs::remove_dir_all(&directory);
            } else {
                sweep(&directory, former);
            }
            Err(failed(error))
        }
    }
}

/// Makes the directory, for its owner alone, and says whether it was not there.
fn make(directory: &Path) -> io::Result<bool> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the copies that a record doesn't name.
fn sweep(directory: &Path, record: Option<&Record>) {
    let files = record.map_or(&[][..], |record| &record.files);
    let named: Vec<PathBuf> = files
        .iter()
        .flat_map(|written| written.before.iter().chain([&written.after]))
        .map(String::as_str)
        .chain([NAME])
        .map(|name| directory.join(name))
        .collect();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if !named.contains(&entry.path()) {
            // What stays takes space, and the next change tries again.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Seconds since the Unix epoch.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
