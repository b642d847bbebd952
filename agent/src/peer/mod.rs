//! Who is at the other end of a connection: what the kernel says, never what the peer says.
//!
//! - [`proc`]: what `/proc` tells of a process.
//! - [`container`]: which YARN container a process is in, the manual of how that is told.
//! - [`ended`]: when a process ends.
//! - [`looks`]: how many looks at peers may be under way.

pub mod container;
pub mod ended;
pub mod looks;
pub mod proc;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use tokio::net::UnixStream;

pub use self::container::{Container, Unclear};
pub use self::ended::{Awaited, Ends};
pub use self::looks::Looks;
pub use self::proc::{Proc, ProcessId, Stat};

/// How long a look at a peer may take, with the wait for its turn. Parts of `/proc` read the process's own memory, and a
/// process can make that wait.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// Where control groups are mounted (cgroups(7)).
pub(crate) const CGROUPS: &str = "/sys/fs/cgroup";

/// The process at the other end of a Unix socket, as it was when it connected.
#[derive(Debug)]
pub struct Peer {
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// Its process.
    pub pid: i32,
    /// Its supplementary groups; empty where they can't be read.
    pub groups: Vec<u32>,
    /// Its working directory; absent where it can't be read.
    pub cwd: Option<PathBuf>,
    /// The YARN container that it is in; the error says why that can't be told.
    pub container: Result<Option<Container>, Unclear>,
    /// The process and its ancestors, itself first; empty where they can't be read.
    pub lineage: Vec<Stat>,
    /// Becomes readable when its process ends.
    pub pidfd: OwnedFd,
}

impl Peer {
    /// Looks at the peer of a connection. An error means that it has ended already, that it
    /// lives outside of the agent's PID namespace, or that it doesn't let itself be looked at.
    pub async fn of(stream: &UnixStream, proc: &Proc, looks: &Looks) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let pid = credentials.pid().filter(|pid| *pid > 0).ok_or_else(|| {
            io::Error::other("the process is in a PID namespace that the agent doesn't see")
        })?;
        let pidfd = pidfd(stream, pid)?;
        let (uid, gid) = (credentials.uid(), credentials.gid());
        let proc = proc.clone();
        let look = async {
            let under_way = looks.begin(uid).await;
            let look = tokio::task::spawn_blocking(move || {
                // Until this thread is free, however long somebody waits for what it finds.
                let _under_way = under_way;
                Self::look(&proc, pid, uid, gid, pidfd)
            });
            look.await.map_err(io::Error::other)?
        };
        match tokio::time::timeout(LOOK_TIMEOUT, look).await {
            Ok(looked) => looked,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("/proc did not answer for process {pid} within {LOOK_TIMEOUT:?}"),
            )),
        }
    }

    fn look(proc: &Proc, pid: i32, uid: u32, gid: u32, pidfd: OwnedFd) -> io::Result<Self> {
        // A process of another user is a younger one of the same number (see [`pidfd`]), or has
        // changed its user since: what is read of it says nothing of who connected.
        let groups = proc.groups_of(pid, uid).ok().flatten();
        let is_of_user = groups.is_some();
        let cwd = is_of_user.then(|| proc.cwd(pid).ok()).flatten();
        let lineage = if is_of_user { container::lineage(proc, pid) } else { Vec::new() };
        let container = container::container_of(proc, Path::new(CGROUPS), &lineage, uid);
        let groups = groups.unwrap_or_default();
        let peer = Self { uid, gid, pid, groups, cwd, container, lineage, pidfd };
        // Only if it still runs was the number its own all the while.
        if peer.has_ended()? { Err(ended(pid)) } else { Ok(peer) }
    }

    /// The name of the YARN container that it is in, if it is known to be in one.
    pub fn container_id(&self) -> Option<&str> {
        Some(self.container.as_ref().ok()?.as_ref()?.id.as_str())
    }

    fn has_ended(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(rustix::event::poll(&mut polled, Some(&at_once))? > 0)
    }
}

/// A descriptor of the process that connected: from the socket (`SO_PEERPIDFD`, Linux 6.5), else
/// by its number. There the number may have passed to a younger process: the uid that counts is
/// the socket's, and what `/proc` says counts only of a process of that uid.
fn pidfd(stream: &UnixStream, pid: i32) -> io::Result<OwnedFd> {
    use nix::errno::Errno;
    use nix::sys::socket::{getsockopt, sockopt::PeerPidfd};
    match getsockopt(stream, PeerPidfd) {
        Ok(pidfd) => Ok(pidfd),
        Err(Errno::ENOPROTOOPT) => {
            let pid = Pid::from_raw(pid).ok_or_else(|| ended(pid))?;
            Ok(rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK)?)
        }
        Err(Errno::ESRCH | Errno::EINVAL | Errno::ENODATA) => Err(ended(pid)),
        Err(error) => Err(error.into()),
    }
}

fn ended(pid: i32) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("process {pid} has ended"))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[tokio::test]
    async fn this_process_is_known() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&one, &Proc::default(), &Looks::default()).await.unwrap();
        assert_eq!(peer.pid, std::process::id().cast_signed());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.cwd, std::env::current_dir().ok());
        assert!(!peer.has_ended().unwrap());
    }

    #[tokio::test]
    async fn a_process_of_another_user_lends_neither_groups_nor_container() {
        let (one, _other) = UnixStream::pair().unwrap();
        let root = tempfile::tempdir().unwrap();
        let process = root.path().join(std::process::id().to_string());
        std::fs::create_dir(&process).unwrap();
        std::fs::write(
            process.join("stat"),
            "7 (x) S 0 0 7 0 -1 0 1 1 0 0 0 0 0 0 20 0 1 0 4711 1 1",
        )
        .unwrap();
        std::os::unix::fs::symlink("/tmp", process.join("cwd")).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        for (runs_as, groups) in [(uid, vec![4, 27]), (uid + 1, vec![])] {
            // Real, effective, saved, file system.
            let status = format!("Name:\tx\nUid:\t{uid}\t{runs_as}\t{uid}\t{uid}\nGroups:\t4 27\n");
            std::fs::write(process.join("status"), status).unwrap();
            let peer = Peer::of(&one, &Proc::at(root.path()), &Looks::default()).await.unwrap();
            assert_eq!((peer.uid, &peer.groups), (uid, &groups));
            assert_eq!(peer.lineage.len(), usize::from(runs_as == uid));
            assert_eq!(peer.cwd.is_some(), runs_as == uid);
        }
    }

    #[tokio::test]
    async fn a_process_that_has_ended_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let connect =
            "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])";
        let status = Command::new("python3")
            .args(["-c", connect])
            .arg(&path)
            .stderr(Stdio::inherit())
            .status()
            .unwrap();
        assert!(status.success());
        let (stream, _) = listener.accept().await.unwrap();
        let error = Peer::of(&stream, &Proc::default(), &Looks::default()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    }
}
