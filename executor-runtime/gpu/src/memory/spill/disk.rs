//! Spill files: the bytes of a batch, one buffer after the other.
//!
//! Only the process that wrote a file reads it, so lengths and checksums (xxHash64) stay in its
//! memory, where no disk can change them. A file is removed with the batch that is in it; what a
//! process that died left behind goes with its spill directory, which the agent removes.

use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use twox_hash::XxHash64;

use crate::memory::error::MemoryError;

/// A directory for spill files, and what they may take.
pub struct SpillDirectory {
    path: PathBuf,
    limit: u64,
    used: AtomicU64,
    next: AtomicU64,
}

impl SpillDirectory {
    /// Spills below `path`, which exists, up to `limit` bytes.
    pub fn new(path: impl Into<PathBuf>, limit: u64) -> Arc<Self> {
        let (used, next) = Default::default();
        Arc::new(Self { path: path.into(), limit, used, next })
    }

    /// What its files take, in bytes.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Writes a batch. After an error nothing of it is left.
    pub fn write(self: &Arc<Self>, buffers: &[Vec<u8>]) -> Result<SpillFile, MemoryError> {
        let bytes = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let fits = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.limit);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map_err(|used| MemoryError::SpillLimit { bytes, used, limit: self.limit })?;
        let name = format!("batch-{}.spill", self.next.fetch_add(1, Ordering::Relaxed));
        let checksums = buffers.iter().map(|buffer| checksum(buffer)).collect();
        let lengths = buffers.iter().map(Vec::len).collect();
        // From here on dropping it gives the bytes back and removes the file.
        let file = SpillFile {
            path: self.path.join(name),
            bytes,
            lengths,
            checksums,
            directory: Arc::clone(self),
        };
        let write = || -> io::Result<()> {
            let mut out =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file.path)?;
            buffers.iter().try_for_each(|buffer| out.write_all(buffer))
        };
        write().map_err(|source| file.error("write", source))?;
        Ok(file)
    }
}

/// A batch on disk. Dropping it removes the file.
pub struct SpillFile {
    path: PathBuf,
    bytes: u64,
    lengths: Vec<usize>,
    checksums: Vec<u64>,
    directory: Arc<SpillDirectory>,
}

impl SpillFile {
    /// Its length, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it, buffer by buffer; each is as it was written, or this is an error.
    pub fn read(
        &self,
        mut take: impl FnMut(&[u8]) -> Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        let mut file = File::open(&self.path).map_err(|source| self.error("open", source))?;
        let length = file.metadata().map_err(|source| self.error("look at", source))?.len();
        if length != self.bytes {
            return Err(self.damaged(format!("it has {length} bytes instead of {}", self.bytes)));
        }
        let mut bytes = Vec::new();
        for (number, (length, expected)) in self.lengths.iter().zip(&self.checksums).enumerate() {
            bytes.resize(*length, 0);
            file.read_exact(&mut bytes).map_err(|source| self.error("read", source))?;
            if checksum(&bytes) != *expected {
                return Err(self.damaged(format!(
                    "buffer {number} of {length} bytes does not have the checksum that it had"
                )));
            }
            take(&bytes)?;
        }
        Ok(())
    }

    fn error(&self, what: &'static str, source: io::Error) -> MemoryError {
        MemoryError::SpillFile { what, path: self.path.clone(), source }
    }

    fn damaged(&self, reason: String) -> MemoryError {
        MemoryError::SpillDamaged { path: self.path.clone(), reason }
    }
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        // It may not be there, if it could not be written.
        let _ = std::fs::remove_file(&self.path);
        self.directory.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = XxHash64::with_seed(0);
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers() -> Vec<Vec<u8>> {
        vec![vec![1; 1000], Vec::new(), (0..=255).collect()]
    }

    fn read(file: &SpillFile) -> Result<Vec<Vec<u8>>, MemoryError> {
        let mut all = Vec::new();
        file.read(|bytes| {
            all.push(bytes.to_vec());
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn a_batch_comes_back_and_its_file_goes() {
        let at = tempfile::tempdir().unwrap();
        let directory = SpillDirectory::new(at.path(), 10_000);
        let file = directory.write(&buffers()).unwrap();
        assert_eq!((file.bytes(), directory.used()), (1256, 1256));
        assert_eq!(read(&file).unwrap(), buffers());
        assert_eq!(read(&file).unwrap(), buffers());
        drop(file);
        assert_eq!(directory.used(), 0);
        assert_eq!(std::fs::read_dir(at.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_torn_or_flipped_file_is_noticed_and_named() {
        let at = tempfile::tempdir().unwrap();
        let directory = SpillDirectory::new(at.path(), 10_000);
        for position in [0, 999, 1000, 1255] {
            let file = directory.write(&buffers()).unwrap();
            let mut bytes = std::fs::read(file.path()).unwrap();
            bytes[position] ^= 1;
            std::fs::write(file.path(), bytes).unwrap();
            let error = read(&file).unwrap_err();
            assert!(matches!(error, MemoryError::SpillDamaged { .. }), "{error}");
            assert!(error.to_string().contains(file.path().to_str().unwrap()), "{error}");
        }
        for length in [0, 1255, 1257] {
            let file = directory.write(&buffers()).unwrap();
            OpenOptions::new().write(true).open(file.path()).unwrap().set_len(length).unwrap();
            let error = read(&file).unwrap_err().to_string();
            assert!(error.contains(&format!("has {length} bytes instead of 1256")), "{error}");
        }
        let file = directory.write(&buffers()).unwrap();
        std::fs::remove_file(file.path()).unwrap();
        assert!(matches!(read(&file), Err(MemoryError::SpillFile { what: "open", .. })));
    }

    #[test]
    fn the_limit_is_kept_and_failed_writes_leave_nothing() {
        let at = tempfile::tempdir().unwrap();
        let directory = SpillDirectory::new(at.path(), 2000);
        let first = directory.write(&buffers()).unwrap();
        let error = directory.write(&buffers()).err().unwrap().to_string();
        assert!(error.contains("1256 bytes can't be spilled: 1256 of"), "{error}");
        drop(first);
        let _second = directory.write(&buffers()).unwrap();

        let gone = SpillDirectory::new(at.path().join("gone"), 2000);
        let error = gone.write(&buffers()).err().unwrap();
        assert!(matches!(error, MemoryError::SpillFile { what: "write", .. }), "{error}");
        assert_eq!(gone.used(), 0);
    }
}
