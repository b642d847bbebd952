//! The state directory: what outlives the agent and a reboot.

use std::ffi::OsString;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The state directory of an agent with root.
const SYSTEM: &str = "/var/lib/creel";

/// A state directory. It need not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir(PathBuf);

impl StateDir {
    /// The state directory of this process: that of the setting `agent.state_dir`, else
    /// `/var/lib/creel` for root, and `$XDG_STATE_HOME/creel` or `~/.local/state/creel` for others
    /// (XDG Base Directory Specification).
    ///
    /// # Errors
    /// [`Error::NoStateDir`] where nothing names one.
    pub fn resolve(setting: &Path) -> Result<Self, Error> {
        let root = rustix::process::geteuid().is_root();
        choose(setting, |name| std::env::var_os(name), root).map(Self).ok_or(Error::NoStateDir)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the directory, which anyone may enter, unless it is there.
    ///
    /// # Errors
    /// [`Error::StateDir`].
    pub fn make(&self) -> Result<(), Error> {
        let path = self.path();
        let make = || {
            if path.is_dir() {
                return Ok(());
            }
            DirBuilder::new().recursive(true).mode(0o755).create(path)?;
            // Whatever the umask.
            std::fs::set_permissions(path, Permissions::from_mode(0o755))
        };
        make().map_err(|source| Error::StateDir { path: path.to_owned(), source })
    }
}

fn choose(
    setting: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
    root: bool,
) -> Option<PathBuf> {
    if !setting.as_os_str().is_empty() {
        return Some(setting.to_owned());
    }
    if root {
        return Some(SYSTEM.into());
    }
    // A relative path is to be ignored (XDG Base Directory Specification, "Basics").
    let directory = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    directory("XDG_STATE_HOME")
        .or_else(|| Some(directory("HOME")?.join(".local/state")))
        .map(|parent| parent.join("creel"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(setting: &str, variables: &[(&str, &str)], root: bool) -> Option<String> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        };
        choose(Path::new(setting), variable, root).map(|path| path.display().to_string())
    }

    #[test]
    fn setting_then_the_users_place() {
        let both = [("XDG_STATE_HOME", "/state"), ("HOME", "/home/ada")];
        assert_eq!(chosen("/setting", &both, true).as_deref(), Some("/setting"));
        assert_eq!(chosen("", &both, true).as_deref(), Some("/var/lib/creel"));
        assert_eq!(chosen("", &both, false).as_deref(), Some("/state/creel"));
        let home = Some("/home/ada/.local/state/creel");
        assert_eq!(chosen("", &both[1..], false).as_deref(), home);
        let relative = [("XDG_STATE_HOME", "state"), both[1]];
        assert_eq!(chosen("", &relative, false).as_deref(), home);
        assert_eq!(chosen("", &[("XDG_STATE_HOME", "")], false), None);
    }

    #[test]
    fn it_is_made_for_all_to_enter() {
        let parent = tempfile::tempdir().unwrap();
        let state_dir = StateDir(parent.path().join("a/b"));
        state_dir.make().unwrap();
        state_dir.make().unwrap();
        let mode = state_dir.path().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        std::fs::write(parent.path().join("file"), "").unwrap();
        let error = StateDir(parent.path().join("file/b")).make().unwrap_err();
        assert!(error.to_string().contains("agent.state_dir"), "{error}");
    }
}
