//! The driver's own nvidia-smi.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::NAME;
use crate::Error;

/// Where YARN looks for it too (Hadoop, `GpuDiscoverer.DEFAULT_BINARY_SEARCH_DIRS`); then the
/// directories of `PATH`.
const DIRECTORIES: [&str; 3] = ["/usr/bin", "/bin", "/usr/local/nvidia/bin"];

/// Set for what is started from here: a copy of this program that finds it set would start this
/// one again.
const GUARD: &str = "CREEL_NVIDIA_SMI";

/// Becomes the driver's nvidia-smi. Returns why not.
pub(super) fn become_it(arguments: &[OsString]) -> Error {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> =
        DIRECTORIES.iter().map(PathBuf::from).chain(std::env::split_paths(&path)).collect();
    let program = match std::env::var_os(GUARD) {
        Some(_) => None,
        None => find(&directories, Path::new("/proc/self/exe")),
    };
    if let Some(program) = program {
        let source = Command::new(&program).args(arguments).env(GUARD, "1").exec();
        return Error::Start { program, source };
    }
    let looked: Vec<_> = directories.iter().map(|each| each.display().to_string()).collect();
    Error::NoNvidiaSmi { looked: looked.join(", ") }
}

/// The first that can be run and is not this program, by whatever name or link.
fn find(directories: &[PathBuf], this: &Path) -> Option<PathBuf> {
    let identity = |path: &Path| {
        let about = fs::metadata(path).ok()?;
        let runs = about.is_file() && about.permissions().mode() & 0o111 != 0;
        runs.then_some((about.dev(), about.ino()))
    };
    let this = identity(this);
    directories
        .iter()
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(NAME))
        .find(|path| identity(path).is_some_and(|found| Some(found) != this))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_is_another_program() {
        let parent = tempfile::tempdir().unwrap();
        let directories = ["link", "hard", "plain", "folder", "real"].map(|name| {
            let directory = parent.path().join(name);
            fs::create_dir(&directory).unwrap();
            directory
        });
        let program = |path: &Path, mode: u32| {
            fs::write(path, "").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let this = parent.path().join("creel-discovery");
        program(&this, 0o755);
        std::os::unix::fs::symlink(&this, directories[0].join(NAME)).unwrap();
        fs::hard_link(&this, directories[1].join(NAME)).unwrap();
        program(&directories[2].join(NAME), 0o644);
        fs::create_dir(directories[3].join(NAME)).unwrap();
        assert_eq!(find(&directories, &this), None);
        program(&directories[4].join(NAME), 0o755);
        assert_eq!(find(&directories, &this), Some(directories[4].join(NAME)));
        assert_eq!(find(&["real".into()], &this), None);
    }
}
