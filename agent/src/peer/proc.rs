//! What `/proc` says of a process (proc(5)).

use std::fs;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

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
        Ok(self.stat(pid)?.parent)
    }

    /// What `stat` says of a process.
    pub fn stat(&self, pid: i32) -> io::Result<Stat> {
        let stat = self.text(pid, "stat")?;
        Stat::parse(pid, &stat)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("stat is {stat:?}")))
    }

    /// Every process's number.
    pub fn pids(&self) -> io::Result<Vec<i32>> {
        let entries = fs::read_dir(&self.root)?.flatten();
        Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    /// The real, effective, saved and file system user of a process.
    pub fn users(&self, pid: i32) -> io::Result<[u32; 4]> {
        let status = self.text(pid, "status")?;
        numbers(&status, "Uid:")
            .try_into()
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "status names no four users"))
    }

    /// The name of the file that a process runs.
    pub fn program(&self, pid: i32) -> io::Result<String> {
        let path = fs::read_link(self.file(pid, "exe"))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Of one that was replaced since.
        Ok(name.trim_end_matches(" (deleted)").to_owned())
    }

    /// What a process calls itself, at most 15 bytes. It may call itself anything: control
    /// characters are spaces here.
    pub fn name(&self, pid: i32) -> io::Result<String> {
        let name = self.text(pid, "comm")?;
        let name = name.strip_suffix('\n').unwrap_or(&name);
        Ok(name.replace(char::is_control, " "))
    }

    /// The id of this boot of the kernel: what is known of processes of another one is void.
    pub fn boot_id(&self) -> io::Result<String> {
        let id = fs::read_to_string(self.root.join("sys/kernel/random/boot_id"))?;
        Ok(id.trim().to_owned())
    }

    /// Seconds since the kernel was started, suspended or not; of hundredths.
    pub fn uptime(&self) -> io::Result<f64> {
        let uptime = fs::read_to_string(self.root.join("uptime"))?;
        let seconds = uptime.split_whitespace().next().and_then(|seconds| seconds.parse().ok());
        seconds.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, uptime))
    }

    /// Whether process numbers here are those that the driver knows: of the initial PID namespace.
    pub fn is_initial_namespace(&self) -> bool {
        // PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h.
        const INITIAL: &str = "pid:[4026531836]";
        fs::read_link(self.root.join("self/ns/pid")).is_ok_and(|path| path.as_os_str() == INITIAL)
    }

    /// The supplementary groups of a process; `None` if its effective user is not `uid`.
    pub fn groups_of(&self, pid: i32, uid: u32) -> io::Result<Option<Vec<u32>>> {
        let status = self.text(pid, "status")?;
        // Real, effective, saved, file system.
        let runs_as_user = numbers(&status, "Uid:").get(1) == Some(&uid);
        Ok(runs_as_user.then(|| numbers(&status, "Groups:")))
    }

    /// The working directory of a process.
    pub fn cwd(&self, pid: i32) -> io::Result<PathBuf> {
        fs::read_link(self.file(pid, "cwd"))
    }

    /// The control groups of a process, one of each hierarchy (cgroups(7)).
    pub fn cgroups(&self, pid: i32) -> io::Result<Vec<Cgroup>> {
        let text = self.text(pid, "cgroup")?;
        let group = |line: &str| {
            let (_, line) = line.split_once(':')?;
            let (controllers, path) = line.split_once(':')?;
            Some(Cgroup { controllers: controllers.to_owned(), path: path.to_owned() })
        };
        Ok(text.lines().filter_map(group).collect())
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

/// What `stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The process.
    pub process: ProcessId,
    /// Its parent; `None` for the first one, and for those that the kernel started.
    pub parent: Option<i32>,
    /// Its session.
    pub session: i32,
    /// Whether it has ended and waits to be reaped.
    pub ended: bool,
}

/// A control group that a process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// The controllers of its hierarchy, as `cpu,cpuacct`; empty for v2.
    pub controllers: String,
    /// Its path in there.
    pub path: String,
}

/// A process, and no younger one of the same number: as long as the kernel is not started anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start: u64,
}

impl Stat {
    fn parse(pid: i32, stat: &str) -> Option<Self> {
        // The name, in brackets, may hold anything; what follows its last bracket is state, ppid,
        // pgrp, session, and as the 20th, starttime.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<_> = fields.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<i32>().ok();
        Some(Self {
            process: ProcessId { pid, start: fields.get(19).and_then(|start| start.parse().ok())? },
            parent: Some(number(1)?).filter(|parent| *parent != 0),
            session: number(3)?,
            ended: matches!(*fields.first()?, "Z" | "X" | "x"),
        })
    }
}

/// The numbers in the line of `status` that begins with a name.
fn numbers(status: &str, name: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
    line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
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
        assert_eq!(proc.users(own).unwrap()[1], uid);
        assert!(proc.pids().unwrap().contains(&own));
        assert_eq!(proc.stat(own).unwrap(), proc.stat(own).unwrap());
        assert_eq!(proc.boot_id().unwrap().len(), 36);
        assert!(proc.uptime().unwrap() > 0.0);
        let program = std::env::current_exe().unwrap();
        assert_eq!(proc.program(own).unwrap(), program.file_name().unwrap().to_str().unwrap());
    }

    #[test]
    fn a_name_with_brackets_hides_nothing() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("7")).unwrap();
        let rest = "0 -1 4194560 1 1 0 0 0 0 0 0 20 0 1 0 4711 1 1";
        fs::write(root.path().join("7/stat"), format!("7 (a) R 1 (b) Z 42 7 6 {rest}")).unwrap();
        let stat = Proc::at(root.path()).stat(7).unwrap();
        let process = ProcessId { pid: 7, start: 4711 };
        assert_eq!(stat, Stat { process, parent: Some(42), session: 6, ended: true });
        fs::write(root.path().join("7/stat"), "7").unwrap();
        assert!(Proc::at(root.path()).parent(7).is_err());
    }

    #[test]
    fn a_process_that_waits_to_be_reaped_has_ended() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id().cast_signed();
        while !Proc::default().stat(pid).unwrap().ended {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(Proc::default().stat(pid).is_err());
    }

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let proc = Proc::at(root.path());
        assert_eq!(proc.parent(7).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(proc.cwd(7).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
