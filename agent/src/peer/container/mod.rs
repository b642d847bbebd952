//! Which YARN container a process is in.
//!
//! ```text
//!   NodeManager (java)                    started by the operator, as another user or the same
//!     └─ launch script, or container-executor    TOP: named by its CONTAINER_ID or its arguments
//!          └─ session leader                     the one that the NodeManager's pid file names
//!               └─ … ─ the process that asks     says nothing that counts
//! ```
//!
//! Never from the process's own environment, which it sets as it likes:
//!
//! 1. from the name of its control group (`/hadoop-yarn/container_…`), where YARN makes them and
//!    the user could not have (`cgroup`);
//! 2. from the process just below the **outermost** NodeManager among its ancestors, so that a
//!    NodeManager made up inside of a container counts for nothing (`node_manager`);
//! 3. where the NodeManager is gone and its containers live on (work-preserving restart), from an
//!    ancestor that a pid file of the NodeManager names (`pid_file`), if the user could not have
//!    made that file.
//!
//! In the second case the pid file has to agree, where the agent can read it. A container's name
//! counts together with the uid, which the kernel gives.

mod cgroup;
mod node_manager;
mod pid_file;

use std::fmt;
use std::path::{Path, PathBuf};

use self::pid_file::PidFile;
use super::proc::{Proc, ProcessId, Stat};

/// More ancestors than any process has: ends a walk that a changing tree leads in a circle.
const MAX_ANCESTORS: usize = 64;

/// A YARN container that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its id, as `container_e17_1410901177871_0001_01_000005`.
    pub id: String,
    /// The processes that it lives as long as: the one just below the NodeManager, and the one
    /// that the NodeManager's pid file names.
    pub processes: Vec<ProcessId>,
    /// The session that its processes are in, as long as they start none of their own.
    pub session: Option<i32>,
    /// Whether it was told by a control group.
    pub by_cgroup: bool,
    /// The user of its NodeManager, and the local directory by whose pid file it was confirmed;
    /// absent where that is not known.
    pub manager: Option<u32>,
    /// See [`Container::manager`].
    pub local_dir: Option<PathBuf>,
    /// Its control group of the `devices` controller (v1), relative to the controller's root.
    pub devices_group: Option<String>,
}

/// Why it can't be told which container a process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclear(pub String);

impl fmt::Display for Unclear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A process and its ancestors, itself first.
pub fn lineage(proc: &Proc, pid: i32) -> Vec<Stat> {
    let mut lineage: Vec<Stat> = Vec::new();
    let mut next = Some(pid);
    while let Some(pid) = next.filter(|_| lineage.len() < MAX_ANCESTORS) {
        let Ok(stat) = proc.stat(pid) else { break };
        lineage.push(stat);
        next = stat.parent;
    }
    lineage
}

