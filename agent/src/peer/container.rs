//! Which YARN container a process is in.
//!
//! Never from the process's own environment, which it sets as it likes:
//!
//! 1. where YARN makes control groups, from the name of the process's own
//!    (`/hadoop-yarn/container_…`);
//! 2. else from the process just below the `NodeManager` among its ancestors, which
//!    that one itself started: `CONTAINER_ID` of its environment, or, as `container-executor`
//!    is started without one, the container's name in its arguments.
//!
//! A user can still make up such an ancestor for processes of their own. So a container's name
//! counts together with the uid, which the kernel gives.

use super::proc::Proc;

/// The class that a `NodeManager`'s `java` is started with.
const NODE_MANAGER: &str = "org.apache.hadoop.yarn.server.nodemanager.NodeManager";

/// More ancestors than any process has: ends a walk that a changing tree leads in a circle.
const MAX_ANCESTORS: usize = 64;

/// The YARN container of a process, if it is in one.
pub fn container_of(proc: &Proc, pid: i32) -> Option<String> {
    from_cgroup(proc, pid).or_else(|| from_ancestors(proc, pid))
}

fn from_cgroup(proc: &Proc, pid: i32) -> Option<String> {
    proc.cgroups(pid).ok()?.iter().find_map(|path| {
        path.split('/')
            // Below its own manager a user makes what groups they like.
            .take_while(|name| !name.starts_with("user@"))
            .find(|name| is_container_id(name))
            .map(str::to_owned)
    })
}

fn from_ancestors(proc: &Proc, pid: i32) -> Option<String> {
    let mut child = pid;
    for _ in 0..MAX_ANCESTORS {
        let parent = proc.parent(child).ok()??;
        if is_node_manager(proc, parent) {
            return from_below_node_manager(proc, child);
        }
        child = parent;
    }
    None
}

fn is_node_manager(proc: &Proc, pid: i32) -> bool {
    let Ok(arguments) = proc.arguments(pid) else { return false };
    let java = arguments.first().is_some_and(|name| name.rsplit('/').next() == Some("java"));
    java && arguments.iter().any(|argument| argument == NODE_MANAGER)
}

fn from_below_node_manager(proc: &Proc, pid: i32) -> Option<String> {
    let variable = proc.variable(pid, "CONTAINER_ID").ok().flatten();
    variable.filter(|id| is_container_id(id)).or_else(|| {
        let arguments = proc.arguments(pid).ok()?;
        arguments
            .iter()
            .flat_map(|argument| argument.split('/'))
            .find(|name| is_container_id(name))
            .map(str::to_owned)
    })
}

/// Whether this is a container's name as YARN writes it:
/// `container_[eEPOCH_]CLUSTERTIME_APPLICATION_ATTEMPT_CONTAINER`
/// (`org.apache.hadoop.yarn.api.records.ContainerId`).
pub fn is_container_id(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("container_") else { return false };
    let number = |field: &str| !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_digit());
    let mut fields: Vec<&str> = rest.split('_').collect();
    if let Some(epoch) = fields.first().and_then(|field| field.strip_prefix('e')) {
        if !number(epoch) {
            return false;
        }
        fields.remove(0);
    }
    fields.len() == 4 && fields.into_iter().all(number)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const ID: &str = "container_e17_1410901177871_0001_01_000005";
    const OTHER: &str = "container_1410901177871_0001_01_000006";

    struct Process<'a> {
        pid: i32,
        parent: i32,
        arguments: &'a [&'a str],
        environment: &'a str,
        cgroup: &'a str,
    }

    const PROCESS: Process<'static> =
        Process { pid: 0, parent: 0, arguments: &[], environment: "", cgroup: "0::/\n" };

    fn write(root: &Path, process: &Process<'_>) {
        let dir = root.join(process.pid.to_string());
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("stat"), format!("{} (x) S {} 0", process.pid, process.parent)).unwrap();
        fs::write(dir.join("cmdline"), process.arguments.join("\0") + "\0").unwrap();
        fs::write(dir.join("environ"), process.environment).unwrap();
        fs::write(dir.join("cgroup"), process.cgroup).unwrap();
    }

    fn found(processes: &[Process<'_>]) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        for process in processes {
            write(root.path(), process);
        }
        container_of(&Proc::at(root.path()), 100)
    }

    fn node_manager() -> Process<'static> {
        Process {
            pid: 10,
            parent: 1,
            arguments: &["/usr/lib/jvm/jre/bin/java", "-Xmx1000m", NODE_MANAGER],
            ..PROCESS
        }
    }

    #[test]
    fn cgroup_names_it() {
        let v1 = format!("4:devices:/hadoop-yarn/{ID}\n0::/system.slice\n");
        assert_eq!(found(&[Process { pid: 100, cgroup: &v1, ..PROCESS }]).as_deref(), Some(ID));
        let v2 = format!("0::/hadoop-yarn/{ID}/inner\n");
        assert_eq!(found(&[Process { pid: 100, cgroup: &v2, ..PROCESS }]).as_deref(), Some(ID));
    }

    #[test]
    fn a_group_that_the_user_made_does_not_count() {
        let made = format!("0::/user.slice/user-1000.slice/user@1000.service/hadoop-yarn/{ID}\n");
        assert_eq!(found(&[Process { pid: 100, cgroup: &made, ..PROCESS }]), None);
    }

    #[test]
    fn the_process_below_the_node_manager_names_it_and_the_peer_itself_does_not() {
        let environment = format!("HOME=/\0CONTAINER_ID={ID}\0");
        let own = format!("CONTAINER_ID={OTHER}\0");
        let tree = [
            node_manager(),
            Process { pid: 50, parent: 10, environment: &environment, ..PROCESS },
            Process { pid: 70, parent: 50, environment: &own, ..PROCESS },
            Process { pid: 100, parent: 70, environment: &own, ..PROCESS },
        ];
        assert_eq!(found(&tree).as_deref(), Some(ID));
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
        let tree = [
            node_manager(),
            Process { pid: 50, parent: 10, arguments: &arguments, ..PROCESS },
            Process { pid: 100, parent: 50, ..PROCESS },
        ];
        assert_eq!(found(&tree).as_deref(), Some(ID));
    }

    #[test]
    fn without_a_node_manager_there_is_none() {
        let own = format!("CONTAINER_ID={OTHER}\0");
        let tree = [
            Process { pid: 1, parent: 0, ..PROCESS },
            Process { pid: 10, parent: 1, arguments: &["grep", NODE_MANAGER], ..PROCESS },
            Process { pid: 100, parent: 10, environment: &own, ..PROCESS },
        ];
        assert_eq!(found(&tree), None);
    }

    #[test]
    fn a_circle_ends() {
        let tree = [
            Process { pid: 50, parent: 100, ..PROCESS },
            Process { pid: 100, parent: 50, ..PROCESS },
        ];
        assert_eq!(found(&tree), None);
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
