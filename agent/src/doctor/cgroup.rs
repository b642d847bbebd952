//! Which cgroups the node has, and so which isolation of GPUs is possible.
//!
//! YARN keeps containers from each other's GPUs with the devices controller of cgroup v1 alone:
//! v2 has none, and YARN brings no BPF filter in its place (Hadoop,
//! `CGroupsHandler.CGroupController.DEVICES`).

use std::path::Path;

use super::Finding;

const CHECK: &str = "cgroup";

/// The layouts of `/sys/fs/cgroup` (systemd, "Control Group APIs and Delegation").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// One tree of v2.
    Unified,
    /// Controllers in trees of v1, and a tree of v2 beside them.
    Hybrid,
    /// Trees of v1.
    Legacy,
    None,
}

pub(super) fn check(root: &Path, has_gpu: bool) -> Finding {
    let tree = root.join("sys/fs/cgroup");
    let devices = tree.join("devices").is_dir();
    match layout(&tree) {
        Layout::Unified if has_gpu => Finding::warning(
            CHECK,
            "cgroup v2: YARN can't keep a container from another's GPU, and with LinuxContainerExecutor its GPU plugin \
             does not start",
            "boot with systemd.unified_cgroup_hierarchy=0 for that isolation",
        ),
        Layout::Unified => {
            Finding::ok(CHECK, "cgroup v2: memory and processors of containers are limited")
        }
        Layout::Hybrid | Layout::Legacy if has_gpu && !devices => Finding::warning(
            CHECK,
            "cgroup v1 without the devices controller: YARN can't keep a container from another's GPU",
            "mount it: mkdir /sys/fs/cgroup/devices && mount -t cgroup -o devices none /sys/fs/cgroup/devices",
        ),
        Layout::Hybrid => Finding::ok(
            CHECK,
            "cgroup v1 and v2 (hybrid): YARN uses the controllers of v1, devices among them",
        ),
        Layout::Legacy => {
            Finding::ok(CHECK, "cgroup v1: YARN can isolate GPUs by its devices controller")
        }
        Layout::None => Finding::warning(
            CHECK,
            format!(
                "no cgroup is mounted at {}: containers are neither limited nor isolated",
                tree.display()
            ),
            "boot with an init system that mounts them, such as systemd",
        ),
    }
}

fn layout(tree: &Path) -> Layout {
    let v1 = ["devices", "memory", "cpu", "systemd"].iter().any(|name| tree.join(name).is_dir());
    if tree.join("cgroup.controllers").exists() {
        Layout::Unified
    } else if tree.join("unified/cgroup.procs").exists() {
        Layout::Hybrid
    } else if v1 {
        Layout::Legacy
    } else {
        Layout::None
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::write;
    use super::*;

    #[test]
    fn each_layout_is_told_and_judged_by_whether_there_is_a_gpu() {
        for (files, has_gpu, state, words) in [
            (&["cgroup.controllers"][..], false, State::Ok, "cgroup v2"),
            (&["cgroup.controllers"], true, State::Warning, "cgroup v2"),
            (&["unified/cgroup.procs", "devices/tasks"], true, State::Ok, "hybrid"),
            (&["devices/tasks", "memory/tasks"], true, State::Ok, "cgroup v1:"),
            (&["memory/tasks"], true, State::Warning, "without the devices"),
            (&["memory/tasks"], false, State::Ok, "cgroup v1:"),
            (&[], false, State::Warning, "no cgroup"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            for file in files {
                write(directory.path(), &format!("sys/fs/cgroup/{file}"), "");
            }
            let finding = check(directory.path(), has_gpu);
            assert_eq!(finding.state, state, "{files:?}: {finding:?}");
            assert!(finding.what.contains(words), "{files:?}: {finding:?}");
        }
    }
}
