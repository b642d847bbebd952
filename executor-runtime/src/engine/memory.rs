//! How much memory there is to share: the node's, or the cgroup's where that is less.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of memory that this process may use: the least of the node's and of the limits of its
/// cgroup and the groups above (`memory.max` of cgroup v2, `memory.limit_in_bytes` of v1).
pub fn total() -> u64 {
    total_below(Path::new("/"))
}

fn total_below(root: &Path) -> u64 {
    let node = read(&root.join("proc/meminfo")).and_then(|text| meminfo_total(&text));
    let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(|line| limit_files(root, line));
    let cgroup = limits.filter_map(|file| read(&file)?.trim().parse().ok()).min();
    let least = node.into_iter().chain(cgroup).min();
    // A machine without /proc runs no executor; a GiB lets tests run there.
    least.unwrap_or(1 << 30)
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// `MemTotal` of proc(5) meminfo, which is in KiB.
fn meminfo_total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The files that may limit this process, for a line of `/proc/self/cgroup`
/// (`hierarchy:controllers:path`, cgroups(7)): the group's own and those of the groups above.
fn limit_files(root: &Path, line: &str) -> Vec<PathBuf> {
    let mut parts = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
    else {
        return Vec::new();
    };
    let (mount, file) = if controllers.is_empty() {
        ("sys/fs/cgroup", "memory.max")
    } else if controllers.split(',').any(|name| name == "memory") {
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
    } else {
        return Vec::new();
    };
    let group = Path::new(path.trim_start_matches('/'));
    group.ancestors().map(|group| root.join(mount).join(group).join(file)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn without_a_limit_it_is_the_node() {
        let root = node(&[
            ("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\n"),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ]);
        assert_eq!(total_below(root.path()), 1_024_000);
    }

    #[test]
    fn a_group_above_limits_too() {
        let root = node(&[
            ("proc/meminfo", "MemTotal: 1000 kB\n"),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "900000\n"),
            ("sys/fs/cgroup/a/memory.max", "5000\n"),
        ]);
        assert_eq!(total_below(root.path()), 5000);
    }

    #[test]
    fn cgroup_v1_has_a_file_of_its_own() {
        let root = node(&[
            ("proc/meminfo", "MemTotal: 1000 kB\n"),
            ("proc/self/cgroup", "5:devices:/x\n4:cpu,memory:/y\n"),
            ("sys/fs/cgroup/memory/y/memory.limit_in_bytes", "7000\n"),
        ]);
        assert_eq!(total_below(root.path()), 7000);
    }
}
