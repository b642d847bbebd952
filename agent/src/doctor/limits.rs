//! Whether memory, open files and locked memory suffice.

use std::path::Path;

use creel_settings::{Memory, Settings, Size};

use super::{Finding, Limit, Node};

/// More than this share of the memory leaves too little to the agent, the client and the kernel.
const MOST_PERCENT: u64 = 90;
/// Descriptors that the agent needs for itself.
const OWN_FILES: u64 = 256;
/// An executor with a GPU locks buffers of this size, at least.
const LOCKED: u64 = 64 << 20;

pub(super) fn check(node: &Node, settings: &Settings, has_gpu: bool) -> Vec<Finding> {
    let mut findings = vec![memory(&node.root, settings), open_files(node.open_files, settings)];
    if has_gpu {
        findings.push(locked_memory(node.locked_memory));
    }
    findings
}

/// What `executor.memory` comes to, beside what there is.
fn memory(root: &Path, settings: &Settings) -> Finding {
    const CHECK: &str = "memory";
    let Some(node) = node_memory(root) else {
        return Finding::warning(CHECK, "/proc/meminfo can't be read", "mount /proc");
    };
    let limit = cgroup_limit(root).filter(|limit| *limit < node);
    let there = limit.unwrap_or(node);
    let wanted = settings.executor_memory.of(there);
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let whose = if limit.is_some() { "the cgroup" } else { "the node" };
    let what = format!("executor.memory is {}, {whose} has {}", gib(wanted), gib(there));
    let remedy = "lower executor.memory, or raise the limit (systemctl edit creeld: MemoryMax=)";
    if wanted > there {
        return Finding::error(CHECK, format!("{what}: the kernel will kill executors"), remedy);
    }
    let share = u128::from(wanted) * 100 > u128::from(there) * u128::from(MOST_PERCENT);
    if share && matches!(settings.executor_memory, Memory::Bytes(_) | Memory::Percent(91..)) {
        return Finding::warning(CHECK, format!("{what}: little is left for all else"), remedy);
    }
    Finding::ok(CHECK, what)
}

fn node_memory(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The lowest memory limit of this process's cgroup and those above it, of v2 or v1.
fn cgroup_limit(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let tree = root.join("sys/fs/cgroup");
    text.lines()
        .filter_map(|line| {
            // hierarchy:controllers:path (cgroups(7))
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let (tree, file) = match controllers {
                "" => (tree.clone(), "memory.max"),
                _ if controllers.split(',').any(|name| name == "memory") => {
                    (tree.join("memory"), "memory.limit_in_bytes")
                }
                _ => return None,
            };
            let group = tree.join(path.trim_start_matches('/'));
            let limits = group.ancestors().take_while(|group| group.starts_with(&tree));
            limits.filter_map(|group| read_number(&group.join(file))).min()
        })
        .min()
}

fn read_number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn open_files(limit: Limit, settings: &Settings) -> Finding {
    const CHECK: &str = "open files";
    let needed = settings.agent_max_attachments as u64 + OWN_FILES;
    match limit.hard {
        Some(hard) if hard < needed => Finding::warning(
            CHECK,
            format!(
                "a process may open {hard} files, and agent.max_attachments = {} needs {needed}",
                settings.agent_max_attachments
            ),
            "raise it (systemctl edit creeld: LimitNOFILE=), or lower agent.max_attachments",
        ),
        Some(hard) => Finding::ok(CHECK, format!("a process may open {hard} files")),
        None => Finding::ok(CHECK, "a process may open any number of files"),
    }
}

fn locked_memory(limit: Limit) -> Finding {
    const CHECK: &str = "locked memory";
    match limit.hard {
        Some(hard) if hard < LOCKED => Finding::warning(
            CHECK,
            format!(
                "a process may lock {}, and executors with a GPU lock {} and more",
                Size(hard),
                Size(LOCKED)
            ),
            "raise it (systemctl edit creeld: LimitMEMLOCK=infinity)",
        ),
        Some(hard) => Finding::ok(CHECK, format!("a process may lock {}", Size(hard))),
        None => Finding::ok(CHECK, "a process may lock any memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::write;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn settings(memory: Memory) -> Settings {
        Settings { executor_memory: memory, ..Settings::default() }
    }

    fn bytes(gib: u64) -> Settings {
        settings(Memory::Bytes(Size(gib * GIB)))
    }

    #[test]
    fn memory_is_measured_by_the_node_or_the_lower_cgroup() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        assert_eq!(memory(root, &bytes(1)).state, State::Warning);
        write(root, "proc/meminfo", "MemFree: 1 kB\nMemTotal:       16777216 kB\n");
        assert_eq!(memory(root, &settings(Memory::Percent(60))).state, State::Ok);
        assert_eq!(memory(root, &settings(Memory::Percent(95))).state, State::Warning);
        assert_eq!(memory(root, &bytes(15)).state, State::Warning);
        assert_eq!(memory(root, &bytes(17)).state, State::Error);

        write(root, "proc/self/cgroup", "0::/system.slice/creeld.service\n");
        write(root, "sys/fs/cgroup/system.slice/creeld.service/memory.max", "max\n");
        assert_eq!(memory(root, &bytes(10)).state, State::Ok);
        write(root, "sys/fs/cgroup/system.slice/memory.max", &format!("{}\n", 8 * GIB));
        let finding = memory(root, &bytes(10));
        assert_eq!(finding.state, State::Error);
        assert!(finding.what.contains("the cgroup has 8.0 GiB"), "{finding:?}");
        assert_eq!(memory(root, &settings(Memory::Percent(60))).state, State::Ok);
    }

    #[test]
    fn a_limit_of_cgroup_v1_counts() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        write(root, "proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n");
        write(root, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4096\n");
        write(root, "sys/fs/cgroup/cpu/a/memory.limit_in_bytes", "1\n");
        assert_eq!(cgroup_limit(root), Some(4096));
    }

    #[test]
    fn too_few_open_files_are_a_warning() {
        let settings = Settings::default();
        let limit = |hard| Limit { soft: Some(1024), hard };
        assert_eq!(open_files(limit(Some(4096)), &settings).state, State::Warning);
        assert_eq!(open_files(limit(Some(524_288)), &settings).state, State::Ok);
        assert_eq!(open_files(limit(None), &settings).state, State::Ok);
    }

    #[test]
    fn little_locked_memory_is_a_warning() {
        let limit = |hard| Limit { soft: Some(65_536), hard };
        assert_eq!(locked_memory(limit(Some(8 << 20))).state, State::Warning);
        assert_eq!(locked_memory(limit(None)).state, State::Ok);
    }
}
