//! The store: leases in a file that survives the agent, however it ends.
//!
//! An embedded database (redb): each change is a transaction, which is on the disk or not at all.
//! Leases are JSON by their number, so a field can be added without a new version of the schema.
//! A file that can't be read is moved aside, never deleted; what was in it is for
//! [`super::recovery`] to find out.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::{Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use super::lease::Lease;
use super::recovery::Doubt;
use crate::clock;

/// The store's file in the state directory.
pub(crate) const FILE: &str = "leases.redb";

/// The version of what the tables hold. One of a newer agent is not understood.
const SCHEMA: u64 = 1;

/// Lease by number, as JSON.
const LEASES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("leases");
/// Numbers by name: `schema`, and `next`, the number of the next lease.
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
/// JSON by name: `doubt`, what was lost and may be held.
const TEXTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("texts");

/// Memory for the pages of a file that has few.
const CACHE_BYTES: usize = 1 << 20;

/// What the store holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    /// The leases.
    pub(super) leases: Vec<Lease>,
    /// The number of the next lease.
    pub(super) next: u64,
    /// What was lost and may be held.
    pub(super) doubt: Option<Doubt>,
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// What it held is lost: it was moved aside, and a new one can be made.
    #[error("the lease store {} is {reason}; it is kept as {}", path.display(), kept.display())]
    Lost {
        /// The file.
        path: PathBuf,
        /// Damaged, or of a newer version.
        reason: String,
        /// Where it is now.
        kept: PathBuf,
    },
    /// It can't be opened or written; what it holds is still there.
    #[error("the lease store {} can't be used: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

/// An open store. It is this process's alone.
#[derive(Debug)]
pub(super) struct Store {
    database: Database,
    path: PathBuf,
}

impl Store {
    /// Opens the store of a state directory, or makes one.
    pub(super) fn open(dir: &Path) -> Result<(Self, Content), Error> {
        let path = dir.join(FILE);
        let unusable = |reason: String| Error::Unusable { path: path.clone(), reason };
        let is_new = match fs::metadata(&path) {
            // redb would take it for a new one; a store is never empty.
            Ok(file) if file.len() == 0 => return Err(lose(&path, "empty".to_owned())),
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(unusable(error.to_string())),
        };
        if is_new {
            make(&path).map_err(unusable)?;
        }
        // redb says of damage what it finds, and does not find all of it before it panics.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let database = builder().open(&path)?;
            let content = read(&database);
            Ok((database, content))
        }));
        match opened {
            Ok(Ok((database, Ok(content)))) => Ok((Self { database, path }, content)),
            Ok(Ok((database, Err(reason)))) => {
                drop(database);
                Err(lose(&path, reason))
            }
            Ok(Err(error)) if is_lasting(&error) => Err(lose(&path, format!("damaged ({error})"))),
            Ok(Err(error)) => Err(unusable(error.to_string())),
            Err(_) => Err(lose(&path, "damaged".to_owned())),
        }
    }

    /// Writes leases and takes others away, in one transaction, and notes the next number.
    pub(super) fn change(&self, change: &Change) -> Result<(), Error> {
        self.transact(|database| write(database, change, None))
    }

    /// Writes all anew, in one transaction.
    pub(super) fn rewrite(&self, content: &Content) -> Result<(), Error> {
        let change =
            Change { put: content.leases.clone(), next: Some(content.next), ..Change::default() };
        self.transact(|database| write(database, &change, Some(content)))
    }

    fn transact(&self, write: impl FnOnce(&Database) -> Result<(), String>) -> Result<(), Error> {
        let written = catch_unwind(AssertUnwindSafe(|| write(&self.database)));
        written
            .unwrap_or_else(|_| Err("redb panicked".to_owned()))
            .map_err(|reason| Error::Unusable { path: self.path.clone(), reason })
    }
}

/// What is to be changed at once.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    /// Leases to write.
    pub(super) put: Vec<Lease>,
    /// Numbers of leases to take away.
    pub(super) remove: Vec<u64>,
    /// The number of the next lease.
    pub(super) next: Option<u64>,
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder
}

/// Makes an empty store under another name first: one that is there is whole.
fn make(path: &Path) -> Result<(), String> {
    let new = path.with_extension("new");
    let make = || -> Result<(), Box<dyn std::error::Error>> {
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let database = builder().create(&new)?;
        write(&database, &Change { next: Some(1), ..Change::default() }, None)?;
        drop(database);
        Ok(fs::rename(&new, path)?)
    };
    make().map_err(|error| error.to_string())
}

