//! GPUs as the control API shows them.

use creel_discovery::{Gpu, Inventory, Slice};

use super::events::Faults;
use crate::api;

/// The GPUs of an inventory. `stale` says why it is an old one; a driver that doesn't answer is
/// a reason not to use its GPUs.
pub(super) fn gpus(inventory: &Inventory, faults: &Faults, stale: Option<&str>) -> Vec<api::Gpu> {
    let driver = inventory.driver.as_ref();
    let view = |gpu: &Gpu| api::Gpu {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        minor: gpu.minor,
        pci_bus_id: gpu.pci_bus_id.clone(),
        name: gpu.name.clone(),
        memory: api::GpuMemory {
            total: gpu.memory.total,
            used: gpu.memory.used,
            free: gpu.memory.free,
        },
        driver: driver.and_then(|driver| driver.version.clone()),
        cuda: driver.and_then(|driver| driver.cuda.clone()),
        mig: api::Mig {
            enabled: gpu.mig.enabled,
            slices: gpu.mig.slices.iter().map(slice).collect(),
            waiting: None,
        },
        health: health(gpu, faults, stale),
        lease: None,
    };
    inventory.gpus.iter().map(view).collect()
}

fn slice(slice: &Slice) -> api::MigSlice {
    api::MigSlice {
        index: slice.index,
        uuid: slice.uuid.clone(),
        profile: slice.profile.clone(),
        memory_total: slice.memory.total,
    }
}

/// The health of a GPU, by what NVML says of it and by the errors that it had.
pub(super) fn health(gpu: &Gpu, faults: &Faults, stale: Option<&str>) -> api::Health {
    let mut health = gpu.health.clone();
    for reason in faults.of(gpu).cloned().chain(stale.map(str::to_owned)) {
        health.add(reason);
    }
    health
}

#[cfg(test)]
mod tests {
    use creel_discovery::Health;

    use super::*;

    #[test]
    fn every_reason_counts() {
        let gpu = Gpu::default();
        let lost = Gpu { health: Health::unhealthy("lost".to_owned()), ..Gpu::default() };
        let faults = Faults::default();
        assert_eq!(health(&gpu, &faults, None).state, api::HealthState::Healthy);
        assert_eq!(health(&gpu, &faults, Some("old")).state, api::HealthState::Unhealthy);
        assert_eq!(health(&lost, &faults, Some("old")).reasons, ["lost", "old"]);
    }
}
