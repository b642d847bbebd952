//! Who holds a lease: a YARN container or a process, and whether it still lives.

use std::io;

use serde::{Deserialize, Serialize};

use crate::peer::{Container, Peer, Proc, ProcessId};

/// Who holds a lease.
///
/// What it lives as long as is told by process numbers with their start times and the kernel's
/// boot id: so neither a younger process of the same number nor a clock that jumps is taken for
/// anything, and a reboot ends every lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The user.
    pub uid: u32,
    /// The YARN container; absent: a process that is in none.
    pub container: Option<String>,
    /// The boot of the kernel that the processes are of.
    pub boot: String,
    /// It lives as long as one of these processes.
    pub processes: Vec<ProcessId>,
    /// Or as one in this session.
    pub session: Option<i32>,
    /// Or as one in a control group of the container's name.
    pub by_cgroup: bool,
}

impl Holder {
    /// The container that a peer is in.
    pub fn container(container: &Container, uid: u32, boot: String) -> Self {
        Self {
            uid,
            container: Some(container.id.clone()),
            boot,
            processes: container.processes.clone(),
            session: container.session,
            by_cgroup: container.by_cgroup,
        }
    }

    /// A process that is in no container.
    pub fn of_process(process: ProcessId, uid: u32, boot: String) -> Self {
        Self {
            uid,
            container: None,
            boot,
            processes: vec![process],
            session: None,
            by_cgroup: false,
        }
    }

    /// The process that stands for it: of a container, the last of those that the NodeManager
    /// knows.
    pub fn pid(&self) -> Option<i32> {
        self.processes.last().map(|process| process.pid)
    }

    /// How errors call it.
    pub fn name(&self) -> String {
        match (&self.container, self.pid()) {
            (Some(container), _) => container.clone(),
            (None, Some(pid)) => format!("process {pid}"),
            (None, None) => "a process".to_owned(),
        }
    }

    /// Whether a peer is of this holder, by its processes: not by what it says. What a process
    /// started is of it too.
    pub fn includes(&self, peer: &Peer) -> bool {
        let is_ours = |process: &ProcessId| self.processes.contains(process);
        peer.lineage.iter().any(|stat| is_ours(&stat.process) || self.session == Some(stat.session))
    }

    /// Which of its processes live: those that it was given with, else what is left in its
    /// session or control group. None: it is gone.
    ///
    /// # Errors
    /// Where `/proc` can't be read. It may live then.
    pub fn living(&self, proc: &Proc) -> io::Result<Vec<ProcessId>> {
        if self.boot != proc.boot_id()? {
            return Ok(Vec::new());
        }
        let lives = |process: &&ProcessId| {
            let stat = proc.stat(process.pid);
            stat.is_ok_and(|stat| stat.process == **process && !stat.ended)
        };
        let living: Vec<_> = self.processes.iter().filter(lives).copied().collect();
        if !living.is_empty() || self.container.is_none() {
            return Ok(living);
        }
        self.left(proc)
    }

    /// The processes that are left in its session or control group.
    fn left(&self, proc: &Proc) -> io::Result<Vec<ProcessId>> {
        let mut left = Vec::new();
        for pid in proc.pids()? {
            let Ok(stat) = proc.stat(pid) else { continue };
            let is_left = self.session == Some(stat.session) && self.is_ours(proc, pid)
                || self.by_cgroup && self.is_in_cgroup(proc, pid);
            if is_left && !stat.ended {
                left.push(stat.process);
            }
        }
        Ok(left)
    }

    /// Whether a process in a session of this number is of this container: as long as the session
    /// lives its number is nobody else's, but it may have ended unseen while no agent ran.
    fn is_ours(&self, proc: &Proc, pid: i32) -> bool {
        match proc.variable(pid, "CONTAINER_ID") {
            Ok(Some(id)) => Some(id) == self.container,
            // It hides or cleared it. Rather a device kept too long than one given twice.
            _ => true,
        }
    }

    fn is_in_cgroup(&self, proc: &Proc, pid: i32) -> bool {
        let Some(container) = self.container.as_deref() else { return false };
        proc.cgroups(pid).is_ok_and(|groups| {
            groups.iter().any(|group| group.path.split('/').any(|name| name == container))
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// This process as a holder.
    pub(in super::super) fn this_process() -> Holder {
        of(std::process::id().cast_signed(), None)
    }

    /// A process as a holder, of a container if one is named.
    pub(in super::super) fn of(pid: i32, container: Option<&str>) -> Holder {
        let proc = Proc::default();
        let stat = proc.stat(pid).unwrap();
        Holder {
            uid: rustix::process::geteuid().as_raw(),
            container: container.map(str::to_owned),
            boot: proc.boot_id().unwrap(),
            processes: vec![stat.process],
            session: container.map(|_| stat.session),
            by_cgroup: false,
        }
    }

    #[test]
    fn another_boot_or_a_younger_process_is_somebody_else() {
        let proc = Proc::default();
        let holder = this_process();
        assert_eq!(holder.living(&proc).unwrap(), holder.processes);
        let of_another_boot = Holder { boot: "x".to_owned(), ..holder.clone() };
        assert!(of_another_boot.living(&proc).unwrap().is_empty());
        let ProcessId { pid, start } = holder.processes[0];
        let younger = Holder { processes: vec![ProcessId { pid, start: start - 1 }], ..holder };
        assert!(younger.living(&proc).unwrap().is_empty());
    }

    #[test]
    fn a_container_lives_as_long_as_its_session() {
        let proc = Proc::default();
        // A session leader, and what it leaves behind.
        let script = "sleep 600 & echo $!; read line";
        let mut leader = Command::new("setsid")
            .args(["sh", "-c", script])
            .env("CONTAINER_ID", "container_1_1_1_1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = leader.stdout.take().unwrap();
        let left = std::io::BufRead::lines(std::io::BufReader::new(stdout)).next();
        let left: i32 = left.unwrap().unwrap().parse().unwrap();
        let holder = of(leader.id().cast_signed(), Some("container_1_1_1_1"));
        assert_eq!(holder.living(&proc).unwrap(), holder.processes);
        drop(leader.stdin.take());
        leader.wait().unwrap();
        let living = holder.living(&proc).unwrap();
        assert_eq!(living.iter().map(|process| process.pid).collect::<Vec<_>>(), [left]);
        let other = Holder { container: Some("container_1_1_1_2".to_owned()), ..holder.clone() };
        assert!(other.living(&proc).unwrap().is_empty());
        let killed = Command::new("kill").args(["-9", &left.to_string()]).status().unwrap();
        assert!(killed.success());
        while !holder.living(&proc).unwrap().is_empty() {
            std::thread::yield_now();
        }
    }
}
