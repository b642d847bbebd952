//! What YARN is shown of the GPUs when they change.
//!
//! YARN counts GPUs when a NodeManager starts, and under LinuxContainerExecutor it knows a GPU by
//! its place in the list. So a GPU that is lost keeps its place, as it was when it was last well,
//! and a new MIG layout waits until no container holds anything that it would take away or move.
//! A list with GPUs never becomes one without: a NodeManager would not start.

use std::fmt;

use creel_discovery::inventory::{Gpu, Inventory};
use creel_discovery::snapshot::{Holder, Snapshot};
use creel_discovery::{Health, HealthState};

/// What is to be shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shown {
    /// The GPUs.
    pub(super) inventory: Inventory,
    /// Those whose new layout waits.
    pub(super) waiting: Vec<Waiting>,
}

/// A GPU whose MIG layout has changed, and is shown as it was before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Its UUID or PCI bus id.
    pub(super) gpu: String,
    /// The containers whose leases stand in the way.
    pub(super) containers: Vec<String>,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let containers = self.containers.join(", ");
        write!(
            f,
            "the MIG layout has changed; YARN is shown the former one until {containers} ends"
        )
    }
}

/// What is shown of `now` after `before`. Places are kept over a restart of the agent, and not
/// over one of the node: no container survives it.
pub(super) fn next(
    before: Option<&Snapshot>,
    now: Inventory,
    holders: &[Holder],
    keep_places: bool,
    boot_id: Option<&str>,
) -> Shown {
    let Some(before) = before.filter(|before| before.has_units()) else {
        return Shown { inventory: now, waiting: Vec::new() };
    };
    let same_boot = before.boot_id.as_deref() == boot_id;
    if !same_boot && now.units().next().is_some() {
        return Shown { inventory: now, waiting: Vec::new() };
    }
    let driver = now.driver.or_else(|| before.inventory.driver.clone());
    let old = &before.inventory.gpus;
    let gpus = with_lost(old, now.gpus);
    let (gpus, waiting) =
        if keep_places { all_or_none(old, gpus, holders) } else { one_by_one(old, gpus, holders) };
    let mut inventory = Inventory { driver, gpus, ..now };
    if inventory.units().next().is_none() {
        inventory.gpus = lost_all(old, "it has MIG on and no slice, or is gone");
    }
    for (gpu, index) in inventory.gpus.iter_mut().zip(0..) {
        gpu.index = index;
    }
    Shown { inventory, waiting }
}

/// The GPUs that are there, and in PCI order among them those that were.
fn with_lost(old: &[Gpu], now: Vec<Gpu>) -> Vec<Gpu> {
    let mut missing: Vec<_> = old.iter().filter(|old| find(&now, old).is_none()).collect();
    let mut gpus = Vec::new();
    for gpu in now {
        let was = find(old, &gpu).or_else(|| {
            let nameless = gpu.uuid.is_none() && gpu.pci_bus_id.is_none();
            (nameless && !missing.is_empty()).then(|| missing.remove(0))
        });
        // What says how much memory it has is there, however ill.
        let is_lost = gpu.health.state == HealthState::Unhealthy && gpu.memory.total.is_none();
        gpus.push(match was.filter(|_| is_lost) {
            Some(was) => lost(was, gpu.health),
            None => gpu,
        });
    }
    let gone = |gpu| lost(gpu, Health::unhealthy("the driver doesn't list it any more".to_owned()));
    gpus.extend(missing.into_iter().map(gone));
    // NVML pads it, so the order of the text is that of the numbers; what has none comes last.
    gpus.sort_by(|one, other| {
        let key = |gpu: &Gpu| (gpu.pci_bus_id.is_none(), gpu.pci_bus_id.clone());
        key(one).cmp(&key(other))
    });
    gpus
}

fn lost(was: &Gpu, health: Health) -> Gpu {
    Gpu { health, problems: Vec::new(), ..was.clone().lasting() }
}

fn lost_all(old: &[Gpu], reason: &str) -> Vec<Gpu> {
    old.iter().map(|gpu| lost(gpu, Health::unhealthy(reason.to_owned()))).collect()
}

fn find<'a>(among: &'a [Gpu], gpu: &Gpu) -> Option<&'a Gpu> {
    let same = |one: &Option<String>, other: &Option<String>| one.is_some() && one == other;
    among
        .iter()
        .find(|other| same(&other.uuid, &gpu.uuid))
        .or_else(|| among.iter().find(|other| same(&other.pci_bus_id, &gpu.pci_bus_id)))
}