/// The YARN container of a process of user `uid`, whose [`lineage`] this is; `None`: it is in none.
///
/// # Errors
/// [`Unclear`] where it is below a NodeManager, and what is seen doesn't fit together.
pub fn container_of(
    proc: &Proc,
    cgroups: &Path,
    lineage: &[Stat],
    uid: u32,
) -> Result<Option<Container>, Unclear> {
    let Some(peer) = lineage.first() else { return Ok(None) };
    let by_cgroup = cgroup::name(proc, cgroups, peer.process.pid, uid);
    let outermost = lineage.iter().rposition(|stat| node_manager::is_one(proc, stat.process.pid));
    let below = match outermost {
        Some(at) if at > 0 => Some((&lineage[..at], lineage[at])),
        _ => None,
    };
    let devices_group = by_cgroup.as_ref().and_then(|found| found.devices.clone());
    let is_by_cgroup = by_cgroup.is_some();
    let Some((inside, node_manager)) = below else {
        if let Some(found) = by_cgroup {
            return Ok(Some(Container {
                id: found.id,
                processes: Vec::new(),
                session: Some(peer.session),
                by_cgroup: true,
                manager: None,
                local_dir: None,
                devices_group,
            }));
        }
        return Ok(orphan(proc, lineage, uid));
    };
    let top = inside[inside.len() - 1];
    let id = match by_cgroup {
        Some(found) => found.id,
        None => node_manager::container_below(proc, top.process.pid)?,
    };
    let manager = proc.users(node_manager.process.pid).map_or(uid, |users| users[1]);
    let (named, local_dir) = match PidFile::look(proc, top.process.pid, &id, |of| of == manager) {
        PidFile::Unreadable => (None, None),
        PidFile::Names(pid, local_dir) => {
            let named = member(inside, pid).ok_or_else(|| {
                Unclear(format!(
                    "the NodeManager's pid file of {id} names process {pid}, and process {} is \
                     not below that one: it is in another container than it says",
                    peer.process.pid
                ))
            });
            (Some(named?), Some(local_dir))
        }
        PidFile::Missing => {
            return Err(Unclear(format!(
                "the NodeManager has no pid file of {id}, which process {} is in by its \
                 environment: that container does not run, or has just ended",
                top.process.pid
            )));
        }
    };
    let mut processes = vec![top.process];
    processes.extend(named.filter(|named| *named != top.process));
    // On a node without setsid(1), containers are in the NodeManager's session.
    let session = Some(peer.session).filter(|session| *session != node_manager.session);
    Ok(Some(Container {
        id,
        processes,
        session,
        by_cgroup: is_by_cgroup,
        manager: Some(manager),
        local_dir,
        devices_group,
    }))
}

/// The container of a process whose NodeManager is gone: the outermost one that a pid file
/// confirms. A file in a directory of the peer's own user confirms nothing, unless there is nobody
/// to be kept from anything: the agent's own user, which is root's on a real node.
fn orphan(proc: &Proc, lineage: &[Stat], uid: u32) -> Option<Container> {
    let is_trusted = uid == rustix::process::geteuid().as_raw();
    let peer = lineage.first()?;
    lineage.iter().rev().find_map(|stat| {
        let id = proc.variable(stat.process.pid, "CONTAINER_ID").ok().flatten()?;
        if !is_container_id(&id) {
            return None;
        }
        let is_manager = |owner| is_trusted || owner != uid;
        let looked = PidFile::look(proc, stat.process.pid, &id, is_manager);
        let PidFile::Names(pid, local_dir) = looked else { return None };
        let named = member(lineage, pid)?;
        Some(Container {
            id,
            processes: vec![named],
            session: Some(peer.session),
            by_cgroup: false,
            manager: None,
            local_dir: Some(local_dir),
            devices_group: None,
        })
    })
}

/// The process of that number, if it is one of these or leads a session of one of these.
fn member(lineage: &[Stat], pid: i32) -> Option<ProcessId> {
    let found = lineage.iter().find(|stat| stat.process.pid == pid);
    found.map(|stat| stat.process).or_else(|| {
        // It has ended, and what it left is in its session. The kernel gives nobody its number
        // as long as that is so.
        let led = lineage.iter().any(|stat| stat.session == pid);
        led.then_some(ProcessId { pid, start: 0 })
    })
}