/// Writes a change; with `anew`, only what is in there stays.
fn write(database: &Database, change: &Change, anew: Option<&Content>) -> Result<(), String> {
    let write = || -> Result<(), Box<dyn std::error::Error>> {
        let transaction = database.begin_write()?;
        {
            let mut leases = transaction.open_table(LEASES)?;
            if anew.is_some() {
                leases.retain(|_, _| false)?;
            }
            for lease in &change.put {
                leases.insert(lease.number, serde_json::to_vec(lease)?.as_slice())?;
            }
            for number in &change.remove {
                leases.remove(number)?;
            }
            let mut numbers = transaction.open_table(NUMBERS)?;
            numbers.insert("schema", SCHEMA)?;
            if let Some(next) = change.next {
                numbers.insert("next", next)?;
            }
            let mut texts = transaction.open_table(TEXTS)?;
            match anew.map(|content| &content.doubt) {
                None => {}
                Some(None) => drop(texts.remove("doubt")?),
                Some(Some(doubt)) => {
                    texts.insert("doubt", serde_json::to_vec(doubt)?.as_slice())?;
                }
            }
        }
        Ok(transaction.commit()?)
    };
    write().map_err(|error| error.to_string())
}

fn read(database: &Database) -> Result<Content, String> {
    let damaged = |error: redb::Error| format!("damaged ({error})");
    let read = || -> Result<Result<Content, String>, redb::Error> {
        let transaction = database.begin_read()?;
        let numbers = transaction.open_table(NUMBERS)?;
        let number = |name| Ok::<_, redb::Error>(numbers.get(name)?.map(|found| found.value()));
        match number("schema")? {
            Some(SCHEMA) => {}
            Some(newer) => {
                return Ok(Err(format!(
                    "of schema {newer}, and this agent understands {SCHEMA}: a newer agent wrote it"
                )));
            }
            None => return Ok(Err("without a schema".to_owned())),
        }
        let mut content = Content { next: number("next")?.unwrap_or(1), ..Content::default() };
        for entry in transaction.open_table(LEASES)?.iter()? {
            match serde_json::from_slice(entry?.1.value()) {
                Ok(lease) => content.leases.push(lease),
                Err(error) => return Ok(Err(format!("damaged (a lease is {error})"))),
            }
        }
        if let Some(doubt) = transaction.open_table(TEXTS)?.get("doubt")? {
            match serde_json::from_slice(doubt.value()) {
                Ok(doubt) => content.doubt = Some(doubt),
                Err(error) => return Ok(Err(format!("damaged (what is in doubt is {error})"))),
            }
        }
        Ok(Ok(content))
    };
    read().map_err(damaged)?
}

/// Whether an error is one of what the file holds, which stays so however often it is read.
fn is_lasting(error: &DatabaseError) -> bool {
    use redb::StorageError;
    match error {
        DatabaseError::Storage(StorageError::Io(error)) => matches!(
            error.kind(),
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput
        ),
        DatabaseError::Storage(_)
        | DatabaseError::RepairAborted
        | DatabaseError::UpgradeRequired(_) => true,
        _ => false,
    }
}