/// Each GPU keeps its old layout while a container holds some of it.
fn one_by_one(old: &[Gpu], gpus: Vec<Gpu>, holders: &[Holder]) -> (Vec<Gpu>, Vec<Waiting>) {
    let mut waiting = Vec::new();
    let shown = |gpu: Gpu| {
        let Some(was) = find(old, &gpu).filter(|was| units(was) != units(&gpu)) else { return gpu };
        let containers = containers(holders, |uuid| units(was).contains(&uuid));
        if containers.is_empty() {
            return gpu;
        }
        waiting.push(Waiting { gpu: name(&gpu), containers });
        as_before(was, gpu)
    };
    (gpus.into_iter().map(shown).collect(), waiting)
}

/// All GPUs keep their old layout while a container holds any: it could move to another place.
fn all_or_none(old: &[Gpu], gpus: Vec<Gpu>, holders: &[Holder]) -> (Vec<Gpu>, Vec<Waiting>) {
    let containers = containers(holders, |_| true);
    if containers.is_empty() || old.iter().flat_map(units).eq(gpus.iter().flat_map(units)) {
        return (gpus, Vec::new());
    }
    let waiting = |gpu: &&Gpu| find(old, gpu).is_none_or(|was| units(was) != units(gpu));
    let waiting = gpus
        .iter()
        .filter(waiting)
        .map(|gpu| Waiting { gpu: name(gpu), containers: containers.clone() });
    let waiting = waiting.collect();
    let shown = |was: &Gpu| match find(&gpus, was) {
        Some(gpu) => as_before(was, gpu.clone()),
        None => was.clone(),
    };
    (old.iter().map(shown).collect(), waiting)
}

/// What can be given to somebody of a GPU, by UUID.
fn units(gpu: &Gpu) -> Vec<&str> {
    let whole = (gpu.mig.enabled != Some(true)).then_some(&gpu.uuid);
    let slices = gpu.mig.slices.iter().map(|slice| &slice.uuid);
    whole.into_iter().chain(slices).map(|uuid| uuid.as_deref().unwrap_or_default()).collect()
}

fn containers(holders: &[Holder], holds: impl Fn(&str) -> bool) -> Vec<String> {
    let holds = |holder: &&Holder| holder.devices.iter().any(|uuid| holds(uuid));
    holders.iter().filter(holds).map(|holder| holder.container.clone()).collect()
}

fn name(gpu: &Gpu) -> String {
    gpu.uuid.as_ref().or(gpu.pci_bus_id.as_ref()).cloned().unwrap_or_default()
}

/// With the layout of before, and its health, heat and load of now.
fn as_before(was: &Gpu, now: Gpu) -> Gpu {
    if units(was) == units(&now) {
        return now;
    }
    Gpu {
        utilization: now.utilization,
        temperature: now.temperature,
        power: now.power,
        health: now.health,
        ..lost(was, Health::default())
    }
}

#[cfg(test)]
mod tests {
    use creel_discovery::Slice;
    use creel_discovery::inventory::{Memory, Mig, Utilization};

    use super::*;

    fn gpu(index: u32) -> Gpu {
        Gpu {
            index,
            minor: Some(index),
            uuid: Some(format!("GPU-{index}")),
            pci_bus_id: Some(format!("00000000:{index:02X}:00.0")),
            memory: Memory { total: Some(1 << 34), used: Some(7), ..Memory::default() },
            utilization: Utilization { gpu: Some(50), memory: None },
            ..Gpu::default()
        }
    }

    fn with_slices(index: u32, slices: &[&str]) -> Gpu {
        let slices =
            slices.iter().map(|&uuid| Slice { uuid: Some(uuid.to_owned()), ..Slice::default() });
        let mig = Mig { enabled: Some(true), pending: Some(true), slices: slices.collect() };
        Gpu { mig, ..gpu(index) }
    }

    fn node(gpus: Vec<Gpu>) -> Inventory {
        Inventory { gpus, ..Inventory::empty() }
    }

    fn before(gpus: Vec<Gpu>) -> Snapshot {
        Snapshot { boot_id: Some("boot".to_owned()), ..Snapshot::new(node(gpus), 0) }
    }

    fn holds(container: &str, uuid: &str) -> Holder {
        Holder { container: container.to_owned(), uid: 7, devices: vec![uuid.to_owned()] }
    }

