//! The run directory: where the agent's sockets are.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The run directory of an agent with root.
const SYSTEM: &str = "/run/creel";

/// Bytes of a socket's path, at the most: `sun_path` has 108 with its final zero (unix(7)).
const MAX_SOCKET_PATH: usize = 107;

/// A run directory whose sockets' paths are short enough. It need not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// The run directory of this process: the flag's, else that of `CREEL_RUN_DIR`, else
    /// `/run/creel` for root and `$XDG_RUNTIME_DIR/creel` for others.
    ///
    /// # Errors
    /// [`Error::NoRunDir`] where nothing names one, [`Error::SocketPath`] where a socket's path in
    /// it would be too long.
    pub fn resolve(flag: Option<PathBuf>) -> Result<Self, Error> {
        let root = rustix::process::geteuid().is_root();
        Self::of(choose(flag, |name| std::env::var_os(name), root).ok_or(Error::NoRunDir)?)
    }

    /// The run directory of the agent that this process is to talk to: the flag's, else that of
    /// `CREEL_RUN_DIR`, else the user's own if there is one, else `/run/creel`.
    ///
    /// # Errors
    /// [`Error::SocketPath`] where a socket's path in it would be too long.
    pub fn find(flag: Option<PathBuf>) -> Result<Self, Error> {
        let root = rustix::process::geteuid().is_root();
        Self::of(chosen_by_client(flag, |name| std::env::var_os(name), root, Path::is_dir))
    }

    fn of(path: PathBuf) -> Result<Self, Error> {
        let path = std::path::absolute(&path).unwrap_or(path);
        let run_dir = Self(path);
        // The longest of them, with more GPUs than any node has.
        let longest = run_dir.gpu_socket(99);
        let bytes = longest.as_os_str().as_bytes().len();
        if bytes > MAX_SOCKET_PATH {
            return Err(Error::SocketPath { path: longest, bytes, max: MAX_SOCKET_PATH });
        }
        Ok(run_dir)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The control socket: HTTP and JSON.
    pub fn agent_socket(&self) -> PathBuf {
        self.0.join("agent.sock")
    }

    /// The data socket: Arrow Flight SQL.
    pub fn data_socket(&self) -> PathBuf {
        self.0.join("creel.sock")
    }

    /// The data socket of the GPU with that place in PCI order.
    pub fn gpu_socket(&self, index: u32) -> PathBuf {
        self.0.join(format!("gpu/{index}.sock"))
    }
}

fn choose(
    flag: Option<PathBuf>,
    variable: impl Fn(&str) -> Option<OsString>,
    root: bool,
) -> Option<PathBuf> {
    let variable = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    flag.or_else(|| variable("CREEL_RUN_DIR")).or_else(|| {
        if root { Some(SYSTEM.into()) } else { Some(variable("XDG_RUNTIME_DIR")?.join("creel")) }
    })
}

fn chosen_by_client(
    flag: Option<PathBuf>,
    variable: impl Fn(&str) -> Option<OsString>,
    root: bool,
    is_dir: impl Fn(&Path) -> bool,
) -> PathBuf {
    let named = flag.is_some() || variable("CREEL_RUN_DIR").is_some_and(|value| !value.is_empty());
    match choose(flag, variable, root) {
        // A user's own agent comes before the node's.
        Some(path) if named || is_dir(&path) => path,
        _ => SYSTEM.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(flag: Option<&str>, variables: &[(&str, &str)], root: bool) -> Option<String> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        };
        choose(flag.map(Into::into), variable, root).map(|path| path.display().to_string())
    }

    #[test]
    fn flag_then_variable_then_the_users_place() {
        let both = [("CREEL_RUN_DIR", "/tmp/run"), ("XDG_RUNTIME_DIR", "/run/user/7")];
        assert_eq!(chosen(Some("/flag"), &both, true).as_deref(), Some("/flag"));
        assert_eq!(chosen(None, &both, true).as_deref(), Some("/tmp/run"));
        assert_eq!(chosen(None, &both[1..], true).as_deref(), Some("/run/creel"));
        assert_eq!(chosen(None, &both[1..], false).as_deref(), Some("/run/user/7/creel"));
        assert_eq!(chosen(None, &[("CREEL_RUN_DIR", "")], true).as_deref(), Some("/run/creel"));
        assert_eq!(chosen(None, &[], false), None);
    }

    #[test]
    fn a_client_goes_to_the_nodes_agent_unless_the_user_has_one() {
        let find = |flag: Option<&str>, variables: &[(&str, &str)], own: bool| {
            let variable = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            };
            chosen_by_client(flag.map(Into::into), variable, false, |_| own).display().to_string()
        };
        let session = [("XDG_RUNTIME_DIR", "/run/user/7")];
        assert_eq!(find(None, &session, true), "/run/user/7/creel");
        assert_eq!(find(None, &session, false), "/run/creel");
        assert_eq!(find(None, &[], false), "/run/creel");
        assert_eq!(find(None, &[("CREEL_RUN_DIR", "/tmp/run")], false), "/tmp/run");
        assert_eq!(find(Some("/flag"), &session, false), "/flag");
    }

    #[test]
    fn a_path_of_107_bytes_is_the_longest() {
        let of_length = |bytes: usize| PathBuf::from(format!("/{}", "x".repeat(bytes - 1)));
        let longest = MAX_SOCKET_PATH - "/gpu/99.sock".len();
        let run_dir = RunDir::resolve(Some(of_length(longest))).unwrap();
        assert_eq!(run_dir.gpu_socket(99).as_os_str().len(), 107);
        let error = RunDir::resolve(Some(of_length(longest + 1))).unwrap_err();
        assert!(matches!(error, Error::SocketPath { bytes: 108, .. }), "{error}");
        assert!(error.to_string().contains("CREEL_RUN_DIR"), "{error}");
    }
}
