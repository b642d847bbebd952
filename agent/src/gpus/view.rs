//! GPUs as the control API shows them.

use creel_discovery::inventory::Process;
use creel_discovery::{Gpu, Inventory, Slice};

use super::Unit;
use super::events::Faults;
use super::losses::Losses;
use crate::api;

/// What is known of the health of GPUs beside what NVML says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    /// Errors that the driver reported.
    pub(super) faults: &'a Faults,
    /// What executors lost.
    pub(super) losses: &'a Losses,
    /// Why the inventory is an old one: a driver that doesn't answer is a reason not to use its
    /// GPUs.
    pub(super) stale: Option<&'a str>,
}

impl Known<'_> {
    /// The health of a GPU.
    pub(super) fn health(&self, gpu: &Gpu) -> api::Health {
        let mut health = by_driver(gpu, self.faults);
        let lost = gpu.uuid.as_deref().and_then(|uuid| self.losses.unfit(uuid));
        let stale = self.stale.map(str::to_owned);
        lost.into_iter().chain(stale).for_each(|reason| health.add(reason));
        health
    }

    /// The health of a slice, beside that of its GPU.
    fn of_slice(&self, slice: &Slice) -> api::Health {
        let lost = slice.uuid.as_deref().and_then(|uuid| self.losses.unfit(uuid));
        lost.map_or_else(api::Health::default, api::Health::unhealthy)
    }
}

/// The health of a GPU by the driver's word alone: what NVML says, and the errors that it reported.
pub(super) fn by_driver(gpu: &Gpu, faults: &Faults) -> api::Health {
    let mut health = gpu.health.clone();
    faults.of(gpu).for_each(|fault| health.add(fault.clone()));
    health
}

/// The GPUs of an inventory.
pub(super) fn gpus(inventory: &Inventory, known: &Known<'_>) -> Vec<api::Gpu> {
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
            slices: gpu.mig.slices.iter().map(|each| slice(each, known)).collect(),
            waiting: None,
        },
        health: known.health(gpu),
        lease: None,
    };
    inventory.gpus.iter().map(view).collect()
}

/// What can be given to users, with the health of the GPUs as [`gpus`] has it.
pub(super) fn units(inventory: &Inventory, gpus: &[api::Gpu]) -> Vec<Unit> {
    let view = |unit: creel_discovery::Unit<'_>| {
        let gpu = gpus.get(unit.gpu.index as usize);
        let slice = gpu
            .zip(unit.slice)
            .and_then(|(gpu, is)| gpu.mig.slices.iter().find(|slice| slice.index == is.index));
        let health: Vec<_> = gpu
            .map(|gpu| &gpu.health)
            .into_iter()
            .chain(slice.map(|slice| &slice.health))
            .collect();
        let is_well = |health: &&api::Health| health.state == api::HealthState::Healthy;
        Unit {
            address: unit.address,
            uuid: unit.uuid().map(str::to_owned),
            usable: gpu.is_some() && health.iter().all(is_well),
            reasons: health.iter().flat_map(|health| health.reasons.clone()).collect(),
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

fn slice(slice: &Slice, known: &Known<'_>) -> api::MigSlice {
    api::MigSlice {
        index: slice.index,
        uuid: slice.uuid.clone(),
        profile: slice.profile.clone(),
        memory_total: slice.memory.total,
        pool: None,
        health: known.of_slice(slice),
        lease: None,
    }
}

#[cfg(test)]
mod tests {
    use creel_discovery::Health;

    use super::*;

    #[test]
    fn a_process_and_a_loss_are_on_their_slice_alone() {
        let process = |pid, instance: Option<u32>| Process {
            pid,
            kind: creel_discovery::inventory::ProcessKind::Compute,
            memory: None,
            gpu_instance: instance,
            compute_instance: instance.map(|_| 0),
        };
        let slice = |index| Slice {
            index,
            uuid: Some(format!("MIG-{index}")),
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
        let (faults, losses) = (Faults::default(), Losses::default());
        let known = Known { faults: &faults, losses: &losses, stale: None };
        let units_now = || units(&inventory, &gpus(&inventory, &known));
        let units = units_now();
        let processes: Vec<_> = units.iter().map(|unit| unit.processes.as_slice()).collect();
        assert_eq!(processes, [&[8][..], &[7, 8], &[9]]);
        assert!(units.iter().all(|unit| unit.usable));
        for _ in 0..3 {
            losses.note("MIG-1", "lost");
        }
        let usable: Vec<_> = units_now().iter().map(|unit| unit.usable).collect();
        assert_eq!(usable, [true, false, true], "a slice is lost alone");
    }

    #[test]
    fn every_reason_counts() {
        let gpu = Gpu::default();
        let lost = Gpu { health: Health::unhealthy("lost".to_owned()), ..Gpu::default() };
        let (faults, losses) = (Faults::default(), Losses::default());
        let well = Known { faults: &faults, losses: &losses, stale: None };
        let old = Known { stale: Some("old"), ..well };
        assert_eq!(well.health(&gpu).state, api::HealthState::Healthy);
        assert_eq!(old.health(&gpu).state, api::HealthState::Unhealthy);
        assert_eq!(old.health(&lost).reasons, ["lost", "old"]);
    }
}