    fn shown(
        before: &Snapshot,
        now: Vec<Gpu>,
        holders: &[Holder],
        keep_places: bool,
    ) -> (Vec<String>, Vec<Waiting>) {
        let Shown { inventory, waiting } =
            next(Some(before), node(now), holders, keep_places, Some("boot"));
        let unit = |unit: creel_discovery::Unit<'_>| {
            let health = if unit.usable() { "" } else { " lost" };
            format!("{}{health}", unit.uuid().unwrap_or("?"))
        };
        (inventory.units().map(unit).collect(), waiting)
    }

    #[test]
    fn a_lost_gpu_keeps_its_place_as_it_was() {
        let lost_gpu = |pci: Option<String>| Gpu {
            index: 1,
            pci_bus_id: pci,
            health: Health::unhealthy("GPU is lost".to_owned()),
            ..Gpu::default()
        };
        let before = before(vec![gpu(0), with_slices(1, &["MIG-a", "MIG-b"]), gpu(2)]);
        let expected = ["GPU-0", "MIG-a lost", "MIG-b lost", "GPU-2"];
        for now in [
            vec![gpu(0), lost_gpu(gpu(1).pci_bus_id), gpu(2)],
            vec![gpu(0), lost_gpu(None), gpu(2)],
            vec![gpu(0), gpu(2)],
        ] {
            assert_eq!(shown(&before, now, &[], false).0, expected);
        }
        let now = node(vec![gpu(0), lost_gpu(None), gpu(2)]);
        let gpus = next(Some(&before), now, &[], false, Some("boot")).inventory.gpus;
        assert_eq!(
            (gpus[1].index, gpus[1].minor, gpus[1].memory.total),
            (1, Some(1), Some(1 << 34))
        );
        assert_eq!((gpus[1].utilization.gpu, gpus[1].memory.used), (None, None));
        assert_eq!(gpus[1].health.reasons, ["GPU is lost"]);
        assert_eq!(gpus[2].index, 2);
    }

    #[test]
    fn a_gpu_that_is_ill_but_there_is_shown_as_it_is() {
        let ill = Gpu { health: Health::unhealthy("Xid 48".to_owned()), ..gpu(0) };
        let Shown { inventory, .. } =
            next(Some(&before(vec![gpu(0)])), node(vec![ill.clone()]), &[], true, Some("boot"));
        assert_eq!(inventory.gpus, [ill]);
    }

    #[test]
    fn what_had_gpus_is_never_without() {
        let before = before(vec![gpu(0), gpu(1)]);
        assert_eq!(shown(&before, vec![], &[], false).0, ["GPU-0 lost", "GPU-1 lost"]);
        let no_slice = vec![with_slices(0, &[]), with_slices(1, &[])];
        assert_eq!(shown(&before, no_slice, &[], false).0, ["GPU-0 lost", "GPU-1 lost"]);
        let other_boot = next(Some(&before), node(vec![]), &[], false, Some("other"));
        assert_eq!(other_boot.inventory.units().count(), 2);
    }

    #[test]
    fn a_boot_begins_anew_where_there_are_gpus() {
        let before = before(vec![gpu(0), gpu(1)]);
        let now = node(vec![gpu(1)]);
        let shown = next(Some(&before), now.clone(), &[holds("c", "GPU-0")], true, Some("other"));
        assert_eq!(shown, Shown { inventory: now, waiting: vec![] });
    }

    #[test]
    fn a_new_layout_waits_for_the_leases_on_the_gpu() {
        let before = before(vec![with_slices(0, &["MIG-a", "MIG-b"]), gpu(1)]);
        let now = || vec![with_slices(0, &["MIG-c"]), gpu(1)];
        let new = ["MIG-c", "GPU-1"];
        assert_eq!(shown(&before, now(), &[], false), (new.map(str::to_owned).into(), vec![]));
        let other = [holds("c1", "GPU-1")];
        assert_eq!(shown(&before, now(), &other, false).0, new);
        let (units, waiting) = shown(&before, now(), &[holds("c1", "MIG-b")], false);
        assert_eq!(units, ["MIG-a", "MIG-b", "GPU-1"]);
        let containers = vec!["c1".to_owned()];
        assert_eq!(waiting, [Waiting { gpu: "GPU-0".to_owned(), containers }]);
    }

    #[test]
    fn where_places_count_any_lease_stands_in_the_way() {
        let before = before(vec![with_slices(0, &["MIG-a", "MIG-b"]), gpu(1)]);
        let now = || vec![with_slices(0, &["MIG-c"]), gpu(1)];
        let (units, waiting) = shown(&before, now(), &[holds("c1", "GPU-1")], true);
        assert_eq!((units.len(), waiting.len()), (3, 1));
        assert_eq!(waiting[0].gpu, "GPU-0");
        assert_eq!(shown(&before, now(), &[], true).0, ["MIG-c", "GPU-1"]);
    }

    #[test]
    fn what_waits_has_the_heat_and_load_of_now() {
        let hot = Gpu {
            utilization: Utilization { gpu: Some(99), memory: None },
            ..with_slices(0, &["MIG-c"])
        };
        let before = before(vec![with_slices(0, &["MIG-a"])]);
        let holders = [holds("c1", "MIG-a")];
        let gpus =
            next(Some(&before), node(vec![hot]), &holders, false, Some("boot")).inventory.gpus;
        assert_eq!(gpus[0].utilization.gpu, Some(99));
        assert_eq!(gpus[0].mig.slices[0].uuid.as_deref(), Some("MIG-a"));
    }
}
