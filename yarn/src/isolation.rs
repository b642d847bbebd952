//! Which isolation of GPUs is possible on this machine.
//!
//! YARN keeps a container from other containers' GPUs by the devices controller of cgroup v1,
//! written by the setuid program `container-executor`, and only under LinuxContainerExecutor
//! (`GpuResourceHandlerImpl`, `CGroupsHandler.CGroupController.DEVICES`). Of cgroup v2 it has
//! nothing for devices. What is half configured is worse than nothing: the NodeManager does not
//! start, or no container does. So what is missing is found before the plugin is enabled.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::daemons::{self, Daemon};
use crate::effective::Effective;

const LCE: &str = "yarn.nodemanager.linux-container-executor.";

/// What starts containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Executor {
    /// `DefaultContainerExecutor`: no isolation.
    Default,
    /// `LinuxContainerExecutor`.
    Linux,
    /// Another class.
    Other(String),
}

/// The control groups of the machine (systemd, "Control Group APIs and Delegation").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cgroup {
    /// Trees of v1, perhaps with one of v2 beside them.
    V1,
    /// One tree of v2.
    V2,
    /// None is mounted.
    None,
}

/// What is possible, and what stands in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Isolation {
    /// What starts containers.
    pub executor: Executor,
    /// The machine's control groups.
    pub cgroup: Cgroup,
    /// Whether YARN will keep containers from each other's GPUs.
    pub isolates: bool,
    /// The same in words.
    pub summary: String,
    /// With these, and the plugin, the NodeManager or its containers would not start; each with
    /// what to do.
    pub obstacles: Vec<String>,
    /// What could not be found out, and matters.
    pub notices: Vec<String>,
}

/// What starts containers, by the configuration.
pub fn executor(effective: &Effective) -> Executor {
    let class = effective.get("yarn.nodemanager.container-executor.class").unwrap_or_default();
    match class.trim().rsplit('.').next().unwrap_or_default() {
        "" | "DefaultContainerExecutor" => Executor::Default,
        "LinuxContainerExecutor" => Executor::Linux,
        _ => Executor::Other(class.trim().to_owned()),
    }
}

/// Looks at the machine below a root (`/`), with the configuration that would hold.
pub fn examine(effective: &Effective, conf_dir: &Path, root: &Path) -> Isolation {
    let cgroup = cgroup(root);
    let executor = executor(effective);
    let mut isolation = Isolation {
        isolates: false,
        summary: String::new(),
        obstacles: Vec::new(),
        notices: Vec::new(),
        executor,
        cgroup,
    };
    match &isolation.executor {
        Executor::Default => {
            let possible = match cgroup {
                Cgroup::V1 => {
                    "LinuxContainerExecutor could isolate them by the devices controller of \
                     cgroup v1"
                }
                Cgroup::V2 => {
                    "no executor of YARN could isolate them here: this machine has cgroup v2, for \
                     which YARN has no device filter"
                }
                Cgroup::None => "no control group is mounted with which they could be isolated",
            };
            isolation.summary = format!(
                "DefaultContainerExecutor: YARN counts GPUs, assigns none and isolates none; \
                 Creel's leases assign them, and a container that ignores its lease can open any \
                 GPU; {possible}"
            );
        }
        Executor::Linux => linux(&mut isolation, effective, conf_dir, root),
        Executor::Other(class) => {
            isolation.summary = format!(
                "{class}: whether it isolates GPUs is not known; Creel's leases assign them"
            );
        }
    }
    isolation
}

