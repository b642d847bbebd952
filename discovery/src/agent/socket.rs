//! Where the node's agent is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The run and state directory of an agent with root.
const RUN: &str = "/run/creel";
const STATE: &str = "/var/lib/creel";

/// The control socket's name in the run directory.
const NAME: &str = "agent.sock";

/// A control socket that there may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Its path.
    pub path: PathBuf,
    /// A directory that only a node with an agent has; absent: there has to be one.
    sign: Vec<PathBuf>,
}

impl Socket {
    /// The socket in a run directory that somebody named: there is an agent.
    pub fn named(run_dir: &Path) -> Self {
        Self { path: run_dir.join(NAME), sign: Vec::new() }
    }

    /// The socket in a run directory, if that or another directory of an agent is there.
    fn usual(run_dir: &Path, state_dir: &Path) -> Self {
        Self { path: run_dir.join(NAME), sign: vec![run_dir.to_owned(), state_dir.to_owned()] }
    }

    /// Whether an agent is, or was, here.
    pub fn is_claimed(&self) -> bool {
        self.sign.is_empty() || self.sign.iter().any(|directory| directory.is_dir())
    }
}

/// Where this process looks: in the run directory that `CREEL_RUN_DIR` names, and nowhere else;
/// without one, in `$XDG_RUNTIME_DIR/creel`, then in `/run/creel`.
pub fn sockets(variable: impl Fn(&str) -> Option<OsString>) -> Vec<Socket> {
    let variable = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(run_dir) = variable("CREEL_RUN_DIR") {
        return vec![Socket::named(&run_dir)];
    }
    let own = variable("XDG_RUNTIME_DIR").map(|directory| directory.join("creel"));
    let own = own.map(|run_dir| Socket::usual(&run_dir, &run_dir));
    own.into_iter().chain([Socket::usual(Path::new(RUN), Path::new(STATE))]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(variables: &[(&str, &str)]) -> Vec<String> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        };
        sockets(variable).iter().map(|socket| socket.path.display().to_string()).collect()
    }

    #[test]
    fn where_it_is() {
        let named = [("CREEL_RUN_DIR", "/x"), ("XDG_RUNTIME_DIR", "/run/user/7")];
        assert_eq!(paths(&named), ["/x/agent.sock"]);
        let both = ["/run/user/7/creel/agent.sock", "/run/creel/agent.sock"];
        assert_eq!(paths(&named[1..]), both);
        assert_eq!(paths(&[("CREEL_RUN_DIR", "")]), ["/run/creel/agent.sock"]);
    }

    #[test]
    fn a_node_that_never_had_one_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let (run, state) = (dir.path().join("run"), dir.path().join("state"));
        assert!(Socket::named(&run).is_claimed());
        assert!(!Socket::usual(&run, &state).is_claimed());
        std::fs::create_dir(&state).unwrap();
        assert!(Socket::usual(&run, &state).is_claimed());
    }
}
