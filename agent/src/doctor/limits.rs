//! Whether memory, open files and locked memory suffice.

use std::path::Path;

use creel_settings::{Memory, Settings, Size};

use super::Finding;

/// More than this share of the memory leaves too little to the agent, the client and the kernel.
const MOST_PERCENT: u64 = 90;
/// Descriptors that the agent needs for itself.
const OWN_FILES: u64 = 256;
/// An executor with a GPU locks buffers of this size, at least.
const LOCKED: u64 = 64 << 20;

/// The process whose limits are looked at.
#[derive(Debug)]
struct Process<'a> {
    root: &'a Path,
    /// The agent, if one answers; its executors are limited as it is.
    agent: Option<u32>,
}

/// A limit of a process (getrlimit(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// No more than that.
    Of(u64),
    Unlimited,
}

impl Process<'_> {
    fn file(&self, name: &str) -> Option<String> {
        let process = self.agent.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
        std::fs::read_to_string(self.root.join("proc").join(process).join(name)).ok()
    }

    /// Its name in a sentence.
    fn name(&self) -> String {
        self.agent.map_or_else(
            || "this process (no agent answers, whose limits may be others)".to_owned(),
            |pid| format!("the agent (process {pid})"),
        )
    }

    /// What it may raise a limit to: the agent does.
    fn hard_limit(&self, name: &str) -> Option<Limit> {
        // Name, soft limit, hard limit, unit (proc_pid_limits(5)).
        let limits = self.file("limits")?;
        let hard = limits.lines().find_map(|line| line.strip_prefix(name))?;
        match hard.split_whitespace().nth(1)? {
            "unlimited" => Some(Limit::Unlimited),
            number => number.parse().ok().map(Limit::Of),
        }
    }
}

/// Looks at the agent's limits, or at those of this process where none answers.
pub(super) fn check(
    root: &Path,
    agent: Option<u32>,
    settings: &Settings,
    has_gpu: bool,
) -> Vec<Finding> {
    let process = Process { root, agent };
    let mut findings = vec![memory(&process, settings), open_files(&process, settings)];
    if has_gpu {
        findings.push(locked_memory(&process));
    }
    findings
}

