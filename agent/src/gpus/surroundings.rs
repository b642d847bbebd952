//! What else uses a GPU, and the host's memory beside it: what an executor that starts there has to
//! reckon with.

use creel_discovery::inventory::Process;
use creel_discovery::{Inventory, Unit};
use creel_wire::GpuHolder;

use crate::peer::Proc;

/// Of a process that is in another PID namespace than the agent.
const NAMELESS: &str = "a process";

/// What else uses a GPU or MIG slice, and the host's memory beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// GPUs and MIG slices of the node; 0: nobody knows them.
    pub gpus: u64,
    /// Processes that hold memory of that one.
    pub holders: Vec<GpuHolder>,
}

impl Surroundings {
    /// Of the GPU or slice of that UUID, with the names of processes as they are now.
    pub(super) fn of(uuid: &str, inventory: &Inventory, proc: &Proc) -> Self {
        let unit = inventory.units().find(|unit| unit.uuid() == Some(uuid));
        let mut holders: Vec<GpuHolder> = Vec::new();
        for process in unit.iter().flat_map(processes) {
            // One that computes and draws is listed twice.
            if !holders.iter().any(|holder| holder.pid == process.pid) {
                holders.extend(holder(process, proc));
            }
        }
        Self { gpus: inventory.units().count() as u64, holders }
    }
}

/// The processes that hold memory of a unit. Compute instances share the memory of their GPU
/// instance.
fn processes<'a>(unit: &Unit<'a>) -> impl Iterator<Item = &'a Process> + use<'a> {
    let slice = unit.slice;
    let is_here = move |process: &&Process| {
        slice.is_none_or(|slice| {
            process.gpu_instance.is_some() && process.gpu_instance == slice.gpu_instance
        })
    };
    unit.gpu.processes.iter().flatten().filter(is_here)
}

/// `None` if it has gone since.
fn holder(process: &Process, proc: &Proc) -> Option<GpuHolder> {
    let name = if proc.is_initial_namespace() {
        proc.name(i32::try_from(process.pid).ok()?).ok()?
    } else {
        NAMELESS.to_owned()
    };
    Some(GpuHolder { pid: process.pid, name, bytes: process.memory })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use creel_discovery::inventory::{Mig, ProcessKind};
    use creel_discovery::{Gpu, Slice};

    use super::*;

    /// A procfs, of the initial PID namespace or of another.
    fn proc(dir: &Path, namespace: &str, names: &[(u32, &str)]) -> Proc {
        fs::create_dir_all(dir.join("self/ns")).unwrap();
        symlink(format!("pid:[{namespace}]"), dir.join("self/ns/pid")).unwrap();
        for (pid, name) in names {
            fs::create_dir(dir.join(pid.to_string())).unwrap();
            fs::write(dir.join(format!("{pid}/comm")), format!("{name}\n")).unwrap();
        }
        Proc::at(dir)
    }

    fn process(pid: u32, kind: ProcessKind, instances: Option<(u32, u32)>) -> Process {
        Process {
            pid,
            kind,
            memory: Some(u64::from(pid) << 20),
            gpu_instance: instances.map(|(gpu, _)| gpu),
            compute_instance: instances.map(|(_, compute)| compute),
        }
    }

    /// A GPU of two slices, and a whole one.
    fn inventory() -> Inventory {
        let slice = |index, gpu_instance| Slice {
            index,
            uuid: Some(format!("MIG-{index}")),
            gpu_instance: Some(gpu_instance),
            compute_instance: Some(0),
            ..Slice::default()
        };
        let compute = ProcessKind::Compute;
        let cut = Gpu {
            mig: Mig {
                enabled: Some(true),
                slices: vec![slice(0, 5), slice(1, 6)],
                ..Mig::default()
            },
            processes: Some(vec![
                process(10, compute, Some((5, 0))),
                process(11, compute, Some((5, 1))),
                process(12, compute, Some((6, 0))),
                process(13, compute, None),
            ]),
            ..Gpu::default()
        };
        let whole = Gpu {
            index: 1,
            uuid: Some("GPU-1".to_owned()),
            processes: Some(vec![
                process(14, compute, None),
                process(14, ProcessKind::Graphics, None),
                process(15, compute, None),
            ]),
            ..Gpu::default()
        };
        Inventory { gpus: vec![cut, whole], ..Inventory::empty() }
    }

    fn holders(uuid: &str, proc: &Proc) -> Vec<(u32, String, Option<u64>)> {
        let found = Surroundings::of(uuid, &inventory(), proc);
        assert_eq!(found.gpus, 3);
        found.holders.into_iter().map(|holder| (holder.pid, holder.name, holder.bytes)).collect()
    }

    #[test]
    fn holders_of_memory_are_named_each_on_its_gpu_or_slice() {
        let dir = tempfile::tempdir().unwrap();
        let names =
            [(10, "train"), (11, "serve"), (12, "dask"), (13, "x"), (14, "odd\n\u{1b}[31m")];
        let proc = proc(dir.path(), "4026531836", &names);
        let holder = |pid, name: &str| (pid, name.to_owned(), Some(u64::from(pid) << 20));
        assert_eq!(holders("MIG-0", &proc), [holder(10, "train"), holder(11, "serve")]);
        assert_eq!(holders("MIG-1", &proc), [holder(12, "dask")]);
        // 15 has gone.
        assert_eq!(holders("GPU-1", &proc), [holder(14, "odd  [31m")]);
        assert_eq!(holders("GPU-7", &proc), []);
    }

    #[test]
    fn in_another_pid_namespace_the_numbers_name_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let proc = proc(dir.path(), "4026532000", &[(12, "another")]);
        assert_eq!(holders("MIG-1", &proc), [(12, NAMELESS.to_owned(), Some(12 << 20))]);
    }
}
