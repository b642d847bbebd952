//! What `/proc` says of a process (proc(5)).

use std::fs;
use std::io;
use std::path::PathBuf;

/// A mounted procfs.
///
/// The few files that matter are read directly: sysinfo reads more than is asked for, has no
/// control groups, and no other root than `/proc`, so that no test could stand in for the kernel.
#[derive(Clone, Debug)]
pub struct Proc {
    root: PathBuf,
}

impl Default for Proc {
    fn default() -> Self {
        Self::at("/proc")
    }
}

impl Proc {
    /// The procfs that is mounted at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn file(&self, pid: i32, name: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(name)
    }

    fn text(&self, pid: i32, name: &str) -> io::Result<String> {
        let bytes = fs::read(self.file(pid, name))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The parent of a process; `None` for the first one.
    pub fn parent(&self, pid: i32) -> io::Result<Option<i32>> {
        let stat = self.text(pid, "stat")?;
        // The name, in brackets, may hold anything; what follows its last bracket is state, ppid.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let parent = fields.split_whitespace().nth(1).and_then(|ppid| ppid.parse().ok());
        match parent {
            Some(0) => Ok(None),
            Some(parent) => Ok(Some(parent)),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, format!("stat is {stat:?}"))),
        }
    }

    /// The supplementary groups of a process; `None` if its effective user is not `uid`.
    pub fn groups_of(&self, pid: i32, uid: u32) -> io::Result<Option<Vec<u32>>> {
        let status = self.text(pid, "status")?;
        let numbers = |name: &str| -> Vec<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
            line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
        };
        // Real, effective, saved, file system.
        let runs_as_user = numbers("Uid:").get(1) == Some(&uid);
        Ok(runs_as_user.then(|| numbers("Groups:")))
    }

    /// The working directory of a process.
    pub fn cwd(&self, pid: i32) -> io::Result<PathBuf> {
        fs::read_link(self.file(pid, "cwd"))
    }

    /// The control groups of a process: one path per hierarchy.
    pub fn cgroups(&self, pid: i32) -> io::Result<Vec<String>> {
        let text = self.text(pid, "cgroup")?;
        Ok(text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).map(str::to_owned).collect())
    }

    /// The arguments of a process, its name first.
    pub fn arguments(&self, pid: i32) -> io::Result<Vec<String>> {
        let text = self.text(pid, "cmdline")?;
        Ok(text.split_terminator('\0').map(str::to_owned).collect())
    }

    /// A variable of the environment that a process was started with.
    pub fn variable(&self, pid: i32, name: &str) -> io::Result<Option<String>> {
        let environment = self.text(pid, "environ")?;
        let found = environment
            .split('\0')
            .find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='))
            .map(str::to_owned);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_one_knows_this_process() {
        let proc = Proc::default();
        let own = std::process::id().cast_signed();
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        assert_eq!(proc.parent(own).unwrap(), Some(parent));
        assert_eq!(proc.cwd(own).unwrap(), std::env::current_dir().unwrap());
        assert_eq!(proc.arguments(own).unwrap(), std::env::args().collect::<Vec<_>>());
        assert_eq!(proc.variable(own, "PATH").unwrap(), std::env::var("PATH").ok());
        assert_eq!(proc.variable(own, "NO_SUCH_VARIABLE").unwrap(), None);
        assert!(!proc.cgroups(own).unwrap().is_empty());
        let uid = rustix::process::geteuid().as_raw();
        assert!(proc.groups_of(own, uid).unwrap().is_some());
        assert_eq!(proc.groups_of(own, uid + 1).unwrap(), None);
    }

    #[test]
    fn a_name_with_brackets_hides_no_parent() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("7")).unwrap();
        fs::write(root.path().join("7/stat"), "7 (a) R 1 (b) S 42 7 7 0").unwrap();
        assert_eq!(Proc::at(root.path()).parent(7).unwrap(), Some(42));
        fs::write(root.path().join("7/stat"), "7").unwrap();
        assert!(Proc::at(root.path()).parent(7).is_err());
    }

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let proc = Proc::at(root.path());
        assert_eq!(proc.parent(7).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(proc.cwd(7).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
