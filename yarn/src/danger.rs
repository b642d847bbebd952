//! What keeps YARN's daemons from starting.
//!
//! Each of these ends a daemon at its next start, however long it has been running. So a change
//! is refused after which, or half-way through which, one is there that was not there before.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use crate::directory::{Directory, Documents, File};
use crate::effective::Effective;
use crate::isolation;
use crate::keys;

/// What keeps a daemon, or every container of a node, from starting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Danger {
    /// Resource types, and a calculator that knows memory alone
    /// (`CapacityScheduler.initResourceCalculator`).
    Calculator,
    /// The GPU plugin, and no such resource type (`GpuNodeResourceUpdateHandler`).
    NoType,
    /// A unit for GPUs (`ResourceUtils`, its special resources).
    Unit(String),
    /// A list of devices that is none, and the GPU plugin (`GpuDiscoverer`).
    Devices(String),
    /// See [`isolation::Isolation::obstacles`].
    Isolation(String),
}

impl fmt::Display for Danger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calculator => write!(
                f,
                "a ResourceManager would not start: there are resource types beyond memory and \
                 vcores, and {} is DefaultResourceCalculator",
                keys::CALCULATOR
            ),
            Self::NoType => write!(
                f,
                "a NodeManager would not start: its GPU plugin is on, and {} lacks {}",
                keys::RESOURCE_TYPES,
                keys::GPU
            ),
            Self::Unit(unit) => write!(
                f,
                "neither ResourceManager nor NodeManager would start: {} is {unit:?}, and GPUs \
                 have no unit; take that entry out",
                keys::GPU_UNITS
            ),
            Self::Devices(list) => write!(
                f,
                "a NodeManager would not start: {} is {list:?}, which is neither \"auto\" nor a \
                 list of index:minor",
                keys::ALLOWED_DEVICES
            ),
            Self::Isolation(obstacle) => f.write_str(obstacle),
        }
    }
}

/// The dangers of these files, on the machine below a root (`/`).
pub fn dangers(directory: &Directory, documents: &Documents, root: &Path) -> BTreeSet<Danger> {
    let mut dangers = BTreeSet::new();
    let yarn = Effective::of_yarn(directory, documents);
    let types = yarn.list(keys::RESOURCE_TYPES);
    // Without the file there are no queues, and no ResourceManager starts here.
    if documents.contains_key(&File::CapacityScheduler)
        && !types.is_empty()
        && keys::scheduler(&yarn) == keys::Scheduler::Capacity
        && keys::is_default_calculator(&Effective::of_scheduler(directory, documents))
    {
        dangers.insert(Danger::Calculator);
    }
    let has_type = types.iter().any(|name| name == keys::GPU);
    if let Some(unit) = yarn.get(keys::GPU_UNITS).filter(|unit| has_type && !unit.is_empty()) {
        dangers.insert(Danger::Unit(unit));
    }
    if yarn.list(keys::PLUGINS).iter().any(|name| name == keys::GPU) {
        if !has_type {
            dangers.insert(Danger::NoType);
        }
        if let Some(list) = yarn.get(keys::ALLOWED_DEVICES).filter(|list| !is_device_list(list)) {
            dangers.insert(Danger::Devices(list));
        }
        let isolation = isolation::examine(&yarn, directory.path(), root);
        dangers.extend(isolation.obstacles.into_iter().map(Danger::Isolation));
    }
    dangers
}

/// `auto`, or `index:minor` pairs of which none comes twice.
fn is_device_list(list: &str) -> bool {
    let pair = |entry: &str| {
        let (index, minor) = entry.split_once(':')?;
        Some((index.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    };
    let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let mut seen = BTreeSet::new();
    let mut valid = entries.map(|entry| pair(entry).is_some_and(|pair| seen.insert(pair)));
    list == "auto" || (!list.trim().is_empty() && valid.all(|valid| valid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &[(&str, &str)])]) -> Vec<Danger> {
        let temporary = tempfile::tempdir().unwrap();
        for (name, entries) in files {
            let property = |(name, value): &(&str, &str)| {
                format!("<property><name>{name}</name><value>{value}</value></property>")
            };
            let entries: String = entries.iter().map(property).collect();
            let text = format!("<configuration>{entries}</configuration>");
            std::fs::write(temporary.path().join(name), text).unwrap();
        }
        let directory = Directory::read(temporary.path()).unwrap();
        let dangers = dangers(&directory, directory.documents(), &temporary.path().join("root"));
        dangers.into_iter().collect()
    }

    const TYPES: (&str, &[(&str, &str)]) =
        ("resource-types.xml", &[("yarn.resource-types", "yarn.io/gpu")]);

    #[test]
    fn types_need_a_calculator_where_a_capacity_scheduler_starts() {
        assert_eq!(of(&[TYPES]), []);
        assert_eq!(of(&[TYPES, ("capacity-scheduler.xml", &[])]), [Danger::Calculator]);
        let default = " org.apache.hadoop.yarn.util.resource.DefaultResourceCalculator";
        let scheduler = [(keys::CALCULATOR, default)];
        assert_eq!(of(&[TYPES, ("capacity-scheduler.xml", &scheduler)]), [Danger::Calculator]);
        let scheduler = [(keys::CALCULATOR, keys::DOMINANT)];
        assert_eq!(of(&[TYPES, ("capacity-scheduler.xml", &scheduler)]), []);
        let fair = [("yarn.resourcemanager.scheduler.class", "x.FairScheduler")];
        assert_eq!(of(&[TYPES, ("capacity-scheduler.xml", &[]), ("yarn-site.xml", &fair)]), []);
    }

    #[test]
    fn a_plugin_needs_its_type() {
        let plugin = [("yarn.nodemanager.resource-plugins", "yarn.io/gpu")];
        assert_eq!(of(&[("yarn-site.xml", &plugin)]), [Danger::NoType]);
        assert_eq!(of(&[("yarn-site.xml", &plugin), TYPES]), []);
    }

    #[test]
    fn gpus_have_no_unit() {
        let entries = [("yarn.resource-types", "yarn.io/gpu"), (keys::GPU_UNITS, "G")];
        assert_eq!(of(&[("resource-types.xml", &entries)]), [Danger::Unit("G".to_owned())]);
    }

    #[test]
    fn a_linux_container_executor_needs_the_devices_controller() {
        let entries = [
            ("yarn.resource-types", "yarn.io/gpu"),
            ("yarn.nodemanager.resource-plugins", "yarn.io/gpu"),
            ("yarn.nodemanager.container-executor.class", "x.LinuxContainerExecutor"),
        ];
        let dangers = of(&[("yarn-site.xml", &entries)]);
        assert!(matches!(dangers.as_slice(), [Danger::Isolation(_)]), "{dangers:?}");
    }

    #[test]
    fn device_lists_are_auto_or_pairs() {
        for list in ["auto", "0:0", "0:0, 1:3,"] {
            assert!(is_device_list(list), "{list}");
        }
        for list in [" auto", "", " ", "2,4", "0:0,0:0", "0:x", "GPU-1"] {
            assert!(!is_device_list(list), "{list}");
        }
    }
}
