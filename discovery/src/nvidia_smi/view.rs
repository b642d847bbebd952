//! What is shown of a snapshot, and to whom.

use crate::HealthState;
use crate::inventory::{Driver, Gpu, Inventory, Slice};
use crate::snapshot::{MigMinor, Snapshot};

/// The GPUs that a process sees.
#[derive(Debug)]
pub struct View<'a> {
    /// The driver.
    pub driver: Option<&'a Driver>,
    /// What stands for a slice's minor number.
    pub mig_minor: MigMinor,
    /// The GPUs, in PCI order.
    pub gpus: Vec<Seen<'a>>,
}

/// A GPU, as far as it is seen.
#[derive(Debug)]
pub struct Seen<'a> {
    /// Its index, as nvidia-smi gives it to the process.
    pub index: u32,
    /// The GPU.
    pub gpu: &'a Gpu,
    /// Those of its slices that are seen.
    pub slices: Vec<&'a Slice>,
}

impl Seen<'_> {
    /// Whether the GPU can be given to somebody as a whole.
    pub fn is_whole(&self) -> bool {
        self.gpu.mig.enabled != Some(true)
    }

    fn units(&self) -> usize {
        usize::from(self.is_whole()) + self.slices.len()
    }
}

impl<'a> View<'a> {
    /// All GPUs of an inventory that are fit for use.
    pub fn of_inventory(inventory: &'a Inventory) -> Self {
        let gpus = inventory.gpus.iter().filter(|gpu| is_fit(gpu)).map(all).collect();
        Self { driver: inventory.driver.as_ref(), mig_minor: MigMinor::Gpu, gpus }
    }

    /// What a process in that container sees, or one in none. `is_denied` says whether a control
    /// group keeps the process from the GPU with that minor number.
    ///
    /// - In no container: all that is fit for use, and with [`Snapshot::keep_places`] the others
    ///   too. Where nothing is fit for use, all of it: a NodeManager without a GPU doesn't start.
    /// - In a container: what it holds. If it holds nothing, what it can open.
    ///
    /// Where a control group hides GPUs, the others are numbered from 0, as the driver does it.
    pub fn of(
        snapshot: &'a Snapshot,
        container: Option<&str>,
        is_denied: impl Fn(u32) -> bool,
    ) -> Self {
        let gpus = &snapshot.inventory.gpus;
        let seen = match container {
            None => of_node(gpus, snapshot.keep_places),
            Some(container) => {
                let holders = snapshot.holders.iter();
                let devices: Vec<_> = holders
                    .filter(|holder| holder.container == container)
                    .flat_map(|holder| &holder.devices)
                    .collect();
                of_container(gpus, &devices, is_denied)
            }
        };
        Self {
            driver: snapshot.inventory.driver.as_ref(),
            mig_minor: snapshot.mig_minor,
            gpus: seen,
        }
    }
}

fn is_fit(gpu: &Gpu) -> bool {
    gpu.health.state == HealthState::Healthy
}

/// All of a GPU, by its index on the node.
fn all(gpu: &Gpu) -> Seen<'_> {
    Seen { index: gpu.index, gpu, slices: gpu.mig.slices.iter().collect() }
}

fn of_node(gpus: &[Gpu], keep_places: bool) -> Vec<Seen<'_>> {
    let fit: Vec<_> = gpus.iter().filter(|gpu| is_fit(gpu)).map(all).collect();
    let units: usize = fit.iter().map(Seen::units).sum();
    if keep_places || units == 0 { gpus.iter().map(all).collect() } else { fit }
}