/// What LinuxContainerExecutor needs.
fn linux(isolation: &mut Isolation, effective: &Effective, conf_dir: &Path, root: &Path) {
    match devices(effective, isolation.cgroup, root) {
        Err(missing) => isolation.obstacles.push(missing),
        Ok(devices) => {
            let hierarchy = effective.get(&format!("{LCE}cgroups.hierarchy"));
            let hierarchy = hierarchy.as_deref().map_or("hadoop-yarn", str::trim);
            let hierarchy = hierarchy.trim_matches('/');
            let directory = devices.join(hierarchy);
            match writable(&directory, conf_dir, root) {
                Some(true) => {}
                Some(false) => isolation.obstacles.push(format!(
                    "the NodeManager's user can't make control groups in {0}: as root, mkdir -p \
                     {0}, and chown it to that user, at every boot",
                    directory.display()
                )),
                None => isolation.notices.push(format!(
                    "the NodeManager's user has to be able to make control groups in {}",
                    directory.display()
                )),
            }
            if isolation.obstacles.is_empty() {
                isolation.summary = format!(
                    "LinuxContainerExecutor: YARN keeps each container to its GPUs by the devices \
                     controller at {}",
                    devices.display()
                );
            }
        }
    }
    match configuration(effective, conf_dir, root) {
        Some((path, Ok(sections))) => isolation.obstacles.extend(lacking(&path, &sections)),
        Some((path, Err(error))) => isolation.notices.push(format!(
            "{} can't be read ({error}): it has to have [gpu] module.enabled=true, and [cgroups] \
             with root and yarn-hierarchy, or no container starts",
            path.display()
        )),
        None => isolation.notices.push(
            "container-executor.cfg is not found: it has to have [gpu] module.enabled=true, and \
             [cgroups] with root and yarn-hierarchy, or no container starts"
                .to_owned(),
        ),
    }
    isolation.isolates = isolation.obstacles.is_empty();
    if !isolation.isolates {
        isolation.summary = "LinuxContainerExecutor, which can't isolate GPUs as things are".into();
    }
}

/// Where the devices controller is, as the NodeManager would find it (`CGroupsHandlerImpl`).
fn devices(effective: &Effective, cgroup: Cgroup, root: &Path) -> Result<PathBuf, String> {
    let key = |name: &str| effective.get(&format!("{LCE}cgroups.{name}")).unwrap_or_default();
    let mount_path = key("mount-path");
    if !mount_path.trim().is_empty() {
        let path = Path::new(mount_path.trim()).join("devices");
        // Without mount it trusts the directories there by their names, with mount it makes them.
        if key("mount").trim() == "true" || path.is_dir() {
            return Ok(path);
        }
        return Err(format!(
            "there is no {}: with LinuxContainerExecutor and the GPU plugin the NodeManager does \
             not start; mount cgroup v1's devices controller there",
            path.display()
        ));
    }
    let mounts = std::fs::read_to_string(root.join("proc/mounts")).unwrap_or_default();
    let mounted = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (path, kind, options) = (fields.nth(1)?, fields.next()?, fields.next()?);
        (kind == "cgroup" && options.split(',').any(|option| option == "devices"))
            .then(|| PathBuf::from(path))
    });
    mounted.ok_or_else(|| {
        let remedy = match cgroup {
            Cgroup::V2 => {
                "this machine has cgroup v2, for which YARN has no device filter: use \
                 DefaultContainerExecutor, or boot with systemd.unified_cgroup_hierarchy=0"
            }
            _ => "mount -t cgroup -o devices none /sys/fs/cgroup/devices",
        };
        format!(
            "the devices controller of cgroup v1 is not mounted: with LinuxContainerExecutor and \
             the GPU plugin the NodeManager does not start; {remedy}"
        )
    })
}

fn cgroup(root: &Path) -> Cgroup {
    let tree = root.join("sys/fs/cgroup");
    let v1 = ["devices", "memory", "cpu", "systemd"].iter().any(|name| tree.join(name).is_dir());
    match (tree.join("cgroup.controllers").exists(), v1) {
        (true, _) => Cgroup::V2,
        (false, true) => Cgroup::V1,
        (false, false) => Cgroup::None,
    }
}

/// Whether the NodeManager's user can make directories in this one; `None` where nobody knows
/// which user that is.
fn writable(directory: &Path, conf_dir: &Path, root: &Path) -> Option<bool> {
    let running = daemons::running(root, conf_dir);
    let user = running.iter().find(|running| running.daemon == Daemon::NodeManager)?.uid;
    let existing = directory.ancestors().find_map(|path| std::fs::metadata(path).ok())?;
    Some(user == 0 || may_write(&existing, user))
}

