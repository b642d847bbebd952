//! The node's GPUs in a file: what `nvidia-smi` for YARN answers from, without asking anybody.
//!
//! ```text
//!   creeld ──write──▶ /run/creel/snapshot.json ◀──read── nvidia-smi (of YARN's NodeManager, every
//!      └────write──▶ /var/lib/creel/snapshot.json ◀──┘   3 s; in containers)
//! ```
//!
//! The one in the run directory is written at every look at the GPUs. The copy in the state
//! directory is for the time after a reboot, and is written when it would say something else.
//! A file is replaced in one step, so a reader sees all of one or all of the other.
//!
//! A reader trusts a file by its owner: root, its own user, or, in a directory that its
//! environment names, the owner of that directory. It opens regular files only and never waits.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::{Error, Inventory, inventory};

/// The version of the file's format; a change that breaks a reader raises it.
pub const SCHEMA: u32 = 1;

/// The file's name.
pub const FILE_NAME: &str = "snapshot.json";

/// More bytes than this no snapshot has.
const MAX_BYTES: u64 = 4 << 20;

/// Who may write the file: its owner alone.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// What the node's GPUs are, and who holds them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When the driver said so, in seconds since the Unix epoch.
    pub taken_at: u64,
    /// For how many seconds what changes all the time (utilisation, temperature, power, memory in
    /// use) is taken to be true.
    pub current_for: u64,
    /// The kernel's id of the boot that it is of (random(4)).
    pub boot_id: Option<String>,
    /// Whether a GPU that is unfit for use keeps its place: under YARN's LinuxContainerExecutor a
    /// GPU is known by its place. Else it is left out.
    pub keep_places: bool,
    /// What YARN is given as a slice's minor number.
    pub mig_minor: MigMinor,
    /// The GPUs.
    pub inventory: Inventory,
    /// The containers that hold some.
    pub holders: Vec<Holder>,
}

/// A container that holds GPUs or slices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its id, as in its variable `CONTAINER_ID`.
    pub container: String,
    /// Its user.
    pub uid: u32,
    /// UUIDs of what it holds.
    pub devices: Vec<String>,
}

/// What stands for a slice's minor number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigMinor {
    /// That of its GPU.
    #[default]
    Gpu,
    /// That of the device below `/dev/nvidia-caps` that gives access to its GPU instance.
    Capability,
}

impl Snapshot {
    /// Of GPUs as they are at that time, held by nobody.
    pub fn new(inventory: Inventory, taken_at: u64) -> Self {
        Self {
            schema: SCHEMA,
            taken_at,
            current_for: 0,
            boot_id: boot_id(),
            keep_places: false,
            mig_minor: MigMinor::Gpu,
            inventory,
            holders: Vec::new(),
        }
    }

    /// Whether YARN would be shown any GPU.
    pub fn has_units(&self) -> bool {
        self.inventory.units().next().is_some()
    }

    /// Whether what changes all the time is still true. A clock that was set back makes it old.
    pub fn is_current(&self, now: u64) -> bool {
        now.checked_sub(self.taken_at).is_some_and(|age| age <= self.current_for)
    }

    /// Without what changes all the time.
    #[must_use]
    pub fn lasting(mut self) -> Self {
        let gpus = std::mem::take(&mut self.inventory.gpus);
        self.inventory.gpus = gpus.into_iter().map(inventory::Gpu::lasting).collect();
        self
    }

    /// Reads a snapshot's text.
    ///
    /// # Errors
    /// [`Error::Json`] and [`Error::Schema`].
    pub fn from_json(text: &[u8]) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Schemas {
            schema: u32,
            inventory: Option<Inner>,
        }
        #[derive(Deserialize)]
        struct Inner {
            schema: u32,
        }
        let schemas: Schemas = serde_json::from_slice(text)?;
        let inner = schemas.inventory.map_or(inventory::SCHEMA, |inner| inner.schema);
        for (found, known) in [(schemas.schema, SCHEMA), (inner, inventory::SCHEMA)] {
            if found != known {
                return Err(Error::Schema { found });
            }
        }
        Ok(serde_json::from_slice(text)?)
    }

    /// Replaces the snapshot of a directory; anybody may read it.
    ///
    /// # Errors
    /// [`Error::Snapshot`]; the one that is there stays then.
    pub fn write(&self, directory: &Path) -> Result<(), Error> {
        let path = directory.join(FILE_NAME);
        let new = directory.join(format!(".{FILE_NAME}.{}", std::process::id()));
        let text = serde_json::to_vec(self).expect("a snapshot is JSON");
        let write = || {
            // One of a process that had the same id, and was killed.
            fs::remove_file(&new).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?;
            let mut file = File::options().write(true).create_new(true).mode(0o644).open(&new)?;
            // Whatever the umask.
            file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        write().map_err(|source| {
            let _ = fs::remove_file(&new);
            Error::Snapshot { path: path.clone(), reason: source.to_string() }
        })
    }
}

/// The kernel's id of this boot.
pub fn boot_id() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

