//! GPUs as the control API shows them.

use creel_discovery::inventory::Process;
use creel_discovery::{Gpu, Inventory, Slice};

use super::Unit;
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
        pool: None,
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

/// What can be given to users, with the health of the GPUs as [`gpus`] has it.
pub(super) fn units(inventory: &Inventory, gpus: &[api::Gpu]) -> Vec<Unit> {
    let view = |unit: creel_discovery::Unit<'_>| {
        let health = gpus.get(unit.gpu.index as usize).map(|gpu| &gpu.health);
        Unit {
            address: unit.address,
            uuid: unit.uuid().map(str::to_owned),
            usable: health.is_some_and(|health| health.state == api::HealthState::Healthy),
            reasons: health.map(|health| health.reasons.clone()).unwrap_or_default(),
            minor: unit.gpu.minor,
            processes: processes(&unit),
        }
    };
    inventory.units().map(view).collect()
}

/// The processes on a unit; one on a GPU that doesn't say which slice it is on is on all of them.
fn processes(unit: &creel_discovery::Unit<'_>) -> Vec<u32> {
    let is_here = |process: &&Process| match unit.slice {
        Some(slice) => {
            (process.gpu_instance.is_none() || process.gpu_instance == slice.gpu_instance)
                && (process.compute_instance.is_none()
                    || process.compute_instance == slice.compute_instance)
        }
        None => true,
    };
    let processes = unit.gpu.processes.iter().flatten().filter(is_here);
    processes.map(|process| process.pid).collect()
}

fn slice(slice: &Slice) -> api::MigSlice {
    api::MigSlice {
        index: slice.index,
        uuid: slice.uuid.clone(),
        profile: slice.profile.clone(),
        memory_total: slice.memory.total,
        pool: None,
        lease: None,
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
    fn a_process_is_on_its_slice_alone() {
        let process = |pid, instance: Option<u32>| Process {
            pid,
            kind: creel_discovery::inventory::ProcessKind::Compute,
            memory: None,
            gpu_instance: instance,
            compute_instance: instance.map(|_| 0),
        };
        let slice = |index| Slice {
            index,
            gpu_instance: Some(index + 1),
            compute_instance: Some(0),
            ..Slice::default()
        };
        let cut = Gpu {
            mig: creel_discovery::inventory::Mig {
                enabled: Some(true),
                slices: vec![slice(0), slice(1)],
                ..Default::default()
            },
            processes: Some(vec![process(7, Some(2)), process(8, None)]),
            ..Gpu::default()
        };
        let whole = Gpu { index: 1, processes: Some(vec![process(9, None)]), ..Gpu::default() };
        let inventory = Inventory { gpus: vec![cut, whole], ..Inventory::empty() };
        let gpus = gpus(&inventory, &Faults::default(), None);
        let units = units(&inventory, &gpus);
        let processes: Vec<_> = units.iter().map(|unit| unit.processes.as_slice()).collect();
        assert_eq!(processes, [&[8][..], &[7, 8], &[9]]);
        assert!(units.iter().all(|unit| unit.usable));
    }

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