/// Of groups nothing is known: what the group may do, the user may.
fn may_write(about: &Metadata, user: u32) -> bool {
    let mode = about.mode();
    mode & 0o002 != 0 || mode & 0o020 != 0 || (about.uid() == user && mode & 0o200 != 0)
}

/// The sections of a file of `container-executor`: names and values of each. Entries before the
/// first section are of the section "".
type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// `container-executor.cfg`, as far as it can be found: the program has its place compiled in.
fn configuration(
    effective: &Effective,
    conf_dir: &Path,
    root: &Path,
) -> Option<(PathBuf, std::io::Result<Sections>)> {
    const NAME: &str = "container-executor.cfg";
    let program = effective.get(&format!("{LCE}path")).unwrap_or_default();
    let beside = Path::new(program.trim()).parent().map(|bin| bin.join("../etc/hadoop").join(NAME));
    let usual = ["etc/hadoop/conf", "etc/hadoop"].map(|path| root.join(path).join(NAME));
    let mut candidates = [conf_dir.join(NAME)].into_iter().chain(beside).chain(usual);
    let path = candidates.find(|path| path.exists())?;
    let sections = std::fs::read_to_string(&path).map(|text| sections(&text));
    Some((path, sections))
}

/// Reads `name=value` lines below `[section]` lines; `#` begins a line that says nothing
/// (`configuration.c` of container-executor).
fn sections(text: &str) -> Sections {
    let mut sections = Sections::new();
    let mut section = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            name.trim().clone_into(&mut section);
        } else if let Some((name, value)) = line.split_once('=') {
            let entries = sections.entry(section.clone()).or_default();
            entries.insert(name.trim().to_owned(), value.trim().to_owned());
        }
    }
    sections
}