/// What `executor.memory` comes to, beside what there is.
fn memory(process: &Process<'_>, settings: &Settings) -> Finding {
    const CHECK: &str = "memory";
    let Some(node) = node_memory(process.root) else {
        return Finding::warning(CHECK, "/proc/meminfo can't be read", "mount /proc");
    };
    let limit = cgroup_limit(process).filter(|limit| *limit < node);
    let there = limit.unwrap_or(node);
    let wanted = settings.executor_memory.of(there);
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let whose = match limit {
        Some(_) => format!("the cgroup of {}", process.name()),
        None => "the node".to_owned(),
    };
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

/// The lowest memory limit of a process's cgroup and those above it, of v2 or v1.
fn cgroup_limit(process: &Process<'_>) -> Option<u64> {
    let text = process.file("cgroup")?;
    let tree = process.root.join("sys/fs/cgroup");
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

fn open_files(process: &Process<'_>, settings: &Settings) -> Finding {
    const CHECK: &str = "open files";
    let needed = settings.agent_max_attachments as u64 + OWN_FILES;
    let who = process.name();
    match process.hard_limit("Max open files") {
        None => unreadable(CHECK, &who),
        Some(Limit::Of(hard)) if hard < needed => Finding::warning(
            CHECK,
            format!(
                "{who} may open {hard} files, and agent.max_attachments = {} needs {needed}",
                settings.agent_max_attachments
            ),
            "raise it (systemctl edit creeld: LimitNOFILE=), or lower agent.max_attachments",
        ),
        Some(Limit::Of(hard)) => Finding::ok(CHECK, format!("{who} may open {hard} files")),
        Some(Limit::Unlimited) => Finding::ok(CHECK, format!("{who} may open any number of files")),
    }
}

fn locked_memory(process: &Process<'_>) -> Finding {
    const CHECK: &str = "locked memory";
    let who = process.name();
    match process.hard_limit("Max locked memory") {
        None => unreadable(CHECK, &who),
        Some(Limit::Of(hard)) if hard < LOCKED => Finding::warning(
            CHECK,
            format!(
                "{who} may lock {}, and executors with a GPU lock {} and more",
                Size(hard),
                Size(LOCKED)
            ),
            "raise it (systemctl edit creeld: LimitMEMLOCK=infinity)",
        ),
        Some(Limit::Of(hard)) => Finding::ok(CHECK, format!("{who} may lock {}", Size(hard))),
        Some(Limit::Unlimited) => Finding::ok(CHECK, format!("{who} may lock any memory")),
    }
}

fn unreadable(check: &'static str, who: &str) -> Finding {
    Finding::warning(check, format!("the limits of {who} can't be read"), "mount /proc")
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
        let own = &Process { root, agent: None };
        assert_eq!(memory(own, &bytes(1)).state, State::Warning);
        write(root, "proc/meminfo", "MemFree: 1 kB\nMemTotal:       16777216 kB\n");
        assert_eq!(memory(own, &settings(Memory::Percent(60))).state, State::Ok);
        assert_eq!(memory(own, &settings(Memory::Percent(95))).state, State::Warning);
        assert_eq!(memory(own, &bytes(15)).state, State::Warning);
        assert_eq!(memory(own, &bytes(17)).state, State::Error);

        write(root, "proc/self/cgroup", "0::/system.slice/creeld.service\n");
        write(root, "sys/fs/cgroup/system.slice/creeld.service/memory.max", "max\n");
        assert_eq!(memory(own, &bytes(10)).state, State::Ok);
        write(root, "sys/fs/cgroup/system.slice/memory.max", &format!("{}\n", 8 * GIB));
        let finding = memory(own, &bytes(10));
        assert_eq!(finding.state, State::Error);
        assert!(finding.what.contains("has 8.0 GiB"), "{finding:?}");
        assert!(finding.what.contains("no agent answers"), "{finding:?}");
        assert_eq!(memory(own, &settings(Memory::Percent(60))).state, State::Ok);
    }

    #[test]
    fn a_limit_of_cgroup_v1_counts() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        write(root, "proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n");
        write(root, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4096\n");
        write(root, "sys/fs/cgroup/cpu/a/memory.limit_in_bytes", "1\n");
        assert_eq!(cgroup_limit(&Process { root, agent: None }), Some(4096));
    }

    /// `/proc/PID/limits` with these hard limits.
    fn limits(open_files: &str, locked_memory: &str) -> String {
        format!(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max open files            1024                 {open_files:20} files     \n\
             Max locked memory         65536                {locked_memory:20} bytes     \n"
        )
    }

    #[test]
    fn the_hard_limits_are_what_counts() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let own = &Process { root, agent: None };
        let settings = Settings::default();
        assert_eq!(open_files(own, &settings).state, State::Warning, "there is no /proc");
        for (files, locked, state) in [
            ("4096", "8388608", State::Warning),
            ("524288", "67108864", State::Ok),
            ("unlimited", "unlimited", State::Ok),
        ] {
            write(root, "proc/self/limits", &limits(files, locked));
            assert_eq!(open_files(own, &settings).state, state, "{files}");
            assert_eq!(locked_memory(own).state, state, "{locked}");
        }
    }

    #[test]
    fn an_agent_that_answers_is_measured_and_not_this_process() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        write(root, "proc/meminfo", "MemTotal:       16777216 kB\n");
        write(root, "proc/self/limits", &limits("1024", "1024"));
        write(root, "proc/self/cgroup", "0::/user.slice\n");
        write(root, "sys/fs/cgroup/user.slice/memory.max", "4096\n");
        write(root, "proc/42/limits", &limits("524288", "unlimited"));
        write(root, "proc/42/cgroup", "0::/system.slice\n");
        write(root, "sys/fs/cgroup/system.slice/memory.max", &format!("{}\n", 12 * GIB));
        let findings = check(root, Some(42), &bytes(10), true);
        assert_eq!(findings.len(), 3);
        for finding in &findings {
            assert_eq!(finding.state, State::Ok, "{finding:?}");
            assert!(finding.what.contains("the agent (process 42)"), "{finding:?}");
        }
        let own = check(root, None, &bytes(10), true);
        assert!(own.iter().all(|finding| finding.state != State::Ok), "{own:?}");
    }
}
