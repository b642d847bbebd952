//! The names of the settings, as `YarnConfiguration` and `CapacitySchedulerConfiguration` have
//! them, and what some of their values mean.

use crate::effective::Effective;

/// The resource.
pub const GPU: &str = "yarn.io/gpu";

/// The resources beyond memory and vcores.
pub const RESOURCE_TYPES: &str = "yarn.resource-types";
/// Must be empty.
pub const GPU_UNITS: &str = "yarn.resource-types.yarn.io/gpu.units";
/// GPUs of one container, in the whole cluster.
pub const GPU_MAXIMUM: &str = "yarn.resource-types.yarn.io/gpu.maximum-allocation";

/// How the CapacityScheduler compares resources.
pub const CALCULATOR: &str = "yarn.scheduler.capacity.resource-calculator";
/// The calculator that knows all resource types.
pub const DOMINANT: &str = "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator";
/// The scheduler's class.
pub const SCHEDULER: &str = "yarn.resourcemanager.scheduler.class";
/// Where the CapacityScheduler's configuration is kept.
pub const SCHEDULER_STORE: &str = "yarn.scheduler.configuration.store.class";

/// The NodeManager's plugins.
pub const PLUGINS: &str = "yarn.nodemanager.resource-plugins";
/// Whether a NodeManager whose plugin finds nothing ends.
pub const FAIL_FAST: &str = "yarn.nodemanager.resource-plugins.fail-fast";
/// `auto`, or a list.
pub const ALLOWED_DEVICES: &str = "yarn.nodemanager.resource-plugins.gpu.allowed-gpu-devices";
/// Where `nvidia-smi` is.
pub const DISCOVERY: &str = "yarn.nodemanager.resource-plugins.gpu.path-to-discovery-executables";
/// The other way to make GPUs known.
pub const DEVICE_CLASSES: &str = "yarn.nodemanager.pluggable-device-framework.device-classes";

/// Whether there are node labels.
pub const NODE_LABELS: &str = "yarn.node-labels.enabled";

/// A scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    /// YARN's own default.
    Capacity,
    /// Any other.
    Other,
}

/// Which scheduler the ResourceManager uses.
pub fn scheduler(yarn: &Effective) -> Scheduler {
    match yarn.get(SCHEDULER).as_deref().map(str::trim) {
        None | Some("") => Scheduler::Capacity,
        Some(class) if class.ends_with("CapacityScheduler") => Scheduler::Capacity,
        Some(_) => Scheduler::Other,
    }
}

/// Whether the scheduler would use the calculator that knows memory alone.
pub fn is_default_calculator(scheduler: &Effective) -> bool {
    match scheduler.get(CALCULATOR).as_deref().map(str::trim) {
        None | Some("") => true,
        Some(class) => class.ends_with(".DefaultResourceCalculator"),
    }
}