/// What is not in the file and has to be.
fn lacking(path: &Path, sections: &Sections) -> Option<String> {
    let get = |section: &str, name: &str| {
        sections.get(section).and_then(|entries| entries.get(name)).map(String::as_str)
    };
    let missing: Vec<_> = [
        ("[gpu] module.enabled=true", get("gpu", "module.enabled") == Some("true")),
        ("[cgroups] root=/sys/fs/cgroup", get("cgroups", "root").is_some()),
        ("[cgroups] yarn-hierarchy=hadoop-yarn", get("cgroups", "yarn-hierarchy").is_some()),
    ]
    .into_iter()
    .filter_map(|(line, there)| (!there).then_some(line))
    .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "{} lacks {}: with the GPU plugin no container of this node starts; add it as root",
            path.display(),
            missing.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::daemons::tests::process;
    use crate::directory::Directory;

    const GOOD: &str = "yarn.nodemanager.linux-container-executor.group=hadoop\n#[gpu]\n[gpu]\n\
        module.enabled = true\n[cgroups]\nroot=/sys/fs/cgroup\nyarn-hierarchy=hadoop-yarn\n";

    /// A machine with these files, and what is said of it with these entries of yarn-site.xml.
    fn machine(files: &[(&str, &str)], entries: &[(&str, &str)]) -> (tempfile::TempDir, Isolation) {
        let root = tempfile::tempdir().unwrap();
        let conf = root.path().join("conf");
        std::fs::create_dir(&conf).unwrap();
        for (name, content) in files {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let content = content.replace('@', &root.path().display().to_string());
            std::fs::write(path, content).unwrap();
        }
        let property = |(name, value): &(&str, &str)| {
            let value = value.replace('@', &root.path().display().to_string());
            format!("<property><name>{name}</name><value>{value}</value></property>")
        };
        let entries: String = entries.iter().map(property).collect();
        let site = format!("<configuration>{entries}</configuration>");
        std::fs::write(conf.join("yarn-site.xml"), site).unwrap();
        let directory = Directory::read(&conf).unwrap();
        let effective = Effective::of_yarn(&directory, directory.documents());
        let isolation = examine(&effective, &conf, root.path());
        (root, isolation)
    }

    const LINUX: (&str, &str) = (
        "yarn.nodemanager.container-executor.class",
        "org.apache.hadoop.yarn.server.nodemanager.LinuxContainerExecutor",
    );

    #[test]
    fn the_default_executor_isolates_nothing_and_nothing_stands_in_its_way() {
        for (file, words) in [
            ("sys/fs/cgroup/devices/tasks", "could isolate them"),
            ("sys/fs/cgroup/cgroup.controllers", "cgroup v2"),
            ("sys/fs/x", "no control group"),
        ] {
            let (_root, isolation) = machine(&[(file, "")], &[]);
            assert!(!isolation.isolates && isolation.obstacles.is_empty(), "{isolation:?}");
            assert!(isolation.summary.contains(words), "{isolation:?}");
        }
    }

    #[test]
    fn all_that_is_needed_makes_isolation() {
        let mounts = "cgroup @/sys/fs/cgroup/devices cgroup rw,relatime,devices 0 0\n";
        let files = [
            ("proc/mounts", mounts),
            ("sys/fs/cgroup/devices/tasks", ""),
            ("conf/container-executor.cfg", GOOD),
        ];
        let (_root, isolation) = machine(&files, &[LINUX]);
        assert!(isolation.isolates, "{isolation:?}");
        assert!(isolation.notices[0].contains("/devices/hadoop-yarn"), "{isolation:?}");

        let mount_path =
            ("yarn.nodemanager.linux-container-executor.cgroups.mount-path", "@/sys/fs/cgroup");
        let (_root, isolation) = machine(&files[1..], &[LINUX, mount_path]);
        assert!(isolation.isolates, "{isolation:?}");
    }

    #[test]
    fn what_would_stop_the_nodemanager_is_an_obstacle() {
        let (_root, isolation) = machine(&[("sys/fs/cgroup/cgroup.controllers", "")], &[LINUX]);
        assert!(isolation.obstacles[0].contains("cgroup v2"), "{isolation:?}");
        let (_root, isolation) = machine(&[("sys/fs/cgroup/memory/tasks", "")], &[LINUX]);
        assert!(isolation.obstacles[0].contains("mount -t cgroup"), "{isolation:?}");
        let mount_path =
            ("yarn.nodemanager.linux-container-executor.cgroups.mount-path", "@/nowhere");
        let (_root, isolation) = machine(&[], &[LINUX, mount_path]);
        assert!(isolation.obstacles[0].contains("nowhere/devices"), "{isolation:?}");
    }

    #[test]
    fn what_would_stop_containers_is_an_obstacle() {
        let mount_path =
            ("yarn.nodemanager.linux-container-executor.cgroups.mount-path", "@/cgroup");
        for (cfg, words) in [
            ("[cgroups]\nroot=/sys/fs/cgroup\nyarn-hierarchy=hadoop-yarn\n", "[gpu]"),
            ("module.enabled=true\n[gpu]\nmodule.enabled=1\n", "[cgroups] root"),
        ] {
            let files = [("cgroup/devices/tasks", ""), ("conf/container-executor.cfg", cfg)];
            let (_root, isolation) = machine(&files, &[LINUX, mount_path]);
            assert!(isolation.obstacles[0].contains(words), "{isolation:?}");
            assert!(!isolation.isolates);
        }
        let (_root, isolation) = machine(&[("cgroup/devices/tasks", "")], &[LINUX, mount_path]);
        assert!(isolation.notices[1].contains("not found"), "{isolation:?}");
    }

    #[test]
    fn a_tree_that_the_nodemanager_cannot_write_is_an_obstacle() {
        let root = tempfile::tempdir().unwrap();
        process(
            root.path(),
            7,
            "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
            4_000_000,
            0,
        );
        let tree = root.path().join("devices");
        std::fs::create_dir(&tree).unwrap();
        assert_eq!(writable(&tree.join("hadoop-yarn"), root.path(), root.path()), Some(false));
        std::fs::set_permissions(&tree, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(writable(&tree.join("hadoop-yarn"), root.path(), root.path()), Some(true));
    }
}