/// Moves a file aside, which is kept for people to look at.
fn lose(path: &Path, reason: String) -> Error {
    let kept = path.with_extension(format!("lost-{}", clock::now()));
    match fs::rename(path, &kept) {
        Ok(()) => Error::Lost { path: path.to_owned(), reason, kept },
        Err(error) => Error::Unusable {
            path: path.to_owned(),
            reason: format!("it is {reason}, and can't be moved aside: {error}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::holder::tests::this_process;
    use super::super::lease::{Held, Source};
    use super::*;

    fn lease(number: u64) -> Lease {
        Lease {
            number,
            holder: this_process(),
            devices: vec![Held { uuid: format!("GPU-{number}"), address: 0 }],
            since: 1_700_000_000,
            source: Source::Default,
        }
    }

    fn put(store: &Store, number: u64) {
        let change =
            Change { put: vec![lease(number)], next: Some(number + 1), ..Change::default() };
        store.change(&change).unwrap();
    }

    #[test]
    fn what_is_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (store, content) = Store::open(dir.path()).unwrap();
        assert_eq!(content, Content { next: 1, ..Content::default() });
        put(&store, 1);
        put(&store, 2);
        store.change(&Change { remove: vec![1], ..Change::default() }).unwrap();
        drop(store);
        let (store, content) = Store::open(dir.path()).unwrap();
        assert_eq!(content, Content { leases: vec![lease(2)], next: 3, doubt: None });
        let doubt = Doubt { reason: "why".to_owned(), holders: vec![this_process()] };
        let anew = Content { leases: vec![lease(4)], next: 5, doubt: Some(doubt) };
        store.rewrite(&anew).unwrap();
        put(&store, 5);
        store.change(&Change { remove: vec![4], ..Change::default() }).unwrap();
        drop(store);
        let (store, content) = Store::open(dir.path()).unwrap();
        assert_eq!(content, Content { leases: vec![lease(5)], next: 6, ..anew });
        let emptied = Content { next: 6, ..Content::default() };
        store.rewrite(&emptied).unwrap();
        drop(store);
        assert_eq!(Store::open(dir.path()).unwrap().1, emptied);
    }

    #[test]
    fn a_second_process_keeps_out() {
        let dir = tempfile::tempdir().unwrap();
        let _store = Store::open(dir.path()).unwrap();
        let error = Store::open(dir.path()).unwrap_err();
        assert!(matches!(error, Error::Unusable { .. }), "{error}");
        assert!(dir.path().join(FILE).exists());
    }

    #[test]
    fn one_of_a_newer_version_is_kept_aside() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path()).unwrap();
        let transaction = store.database.begin_write().unwrap();
        transaction.open_table(NUMBERS).unwrap().insert("schema", SCHEMA + 1).unwrap();
        transaction.commit().unwrap();
        drop(store);
        let Error::Lost { reason, kept, .. } = Store::open(dir.path()).unwrap_err() else {
            panic!("it is not lost")
        };
        assert!(reason.contains("newer agent"), "{reason}");
        assert!(kept.exists() && !dir.path().join(FILE).exists());
        Store::open(dir.path()).unwrap();
    }

    /// At every length, it is whole or known to be lost: never a store that has lost something.
    #[test]
    fn one_cut_short_is_never_taken_for_a_whole_one() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path()).unwrap();
        for number in 1..=20 {
            put(&store, number);
        }
        drop(store);
        let whole = fs::read(dir.path().join(FILE)).unwrap();
        let expected = Store::open(dir.path()).unwrap().1;
        assert_eq!(expected.leases.len(), 20);
        // Pages have 4096 bytes; within one, each cut is like the other, but for the header's.
        let stride = |from: usize| if from < 4096 { 61 } else { 1021 };
        let mut length = 0;
        while length < whole.len() {
            let cut = tempfile::tempdir().unwrap();
            fs::write(cut.path().join(FILE), &whole[..length]).unwrap();
            match Store::open(cut.path()) {
                Ok((_, content)) => assert_eq!(content, expected, "cut to {length} bytes"),
                Err(Error::Lost { kept, .. }) => {
                    assert_eq!(fs::metadata(kept).unwrap().len(), length as u64);
                }
                Err(error) => panic!("cut to {length} bytes: {error}"),
            }
            length += stride(length);
        }
    }

    /// A flipped bit is found, or is in nothing that counts.
    #[test]
    fn one_with_a_flipped_bit_is_never_taken_for_a_whole_one() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path()).unwrap();
        for number in 1..=20 {
            put(&store, number);
        }
        drop(store);
        let whole = fs::read(dir.path().join(FILE)).unwrap();
        let expected = Store::open(dir.path()).unwrap().1;
        for at in (0..whole.len()).step_by(whole.len() / 200) {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            let cut = tempfile::tempdir().unwrap();
            fs::write(cut.path().join(FILE), flipped).unwrap();
            match Store::open(cut.path()) {
                Ok((_, content)) => assert_eq!(content.leases, expected.leases, "byte {at}"),
                Err(Error::Lost { .. }) => {}
                Err(error) => panic!("byte {at}: {error}"),
            }
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_said_so() {
        let dir = tempfile::tempdir().unwrap();
        let error = Store::open(&dir.path().join("none")).unwrap_err();
        assert!(matches!(error, Error::Unusable { .. }), "{error}");
    }
}