/// Whether this is a container's name as YARN writes it:
/// `container_[eEPOCH_]CLUSTERTIME_APPLICATION_ATTEMPT_CONTAINER`
/// (`org.apache.hadoop.yarn.api.records.ContainerId`).
pub fn is_container_id(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("container_") else { return false };
    let is_number =
        |field: &str| !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_digit());
    let mut fields: Vec<&str> = rest.split('_').collect();
    if let Some(epoch) = fields.first().and_then(|field| field.strip_prefix('e')) {
        if !is_number(epoch) {
            return false;
        }
        fields.remove(0);
    }
    fields.len() == 4 && fields.into_iter().all(is_number)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::node_manager::CLASS;
    use super::*;
    use crate::yarn::container_id::ContainerId;

    const ID: &str = "container_e17_1410901177871_0001_01_000005";
    const OTHER: &str = "container_1410901177871_0001_01_000006";
    /// The user that asks, and the one that the NodeManager runs as.
    const ANN: u32 = 54_321;
    const YARN: u32 = 54_322;

    #[derive(Clone, Copy)]
    struct Process<'a> {
        pid: i32,
        parent: i32,
        session: i32,
        uid: u32,
        program: &'a str,
        arguments: &'a [&'a str],
        environment: &'a str,
        cgroup: &'a str,
    }

    const PROCESS: Process<'static> = Process {
        pid: 0,
        parent: 0,
        session: 50,
        uid: ANN,
        program: "/bin/bash",
        arguments: &[],
        environment: "",
        cgroup: "0::/\n",
    };

    const NODE_MANAGER: Process<'static> = Process {
        pid: 10,
        parent: 1,
        session: 10,
        uid: YARN,
        program: "/usr/lib/jvm/jre/bin/java",
        arguments: &["/usr/lib/jvm/jre/bin/java", "-Xmx1000m", CLASS],
        ..PROCESS
    };

    struct Node {
        dir: tempfile::TempDir,
    }

    impl Node {
        fn of(processes: &[Process<'_>]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("cgroup")).unwrap();
            for process in processes {
                let of = dir.path().join(process.pid.to_string());
                fs::create_dir(&of).unwrap();
                let Process { pid, parent, session, uid, .. } = process;
                let rest = "0 -1 0 1 1 0 0 0 0 0 0 20 0 1 0 4711 1 1";
                fs::write(of.join("stat"), format!("{pid} (x) S {parent} 0 {session} {rest}"))
                    .unwrap();
                fs::write(of.join("status"), format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n"))
                    .unwrap();
                fs::write(of.join("cmdline"), process.arguments.join("\0") + "\0").unwrap();
                fs::write(of.join("environ"), process.environment).unwrap();
                fs::write(of.join("cgroup"), process.cgroup).unwrap();
                symlink(process.program, of.join("exe")).unwrap();
            }
            Self { dir }
        }

        fn cgroup(&self, path: &str) {
            fs::create_dir_all(self.dir.path().join("cgroup").join(path)).unwrap();
        }

        /// The variables of a container, with local directories here.
        fn environment(&self, id: &str) -> String {
            let local = self.local();
            format!("CONTAINER_ID={id}\0LOCAL_DIRS=/none/usercache/ann,{local}/usercache/ann\0")
        }

        fn local(&self) -> String {
            self.dir.path().join("local").display().to_string()
        }

        fn private(&self) -> PathBuf {
            self.dir.path().join("local/nmPrivate")
        }

        fn pid_file(&self, id: &str, pid: i32) {
            let application = id.parse::<ContainerId>().unwrap().application();
            let dir = self.private().join(application).join(id);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(format!("{id}.pid")), format!("{pid}\n")).unwrap();
        }

        fn set(&self, pid: i32, environment: &str) {
            fs::write(self.dir.path().join(pid.to_string()).join("environ"), environment).unwrap();
        }

        fn found(&self) -> Result<Option<Container>, Unclear> {
            let proc = Proc::at(self.dir.path());
            let lineage = lineage(&proc, 100);
            container_of(&proc, &self.dir.path().join("cgroup"), &lineage, ANN)
        }

        fn id(&self) -> Option<String> {
            self.found().unwrap().map(|container| container.id)
        }
    }

    fn process(pid: i32) -> ProcessId {
        ProcessId { pid, start: 4711 }
    }

    #[test]
    fn cgroup_names_it() {
        let v1 = format!("4:devices:/hadoop-yarn/{ID}\n0::/system.slice\n");
        let node = Node::of(&[Process { pid: 100, cgroup: &v1, ..PROCESS }]);
        node.cgroup(&format!("devices/hadoop-yarn/{ID}"));
        let found = node.found().unwrap().unwrap();
        assert_eq!(found.id, ID);
        assert_eq!(found.devices_group, Some(format!("/hadoop-yarn/{ID}")));
        let v2 = format!("0::/hadoop-yarn/{ID}/inner\n");
        let node = Node::of(&[Process { pid: 100, cgroup: &v2, ..PROCESS }]);
        node.cgroup(&format!("hadoop-yarn/{ID}"));
        assert_eq!(node.id().as_deref(), Some(ID));
    }

    #[test]
    fn a_group_that_the_user_made_does_not_count() {
        let made = format!("0::/user.slice/user-1000.slice/user@1000.service/hadoop-yarn/{ID}\n");
        let node = Node::of(&[Process { pid: 100, cgroup: &made, ..PROCESS }]);
        assert_eq!(node.id(), None);
        // One whose directory is the user's own, or is not there.
        let made = format!("4:devices:/delegated/{ID}\n");
        let node = Node::of(&[Process { pid: 100, cgroup: &made, ..PROCESS }]);
        assert_eq!(node.id(), None);
        node.cgroup(&format!("devices/delegated/{ID}"));
        let owner = node.dir.path().metadata().unwrap().uid();
        let proc = Proc::at(node.dir.path());
        let cgroups = node.dir.path().join("cgroup");
        let of = |uid| cgroup::name(&proc, &cgroups, 100, uid).is_some();
        assert_eq!((of(owner), of(owner + 1)), (owner == 0, true));
    }

    #[test]
    fn the_process_below_the_node_manager_names_it_and_the_peer_itself_does_not() {
        let environment = format!("HOME=/\0CONTAINER_ID={ID}\0");
        let own = format!("CONTAINER_ID={OTHER}\0");
        let node = Node::of(&[
            NODE_MANAGER,
            Process { pid: 50, parent: 10, session: 10, environment: &environment, ..PROCESS },
            Process { pid: 70, parent: 50, session: 70, environment: &own, ..PROCESS },
            Process { pid: 100, parent: 70, session: 70, environment: &own, ..PROCESS },
        ]);
        let found = node.found().unwrap().unwrap();
        assert_eq!((found.id.as_str(), found.processes), (ID, vec![process(50)]));
        assert_eq!(found.session, Some(70));
    }

    #[test]
    fn a_node_manager_made_up_in_a_container_counts_for_nothing() {
        let (own, forged) = (format!("CONTAINER_ID={ID}\0"), format!("CONTAINER_ID={OTHER}\0"));
        let node = Node::of(&[
            NODE_MANAGER,
            Process { pid: 50, parent: 10, environment: &own, ..PROCESS },
            Process { pid: 60, parent: 50, uid: YARN, ..NODE_MANAGER },
            Process { pid: 70, parent: 60, environment: &forged, ..PROCESS },
            Process { pid: 100, parent: 70, ..PROCESS },
        ]);
        assert_eq!(node.id().as_deref(), Some(ID));
    }

    #[test]
    fn a_program_that_only_looks_like_one_is_none() {
        let environment = format!("CONTAINER_ID={ID}\0");
        for fake in [
            // A set-user-id program under any name and with any arguments.
            Process { program: "/usr/bin/su", ..NODE_MANAGER },
            Process { arguments: &["java", "Other"], ..NODE_MANAGER },
            Process { arguments: &["java", "-cp", CLASS, "Other", CLASS], ..NODE_MANAGER },
        ] {
            let node = Node::of(&[
                fake,
                Process { pid: 50, parent: 10, environment: &environment, ..PROCESS },
                Process { pid: 100, parent: 50, ..PROCESS },
            ]);
            assert_eq!(node.id(), None, "{:?} {:?}", fake.program, fake.arguments);
        }
    }

    #[test]
    fn the_pid_file_has_to_agree() {
        let node = Node::of(&[
            NODE_MANAGER,
            Process { pid: 50, parent: 10, session: 10, ..PROCESS },
            Process { pid: 70, parent: 50, session: 70, ..PROCESS },
            Process { pid: 100, parent: 70, session: 70, ..PROCESS },
        ]);
        let owner = node.dir.path().metadata().unwrap().uid();
        let status = format!("Uid:\t{owner}\t{owner}\t{owner}\t{owner}\n");
        fs::write(node.dir.path().join("10/status"), status).unwrap();
        node.set(50, &node.environment(ID));
        // No private directory at all: nothing to compare with.
        assert_eq!(node.id().as_deref(), Some(ID));
        // A private directory, and no such container in it.
        fs::create_dir_all(node.private()).unwrap();
        let error = node.found().unwrap_err().to_string();
        assert!(error.contains("no pid file") && error.contains(ID), "{error}");
        node.pid_file(ID, 70);
        let found = node.found().unwrap().unwrap();
        assert_eq!(found.processes, [process(50), process(70)]);
        // Another container's process.
        node.pid_file(ID, 71);
        let error = node.found().unwrap_err().to_string();
        assert!(error.contains("names process 71"), "{error}");
    }

    #[test]
    fn who_outlives_the_node_manager_is_known_by_its_pid_file() {
        let node = Node::of(&[
            Process { pid: 1, ..PROCESS },
            Process { pid: 70, parent: 1, session: 70, ..PROCESS },
            Process { pid: 100, parent: 70, session: 70, ..PROCESS },
        ]);
        node.set(70, &node.environment(ID));
        assert_eq!(node.id(), None);
        node.pid_file(ID, 70);
        let found = node.found().unwrap().unwrap();
        assert_eq!((found.id.as_str(), found.processes), (ID, vec![process(70)]));
        node.pid_file(ID, 71);
        assert_eq!(node.id(), None);
        // A file that the user could have made.
        node.pid_file(ID, 70);
        let proc = Proc::at(node.dir.path());
        let lineage = lineage(&proc, 100);
        let owner = node.dir.path().metadata().unwrap().uid();
        let trusted = owner == rustix::process::geteuid().as_raw();
        assert_eq!(orphan(&proc, &lineage, owner).is_some(), trusted);
        assert!(orphan(&proc, &lineage, owner + 1).is_some());
        for path in [node.private(), node.dir.path().join("local")] {
            if std::os::unix::fs::chown(path, Some(ANN), None).is_err() {
                return;
            }
        }
        assert_eq!(orphan(&proc, &lineage, ANN), None);
    }

    #[test]
    fn container_executor_has_it_in_its_arguments() {
        let work = format!("/data/usercache/ann/appcache/application_1410901177871_0001/{ID}");
        let arguments = [
            "/usr/bin/container-executor",
            "yarn",
            "ann",
            "1",
            "application_1410901177871_0001",
            ID,
            &work,
        ];
        let node = Node::of(&[
            NODE_MANAGER,
            Process { pid: 50, parent: 10, arguments: &arguments, ..PROCESS },
            Process { pid: 100, parent: 50, ..PROCESS },
        ]);
        assert_eq!(node.id().as_deref(), Some(ID));
    }

    #[test]
    fn below_a_node_manager_without_a_name_is_unclear() {
        let node = Node::of(&[
            NODE_MANAGER,
            Process { pid: 50, parent: 10, ..PROCESS },
            Process { pid: 100, parent: 50, ..PROCESS },
        ]);
        let error = node.found().unwrap_err().to_string();
        assert!(error.contains("process 50"), "{error}");
    }

    #[test]
    fn without_a_node_manager_there_is_none() {
        let own = format!("CONTAINER_ID={OTHER}\0");
        let node = Node::of(&[
            Process { pid: 1, parent: 0, ..PROCESS },
            Process { pid: 10, parent: 1, arguments: &["grep", CLASS], ..PROCESS },
            Process { pid: 100, parent: 10, environment: &own, ..PROCESS },
        ]);
        assert_eq!(node.id(), None);
    }

    #[test]
    fn a_circle_ends() {
        let node = Node::of(&[
            Process { pid: 50, parent: 100, ..PROCESS },
            Process { pid: 100, parent: 50, ..PROCESS },
        ]);
        assert_eq!(node.id(), None);
    }

    #[test]
    fn names() {
        assert!(is_container_id(ID) && is_container_id(OTHER));
        for name in [
            "container_",
            "container_1_2_3",
            "container_1_2_3_4_5",
            "container_e_1_2_3_4",
            "container_1_2_3_x",
            "container_1410901177871_0001_01_000006x",
            "application_1410901177871_0001",
        ] {
            assert!(!is_container_id(name), "{name}");
        }
    }
}