/// A directory that may have a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub path: PathBuf,
    /// Whether this process's environment names it: then its owner's file is trusted.
    pub named: bool,
}

impl Place {
    /// Reads the snapshot that is there, if one is.
    ///
    /// # Errors
    /// [`Error::Snapshot`]: it is none, or none to trust.
    pub fn read(&self) -> Result<Option<Snapshot>, Error> {
        let path = self.path.join(FILE_NAME);
        let refuse = |reason: String| Error::Snapshot { path: path.clone(), reason };
        let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY;
        let opened =
            File::options().read(true).custom_flags(flags.bits().cast_signed()).open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if is_absence(&error) => return Ok(None),
            Err(error) => return Err(refuse(error.to_string())),
        };
        let about = file.metadata().map_err(|error| refuse(error.to_string()))?;
        if !about.is_file() {
            return Err(refuse("it is no regular file".to_owned()));
        }
        if about.mode() & WRITABLE_BY_OTHERS != 0 {
            return Err(refuse("others than its owner may write it".to_owned()));
        }
        let directory = || fs::metadata(&self.path).map(|directory| directory.uid()).ok();
        let own = rustix::process::geteuid().as_raw();
        let trusted =
            [0, own].contains(&about.uid()) || (self.named && directory() == Some(about.uid()));
        if !trusted {
            return Err(refuse(format!("it belongs to user {}", about.uid())));
        }
        if about.len() > MAX_BYTES {
            return Err(refuse(format!("it has {} bytes", about.len())));
        }
        let mut text = Vec::with_capacity(about.len() as usize + 1);
        file.take(MAX_BYTES).read_to_end(&mut text).map_err(|error| refuse(error.to_string()))?;
        Snapshot::from_json(&text).map(Some).map_err(|error| refuse(error.to_string()))
    }
}

/// Also where a directory on the way is none, or not open to this user.
fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | NotADirectory | PermissionDenied)
}

/// Where this process looks for a snapshot: the run directory (`CREEL_RUN_DIR`, else `/run/creel`
/// and `$XDG_RUNTIME_DIR/creel`), then the state directory (`CREEL_AGENT_STATE_DIR`, which sets
/// the agent's setting too, else `/var/lib/creel` and `$XDG_STATE_HOME/creel` or
/// `~/.local/state/creel`).
pub fn places() -> Vec<Place> {
    places_of(|name| std::env::var_os(name))
}

fn places_of(variable: impl Fn(&str) -> Option<OsString>) -> Vec<Place> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let mut places = Vec::new();
    let mut add = |named: &str, system: &str, user: Option<PathBuf>| {
        if let Some(path) = absolute(named) {
            return places.push(Place { path, named: true });
        }
        let users = user.map(|parent| parent.join("creel"));
        let paths = [Some(PathBuf::from(system)), users].into_iter().flatten();
        places.extend(paths.map(|path| Place { path, named: false }));
    };
    add("CREEL_RUN_DIR", "/run/creel", absolute("XDG_RUNTIME_DIR"));
    let home = || Some(absolute("HOME")?.join(".local/state"));
    add("CREEL_AGENT_STATE_DIR", "/var/lib/creel", absolute("XDG_STATE_HOME").or_else(home));
    places
}