fn of_container<'a>(
    gpus: &'a [Gpu],
    devices: &[&String],
    is_denied: impl Fn(u32) -> bool,
) -> Vec<Seen<'a>> {
    let isolated = gpus.iter().any(|gpu| gpu.minor.is_some_and(&is_denied));
    let is_open = |gpu: &&Gpu| !isolated || gpu.minor.is_some_and(|minor| !is_denied(minor));
    let numbered = gpus
        .iter()
        .filter(is_open)
        .zip(0..)
        .map(|(gpu, place)| Seen { index: if isolated { place } else { gpu.index }, ..all(gpu) });
    if devices.is_empty() {
        return numbered.filter(|seen| is_fit(seen.gpu)).collect();
    }
    let is_held = |uuid: &Option<String>| uuid.as_ref().is_some_and(|uuid| devices.contains(&uuid));
    numbered
        .filter_map(|mut seen| {
            seen.slices.retain(|slice| is_held(&slice.uuid));
            (!seen.slices.is_empty() || is_held(&seen.gpu.uuid)).then_some(seen)
        })
        .collect()
}

/// Whether a control group keeps this process from a GPU. The device isn't opened: that starts it
/// up, and may take seconds. access(2) asks the devices controller too (Linux,
/// `inode_permission`), and a device that isn't there is not denied.
pub(super) fn is_denied(minor: u32) -> bool {
    use rustix::fs::Access;
    let device = format!("/dev/nvidia{minor}");
    let answer = rustix::fs::access(device, Access::READ_OK | Access::WRITE_OK);
    matches!(answer, Err(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Health;
    use crate::snapshot::Holder;
    use crate::snapshot::tests::snapshot;

    fn shown(view: &View<'_>) -> Vec<(u32, usize)> {
        view.gpus.iter().map(|seen| (seen.index, seen.units())).collect()
    }

    #[test]
    fn a_gpu_that_is_unfit_is_left_out_or_keeps_its_place() {
        let mut snapshot = snapshot();
        assert_eq!(shown(&View::of(&snapshot, None, |_| false)), [(0, 2), (2, 0), (3, 1)]);
        snapshot.keep_places = true;
        assert_eq!(shown(&View::of(&snapshot, None, |_| false)), [(0, 2), (1, 1), (2, 0), (3, 1)]);
    }

    #[test]
    fn a_node_that_has_lost_all_still_shows_them() {
        let mut snapshot = snapshot();
        for place in [0, 3] {
            snapshot.inventory.gpus[place].health = Health::unhealthy("lost".to_owned());
        }
        assert_eq!(shown(&View::of(&snapshot, None, |_| false)), [(0, 2), (1, 1), (2, 0), (3, 1)]);
    }

    #[test]
    fn a_container_sees_what_it_holds() {
        let mut snapshot = snapshot();
        let hold = |container: &str, devices: &[&str]| Holder {
            container: container.to_owned(),
            uid: 1000,
            devices: devices.iter().map(|&uuid| uuid.to_owned()).collect(),
        };
        snapshot.holders = vec![hold("c1", &["MIG-1", "GPU-3"]), hold("c2", &["MIG-0"])];
        let of = |container, denied: &[u32]| {
            shown(&View::of(&snapshot, Some(container), |minor| denied.contains(&minor)))
        };
        assert_eq!(of("c1", &[]), [(0, 1), (3, 1)]);
        assert_eq!(of("c2", &[]), [(0, 1)]);
        // Its control group hides the GPU before, and the driver the lost one.
        assert_eq!(of("c1", &[2]), [(0, 1), (1, 1)]);
        let c2 = View::of(&snapshot, Some("c2"), |_| false);
        assert_eq!(c2.gpus[0].slices[0].uuid.as_deref(), Some("MIG-0"));
    }

    #[test]
    fn a_container_without_a_lease_sees_what_it_can_open() {
        let snapshot = snapshot();
        let of = |denied: &[u32]| {
            shown(&View::of(&snapshot, Some("other"), |minor| denied.contains(&minor)))
        };
        assert_eq!(of(&[]), [(0, 2), (2, 0), (3, 1)]);
        assert_eq!(of(&[0, 2]), [(0, 1)]);
        assert_eq!(of(&[0, 2, 3]), []);
    }
}
