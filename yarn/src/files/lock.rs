//! One at a time may change a directory.

use std::fs::File;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::Error;

const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// Keeps others from changing a directory, until it is dropped or the process ends.
pub(super) struct Lock {
    _directory: File,
}

impl Lock {
    /// Takes it, waiting a few seconds for others.
    pub(super) fn take(path: &Path) -> Result<Self, Error> {
        let directory =
            File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let mut waited = Duration::ZERO;
        loop {
            match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if waited < PATIENCE => {
                    sleep(PAUSE);
                    waited += PAUSE;
                }
                Err(Errno::WOULDBLOCK) => return Err(Error::Locked { path: path.to_owned() }),
                // A file system without locks has none to respect.
                Ok(()) | Err(_) => return Ok(Self { _directory: directory }),
            }
        }
    }
}