/// The snapshot to answer from: the first that is current, else the newest that has a GPU, else
/// the newest. What is wrong with others goes to `complain`.
pub fn best(places: &[Place], now: u64, mut complain: impl FnMut(Error)) -> Option<Snapshot> {
    let mut old = Vec::new();
    for place in places {
        match place.read() {
            Ok(Some(snapshot)) if snapshot.is_current(now) => return Some(snapshot),
            Ok(snapshot) => old.extend(snapshot),
            Err(error) => complain(error),
        }
    }
    old.into_iter().max_by_key(|snapshot| (snapshot.has_units(), snapshot.taken_at))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::inventory::tests::node;

    /// A snapshot of [`node`].
    pub(crate) fn snapshot() -> Snapshot {
        Snapshot { current_for: 100, ..Snapshot::new(node(), 1_000_000) }
    }

    fn place(directory: &Path) -> Place {
        Place { path: directory.to_owned(), named: false }
    }

    #[test]
    fn it_comes_back_as_it_went_and_anybody_may_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let mut snapshot = snapshot();
        let devices = vec!["MIG-0".to_owned()];
        snapshot.holders = vec![Holder { container: "container_1".to_owned(), uid: 7, devices }];
        for _ in 0..2 {
            snapshot.write(directory.path()).unwrap();
            assert_eq!(place(directory.path()).read().unwrap().as_ref(), Some(&snapshot));
        }
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(Result::unwrap).collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert_eq!(names[0].metadata().unwrap().permissions().mode() & 0o777, 0o644);
    }

    #[test]
    fn what_can_not_be_written_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join(FILE_NAME).join("full")).unwrap();
        let error = snapshot().write(directory.path()).unwrap_err().to_string();
        assert!(error.contains(FILE_NAME), "{error}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_snapshot_is_refused_at_once() {
        let good = serde_json::to_string(&snapshot()).unwrap();
        let newer = good.replacen("\"schema\":1", "\"schema\":2", 1);
        let newer_inventory =
            good.replace("\"inventory\":{\"schema\":1", "\"inventory\":{\"schema\":9");
        for (text, reason) in [
            ("", "no inventory"),
            ("\0\0\0\0", "no inventory"),
            (&good[..good.len() / 2], "EOF"),
            ("[]", "no inventory"),
            (r#"{"schema":1}"#, "missing field"),
            (newer.as_str(), "schema 2"),
            (newer_inventory.as_str(), "schema 9"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join(FILE_NAME), text).unwrap();
            let error = place(directory.path()).read().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn only_an_ordinary_file_of_a_trusted_owner_is_read() {
        let refused = |make: &dyn Fn(&Path)| {
            let directory = tempfile::tempdir().unwrap();
            make(&directory.path().join(FILE_NAME));
            place(directory.path()).read().unwrap_err().to_string()
        };
        let good = |path: &Path| {
            let directory = path.parent().unwrap();
            snapshot().write(directory).unwrap();
        };
        assert!(refused(&|path| fs::create_dir(path).unwrap()).contains("no regular file"));
        let fifo = |path: &Path| {
            let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from(0o644));
            rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
        };
        assert!(refused(&fifo).contains("no regular file"));
        let link = |path: &Path| std::os::unix::fs::symlink("/etc/hostname", path).unwrap();
        assert!(refused(&link).contains("symbolic link"));
        let huge = |path: &Path| File::create(path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert!(refused(&huge).contains("bytes"));
        let open = |path: &Path| {
            good(path);
            fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
        };
        assert!(refused(&open).contains("others"));
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED in part: only root can give a file to another user");
            return;
        }
        let foreign = |path: &Path| {
            good(path);
            std::os::unix::fs::chown(path, Some(4711), None).unwrap();
        };
        assert!(refused(&foreign).contains("user 4711"));
        let directory = tempfile::tempdir().unwrap();
        foreign(&directory.path().join(FILE_NAME));
        let named = Place { named: true, ..place(directory.path()) };
        assert!(named.read().is_err(), "the directory is another's");
        std::os::unix::fs::chown(directory.path(), Some(4711), None).unwrap();
        assert!(named.read().unwrap().is_some());
        assert!(place(directory.path()).read().is_err());
    }

    #[test]
    fn the_run_directory_then_the_state_directory() {
        let of = |variables: &[(&str, &str)]| {
            let places = places_of(|name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            });
            let show = |place: Place| format!("{} {}", place.path.display(), place.named);
            places.into_iter().map(show).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), ["/run/creel false", "/var/lib/creel false"]);
        assert_eq!(
            of(&[("HOME", "/home/yarn"), ("XDG_RUNTIME_DIR", "/run/user/7")]),
            [
                "/run/creel false",
                "/run/user/7/creel false",
                "/var/lib/creel false",
                "/home/yarn/.local/state/creel false"
            ]
        );
        assert_eq!(
            of(&[("CREEL_RUN_DIR", "/r"), ("CREEL_AGENT_STATE_DIR", "/s"), ("HOME", "/h")]),
            ["/r true", "/s true"]
        );
    }

    #[test]
    fn the_current_one_then_one_with_gpus_then_the_newest() {
        let parent = tempfile::tempdir().unwrap();
        let places = ["a", "b"].map(|name| place(&parent.path().join(name)));
        let taken = |now| best(&places, now, |_| ()).map(|snapshot| snapshot.taken_at);
        assert_eq!(taken(0), None);
        let write = |place: &Place, snapshot: &Snapshot| {
            fs::create_dir_all(&place.path).unwrap();
            snapshot.write(&place.path).unwrap();
        };
        let at = |taken_at| Snapshot { taken_at, ..snapshot() };
        write(&places[0], &at(1000));
        write(&places[1], &at(2000));
        assert_eq!(taken(1100), Some(1000));
        assert_eq!(taken(1101), Some(2000), "both are old");
        assert_eq!(taken(500), Some(2000), "the clock was set back");
        write(&places[1], &Snapshot { inventory: Inventory::empty(), ..at(2000) });
        assert_eq!(taken(9000), Some(1000));
        fs::write(places[0].path.join(FILE_NAME), "torn").unwrap();
        let mut complaints = 0;
        assert_eq!(best(&places, 9000, |_| complaints += 1).unwrap().taken_at, 2000);
        assert_eq!(complaints, 1);
    }

    #[test]
    fn what_lasts_is_what_a_gpu_is() {
        let lasting = snapshot().lasting();
        let gpu = &lasting.inventory.gpus[0];
        assert_eq!((gpu.utilization.gpu, gpu.temperature.gpu, gpu.memory.used), (None, None, None));
        assert_eq!((gpu.temperature.slowdown, gpu.memory.total), (Some(89), Some(40 << 30)));
        assert_eq!(gpu.mig.slices[0].memory.free, None);
        assert_eq!(lasting, lasting.clone().lasting());
    }
}
