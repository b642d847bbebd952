//! YARN's daemons on this machine, as `/proc` shows them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The unit of times in `/proc`, `USER_HZ`: the same on x86-64 and AArch64 (`asm/param.h`).
const TICKS_PER_SECOND: u64 = 100;

/// A daemon of YARN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Daemon {
    /// One or two in a cluster.
    #[serde(rename = "ResourceManager")]
    ResourceManager,
    /// One on each node.
    #[serde(rename = "NodeManager")]
    NodeManager,
}

impl Daemon {
    /// The daemon's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ResourceManager => "ResourceManager",
            Self::NodeManager => "NodeManager",
        }
    }

    /// The class whose name is among the arguments of its process.
    fn class(self) -> &'static str {
        match self {
            Self::ResourceManager => {
                "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
            }
            Self::NodeManager => "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
        }
    }
}

/// A daemon that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Running {
    /// Which.
    pub daemon: Daemon,
    /// Its process.
    pub pid: u32,
    /// The user that it runs as.
    pub uid: u32,
    /// When it started, in seconds since the Unix epoch.
    pub started: u64,
    /// The configuration directory of its environment; absent where that can't be read.
    pub conf_dir: Option<PathBuf>,
}

impl Running {
    /// Whether it reads this configuration directory, as far as is known.
    pub fn reads(&self, conf_dir: &Path) -> bool {
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        self.conf_dir.as_deref().is_none_or(|own| real(own) == real(conf_dir))
    }
}

/// The daemons that run with a configuration directory, by what is in `proc` below the root (`/`).
/// What can't be read is passed over.
pub fn running(root: &Path, conf_dir: &Path) -> Vec<Running> {
    let proc = root.join("proc");
    let Some(boot) = boot_time(&proc) else { return Vec::new() };
    let Ok(entries) = std::fs::read_dir(&proc) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            look(&entry.path(), pid, boot)
        })
        .filter(|running| running.reads(conf_dir))
        .collect();
    found.sort_by_key(|running| (running.daemon, running.pid));
    found
}

fn look(process: &Path, pid: u32, boot: u64) -> Option<Running> {
    let arguments = std::fs::read(process.join("cmdline")).ok()?;
    let mut arguments = arguments.split(|byte| *byte == 0);
    let daemon = arguments.find_map(|argument| {
        let daemons = [Daemon::ResourceManager, Daemon::NodeManager];
        daemons.into_iter().find(|daemon| argument == daemon.class().as_bytes())
    })?;
    let status = std::fs::read_to_string(process.join("status")).ok()?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    // The name, in parentheses, may hold anything; the 20th field after it is the start (proc(5)).
    let ticks: u64 = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()?;
    Some(Running {
        daemon,
        pid,
        uid: uids.split_ascii_whitespace().nth(1)?.parse().ok()?,
        started: boot + ticks / TICKS_PER_SECOND,
        conf_dir: conf_dir(process),
    })
}

/// Hadoop's scripts export it.
fn conf_dir(process: &Path) -> Option<PathBuf> {
    let environment = std::fs::read(process.join("environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let path = variables.find_map(|variable| variable.strip_prefix(b"HADOOP_CONF_DIR="))?;
    Some(PathBuf::from(OsStr::from_bytes(path)))
}

fn boot_time(proc: &Path) -> Option<u64> {
    let stat = std::fs::read_to_string(proc.join("stat")).ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A process below a root, as `/proc` would show it.
    pub(crate) fn process(root: &Path, pid: u32, class: &str, uid: u32, ticks: u64) {
        let directory = root.join("proc").join(pid.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(root.join("proc/stat"), "cpu 1\nbtime 1000\n").unwrap();
        std::fs::write(directory.join("cmdline"), format!("java\0-Xmx1g\0{class}\0")).unwrap();
        let status = format!("Name:\tjava\nUid:\t1\t{uid}\t1\t1\n");
        std::fs::write(directory.join("status"), status).unwrap();
        let before = "S 1 ".to_owned() + &"0 ".repeat(17);
        std::fs::write(directory.join("stat"), format!("{pid} (a) b) {before}{ticks} 0")).unwrap();
    }

    #[test]
    fn daemons_are_known_by_their_class() {
        let root = tempfile::tempdir().unwrap();
        let conf_dir = root.path().join("conf");
        assert!(running(root.path(), &conf_dir).is_empty());
        process(root.path(), 7, Daemon::NodeManager.class(), 990, 5 * TICKS_PER_SECOND);
        process(root.path(), 8, Daemon::ResourceManager.class(), 0, 0);
        process(root.path(), 9, "org.apache.hadoop.yarn.server.nodemanager.NodeManagerX", 0, 0);
        std::fs::create_dir(root.path().join("proc/self")).unwrap();
        let of = |daemon, pid, uid, started| Running { daemon, pid, uid, started, conf_dir: None };
        let nm = of(Daemon::NodeManager, 7, 990, 1005);
        let rm = of(Daemon::ResourceManager, 8, 0, 1000);
        assert_eq!(running(root.path(), &conf_dir), [rm.clone(), nm]);

        let environment = format!("A=b\0HADOOP_CONF_DIR={}\0", conf_dir.display());
        std::fs::write(root.path().join("proc/8/environ"), &environment).unwrap();
        std::fs::write(root.path().join("proc/7/environ"), "HADOOP_CONF_DIR=/other\0").unwrap();
        let rm = Running { conf_dir: Some(conf_dir.clone()), ..rm };
        assert_eq!(running(root.path(), &conf_dir), [rm]);
    }
}
