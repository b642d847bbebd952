//! One agent per run directory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::FlockOperation;

use crate::error::Error;

/// The name of the lock in the run directory.
pub const LOCK_FILE: &str = "creeld.lock";

/// The right to be the agent of a run directory, until it is dropped or the process ends.
///
/// It is a `flock(2)` on a file that stays: the kernel gives it back however the agent ends, so
/// a file left behind blocks nobody, and what the file says (process and start, in seconds since
/// the epoch) is read only while the lock is held.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of a run directory, or says who holds it.
    pub fn take(run_dir: &Path) -> Result<Self, Error> {
        let path = run_dir.join(LOCK_FILE);
        let failed = |source| Error::RunDir { path: path.clone(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(&path)
            .map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                file.read_to_string(&mut text).map_err(failed)?;
                let holder = text.split_whitespace().next().map_or_else(
                    || "an agent that is just starting".to_owned(),
                    |pid| format!("process {pid}"),
                );
                return Err(Error::Held { path: run_dir.to_owned(), holder });
            }
            Err(error) => return Err(failed(error.into())),
        }
        let write = |file: &mut File| -> io::Result<()> {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{} {}", std::process::id(), crate::clock::now())
        };
        write(&mut file).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_says_who_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        let error = Lock::take(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(lock);
        Lock::take(dir.path()).unwrap();
    }

    #[test]
    fn a_stale_file_blocks_nobody() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(LOCK_FILE), "1 1700000000 and a longer line than ours\n")
            .unwrap();
        let _lock = Lock::take(dir.path()).unwrap();
        let text = std::fs::read_to_string(dir.path().join(LOCK_FILE)).unwrap();
        assert_eq!(text.split_whitespace().count(), 2, "{text}");
        assert!(text.starts_with(&std::process::id().to_string()));
    }
}
