//! Where an executor spills: a directory of its own, which goes with it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use creel_settings::Settings;
use rustix::fs::{FlockOperation, OFlags};
use tracing::{info, warn};

use super::account::Account;
use super::device::Device;

/// Names that are tried: an earlier agent's process may have had the same number.
const MAX_TRIES: usize = 1000;

/// A directory that only an executor's user enters.
///
/// It is locked (`flock(2)`) while its agent lives: one that nobody has locked is left over, and
/// agents that share a place for spilling don't take each other's away.
#[derive(Debug)]
pub(super) struct SpillDir {
    path: PathBuf,
    lock: File,
}

impl SpillDir {
    /// Makes `<base>/<executor>.<agent's process>-<number>`, of that user and mode 0700.
    pub(super) fn create(base: &Path, executor: &str, account: &Account) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        make_base(base)?;
        for _ in 0..MAX_TRIES {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = base.join(format!("{executor}.{}-{number}", std::process::id()));
            let Some(lock) = make(&path)? else { continue };
            let dir = Self { path, lock };
            if account.uid != rustix::process::geteuid().as_raw() {
                std::os::unix::fs::fchown(&dir.lock, Some(account.uid), Some(account.gid))?;
            }
            return Ok(dir);
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SpillDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            warn!("could not remove the spill directory {}: {error}", self.path.display());
        }
    }
}

/// Where executors spill: `executor.spill_dir`, else in the node's or the user's cache directory.
pub(crate) fn base(settings: &Settings) -> PathBuf {
    if !settings.executor_spill_dir.as_os_str().is_empty() {
        return settings.executor_spill_dir.clone();
    }
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/cache/creel/spill");
    }
    let directory = |name: &str| std::env::var_os(name).map(PathBuf::from);
    directory("XDG_CACHE_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| directory("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("creel/spill")
}

/// Removes the directories of agents that are gone.
pub(super) fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.to_str().is_some_and(is_spill_dir) {
            continue;
        }
        let path = entry.path();
        let Ok(dir) = open(&path) else { continue };
        // The lock is held until it is gone.
        if rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok() {
            match fs::remove_dir_all(&path) {
                Ok(()) => info!("removed the spill directory {} of an earlier run", path.display()),
                Err(error) => warn!("could not remove {}: {error}", path.display()),
            }
        }
    }
}

/// Whether a name is of the form that [`SpillDir::create`] gives: `cpu-1000.4711-0`.
fn is_spill_dir(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.rsplit_once('.').is_some_and(|(executor, run)| {
        let run = run.split_once('-');
        Device::is_executor(executor) && run.is_some_and(|(pid, nth)| number(pid) && number(nth))
    })
}

/// Makes and locks a directory. `None` if the name is taken, or if another agent's sweep came
/// before the lock.
fn make(path: &Path) -> io::Result<Option<File>> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        made => made?,
    }
    let locked = || -> io::Result<Option<File>> {
        let dir = open(path)?;
        rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive)?;
        let same = fs::symlink_metadata(path)?.ino() == dir.metadata()?.ino();
        Ok(same.then_some(dir))
    };
    match locked() {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::WouldBlock) =>
        {
            Ok(None)
        }
        locked => locked,
    }
}

fn make_base(base: &Path) -> io::Result<()> {
    if base.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o755).create(base)?;
    // Whatever the umask: users pass through to their own, and see no other's name.
    fs::set_permissions(base, fs::Permissions::from_mode(0o711))
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Account {
        let uid = rustix::process::geteuid().as_raw();
        Account { uid, gid: 0, groups: Vec::new(), home: PathBuf::from("/") }
    }

    #[test]
    fn it_is_private_and_goes_with_its_content() {
        let base = tempfile::tempdir().unwrap();
        let dir = SpillDir::create(base.path(), "cpu-7", &own()).unwrap();
        let path = dir.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(path.join("spilled"), "x").unwrap();
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_name_that_is_taken_is_passed_over() {
        let base = tempfile::tempdir().unwrap();
        let name = |number: u64| format!("cpu-7.{}-{number}", std::process::id());
        // Other tests take numbers too.
        for number in 0..100 {
            fs::create_dir(base.path().join(name(number))).unwrap();
        }
        let dir = SpillDir::create(base.path(), "cpu-7", &own()).unwrap();
        assert!((0..100).all(|number| dir.path() != base.path().join(name(number))));
        assert!(make(dir.path()).unwrap().is_none());
    }

    #[test]
    fn a_sweep_takes_what_is_left_over_and_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let live = SpillDir::create(base.path(), "cpu-7", &own()).unwrap();
        for name in
            ["cpu-1000.12-3", "MIG-a-b-7.12-0", "cpu-1000.12-3.bak", "photos", "cpu-a.1-1", "cpu-1"]
        {
            fs::create_dir(base.path().join(name)).unwrap();
        }
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), base.path().join("cpu-1000.12-4")).unwrap();
        sweep(base.path());
        assert!(!base.path().join("cpu-1000.12-3").exists());
        assert!(!base.path().join("MIG-a-b-7.12-0").exists());
        assert!(live.path().exists() && elsewhere.path().exists());
        for name in ["cpu-1000.12-3.bak", "photos", "cpu-a.1-1", "cpu-1"] {
            assert!(base.path().join(name).exists(), "{name}");
        }
    }

    #[test]
    fn a_new_base_lets_users_pass() {
        let root = tempfile::tempdir().unwrap();
        let base = root.path().join("cache/spill");
        let _dir = SpillDir::create(&base, "cpu-7", &own()).unwrap();
        assert_eq!(fs::metadata(&base).unwrap().permissions().mode() & 0o777, 0o711);
    }
}
