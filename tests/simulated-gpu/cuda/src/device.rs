//! The devices that a process sees, and what they say of themselves.
//!
//! `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` are read as the CUDA Programming Guide says
//! ("CUDA Environment Variables"), MIG slices as the MIG User Guide does ("Device Enumeration"): a
//! process sees one slice at most, and beside a slice no whole GPU.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use simulated_nvml::CudaCode;
use simulated_nvml::model::Model;
use simulated_nvml::topology::{ComputeMode, Gpu, PciAddress};

use crate::driver::{Driver, Result, complain};
use crate::table::Handle;

/// A device.
pub(crate) struct Device {
    /// NVML index of its GPU.
    pub(crate) gpu: u32,
    /// The slice on it; absent: the whole GPU.
    slice: Option<u32>,
    pub(crate) name: String,
    pub(crate) uuid: String,
    /// Bytes of memory.
    pub(crate) memory: u64,
    /// Bytes that a process takes for its contexts.
    context_memory: u64,
    multiprocessors: u32,
    pub(crate) capability: (i32, i32),
    pub(crate) pci: PciAddress,
    compute_mode: ComputeMode,
    hardware: &'static Hardware,
    ecc: bool,
    /// The primary context, and how often it is retained.
    primary: Mutex<Primary>,
    /// Contexts of this process on it.
    contexts: Mutex<u32>,
    pub(crate) default_pool: OnceLock<Handle>,
    pool: AtomicUsize,
}

#[derive(Debug, Default)]
pub(crate) struct Primary {
    pub(crate) users: u32,
    pub(crate) context: Handle,
    pub(crate) flags: u32,
}

/// What NVML doesn't say of a model. Sources: NVIDIA's data sheets and whitepapers of the chips.
struct Hardware {
    model: &'static str,
    /// Clock of the SMs and of the memory in kHz.
    clocks: (i32, i32),
    /// Width of the memory's bus in bits.
    bus: i32,
    /// L2 cache in bytes.
    l2: i32,
}

const fn hardware(model: &'static str, clocks: (i32, i32), bus: i32, l2_mib: i32) -> Hardware {
    Hardware { model, clocks, bus, l2: l2_mib << 20 }
}

static HARDWARE: &[Hardware] = &[
    hardware("t4", (1_590_000, 5_001_000), 256, 4),
    hardware("v100", (1_530_000, 877_000), 4096, 6),
    hardware("rtx6000", (1_770_000, 7_001_000), 384, 6),
    hardware("a10", (1_695_000, 6_251_000), 384, 6),
    hardware("a100", (1_410_000, 1_215_000), 5120, 40),
    hardware("a100-80gb", (1_410_000, 1_593_000), 5120, 40),
    hardware("h100", (1_980_000, 2_619_000), 5120, 50),
    hardware("h200", (1_980_000, 3_201_000), 6144, 60),
    hardware("b200", (1_965_000, 3_996_000), 8192, 126),
];

/// What a block and an SM may have, by compute capability. (CUDA Programming Guide, "Technical
/// Specifications per Compute Capability".)
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Threads of an SM.
    pub(crate) threads: u32,
    /// Blocks of an SM.
    pub(crate) blocks: u32,
    /// Shared memory of an SM in bytes.
    pub(crate) shared: u32,
    /// Shared memory that a block may opt in to, in bytes.
    pub(crate) shared_block: u32,
    /// Shared memory of a block that the driver takes, in bytes.
    pub(crate) shared_reserved: u32,
}

/// Threads of a block.
pub(crate) const MAX_THREADS: u32 = 1024;
/// Static and dynamic shared memory of a block without opting in, in bytes.
pub(crate) const SHARED_DEFAULT: u32 = 48 << 10;

impl Device {
    fn new(gpu: u32, of: &Gpu, slice: Option<u32>) -> Self {
        let part = slice.and_then(|slice| of.slices.as_ref()?.get(slice as usize));
        Self {
            gpu,
            slice,
            name: match part {
                None => of.name.clone(),
                Some(slice) => format!("{} MIG {}", of.name, slice.profile.name),
            },
            uuid: part.map_or_else(|| of.uuid.clone(), |slice| of.slice_uuid(slice)),
            memory: match part {
                None => of.memory - of.memory_reserved,
                Some(slice) => slice.profile.memory_mib << 20,
            },
            context_memory: of.memory_context,
            multiprocessors: part
                .map_or(of.model.multiprocessors, |slice| slice.profile.multiprocessors),
            capability: of.model.compute_capability,
            pci: of.pci,
            compute_mode: of.compute_mode,
            hardware: hardware_of(of.model),
            ecc: !of.ecc.off,
            primary: Mutex::default(),
            contexts: Mutex::default(),
            default_pool: OnceLock::new(),
            pool: AtomicUsize::new(0),
        }
    }

    pub(crate) fn primary(&self) -> MutexGuard<'_, Primary> {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool that stream-ordered allocations are from.
    pub(crate) fn pool(&self) -> Handle {
        self.pool.load(Ordering::Acquire)
    }

    pub(crate) fn set_pool(&self, pool: Handle) {
        self.pool.store(pool, Ordering::Release);
    }

    /// Lets the process in, with its first context.
    pub(crate) fn enter(&self, driver: &Driver) -> Result<()> {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if *contexts == 0 {
            let others = driver.node.state.uses(self.gpu).into_iter();
            let taken = others.filter(|claim| claim.slice == self.slice);
            let free = match self.compute_mode {
                ComputeMode::Default => true,
                ComputeMode::Prohibited => false,
                ComputeMode::ExclusiveProcess => {
                    taken.clone().all(|claim| claim.pid == std::process::id())
                }
            };
            if !free {
                return Err(CudaCode::DEVICE_UNAVAILABLE);
            }
            self.take(driver, self.context_memory)?;
        }
        *contexts += 1;
        Ok(())
    }

    /// Lets the process out, after its last context.
    pub(crate) fn leave(&self, driver: &Driver) {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        *contexts = contexts.saturating_sub(1);
        if *contexts == 0 {
            let (pid, gpu, slice) = (std::process::id(), self.gpu, self.slice);
            let nothing = simulated_nvml::state::Use { pid, gpu, slice, bytes: 0 };
            if let Err(error) = driver.node.state.claim(nothing) {
                complain(CudaCode::UNKNOWN, error);
            }
        }
    }

    /// Takes memory of the device, if there is so much.
    pub(crate) fn take(&self, driver: &Driver, bytes: u64) -> Result<()> {
        match driver.node.state.grow(self.gpu, self.slice, bytes, self.memory) {
            Ok(true) => Ok(()),
            Ok(false) => Err(CudaCode::OUT_OF_MEMORY),
            Err(error) => Err(complain(CudaCode::UNKNOWN, error)),
        }
    }

    /// Gives memory back.
    pub(crate) fn give_back(&self, driver: &Driver, bytes: u64) {
        if let Err(error) = driver.node.state.shrink(self.gpu, self.slice, bytes) {
            complain(CudaCode::UNKNOWN, error);
        }
    }

    /// Bytes that nobody uses.
    pub(crate) fn free(&self, driver: &Driver) -> u64 {
        let state = &driver.node.state;
        let claims = state.uses(self.gpu).into_iter().filter(|claim| claim.slice == self.slice);
        let claimed: u64 = claims.map(|claim| claim.bytes).sum();
        let others = if self.slice.is_none() { state.used(self.gpu) } else { 0 };
        self.memory.saturating_sub(claimed + others)
    }

    /// What a block and an SM may have.
    pub(crate) fn limits(&self) -> Limits {
        let (threads, blocks, shared_kib, block_kib, shared_reserved) = match self.capability {
            (7, 0) => (2048, 32, 96, 96, 0),
            (7, _) => (1024, 16, 64, 64, 0),
            (8, 0) => (2048, 32, 164, 163, 1024),
            (8, _) => (1536, 16, 100, 99, 1024),
            _ => (2048, 32, 228, 227, 1024),
        };
        Limits {
            threads,
            blocks,
            shared: shared_kib << 10,
            shared_block: block_kib << 10,
            shared_reserved,
        }
    }

    /// Blocks of a kernel that an SM holds. How many registers a thread has is not known here: 32.
    pub(crate) fn blocks_per_multiprocessor(&self, threads: u32, shared: u32) -> u32 {
        let limits = self.limits();
        let threads = threads.next_multiple_of(32);
        let shared = shared + limits.shared_reserved;
        let by_threads = limits.threads / threads.max(1);
        let by_shared = limits.shared.checked_div(shared).unwrap_or(limits.blocks);
        by_threads.min(by_shared).min(limits.blocks)
    }

    /// An attribute, by its number in `CUdevice_attribute`.
    #[allow(clippy::match_same_arms, reason = "in the order of the numbers")]
    pub(crate) fn attribute(&self, number: i32) -> Result<i32> {
        let limits = self.limits();
        let of = |value: u32| value as i32;
        Ok(match number {
            1..=3 => of(MAX_THREADS),
            4 => 64,
            5 => i32::MAX,
            6 | 7 => 65535,
            8 => of(SHARED_DEFAULT),
            9 => 65536,
            10 => 32,
            11 => i32::MAX,
            12 | 82 => 65536,
            13 => self.hardware.clocks.0,
            14 | 30 => 512,
            // Copies beside kernels, mapped host memory, kernels beside each other, one address
            // space, stream priorities, caches, managed memory.
            15 | 19 | 31 | 41 | 44 | 78 | 79 | 80 | 83 | 89 | 90 | 99 | 102 | 103 | 115 => 1,
            16 => of(self.multiprocessors),
            20 => match self.compute_mode {
                ComputeMode::Default => 0,
                ComputeMode::Prohibited => 2,
                ComputeMode::ExclusiveProcess => 3,
            },
            32 => i32::from(self.ecc),
            33 => i32::from(self.pci.bus),
            34 => i32::from(self.pci.device),
            36 => self.hardware.clocks.1,
            37 => self.hardware.bus,
            38 => self.hardware.l2,
            39 => of(limits.threads),
            40 => 3,
            50 => of(self.pci.domain),
            51 => 32,
            75 => self.capability.0,
            76 => self.capability.1,
            81 => of(limits.shared),
            87 => {
                if self.capability.1 == 0 {
                    2
                } else {
                    32
                }
            }
            97 => of(limits.shared_block),
            106 => of(limits.blocks),
            111 => of(limits.shared_reserved),
            // cudaMemHandleTypePosixFileDescriptor.
            119 => 1,
            // All others are about what there is none of: textures, peers, cooperative launches.
            number if (1..150).contains(&number) => 0,
            _ => return Err(CudaCode::INVALID_VALUE),
        })
    }
}

fn hardware_of(model: &Model) -> &'static Hardware {
    let known = HARDWARE.iter().find(|hardware| hardware.model == model.key);
    known.unwrap_or(&HARDWARE[HARDWARE.len() - 1])
}

/// The devices that this process sees.
pub(crate) fn visible(gpus: &[Gpu]) -> Vec<Device> {
    let variable = |name| std::env::var(name).ok();
    let by_bus = variable("CUDA_DEVICE_ORDER").is_some_and(|order| order == "PCI_BUS_ID");
    choose(gpus, by_bus, variable("CUDA_VISIBLE_DEVICES").as_deref())
}

fn choose(gpus: &[Gpu], by_bus: bool, list: Option<&str>) -> Vec<Device> {
    let mut order: Vec<usize> = (0..gpus.len()).collect();
    order.sort_by_key(|&index| {
        let gpu = &gpus[index];
        let speed =
            i64::from(gpu.model.multiprocessors) * i64::from(hardware_of(gpu.model).clocks.0);
        (if by_bus { 0 } else { -speed }, gpu.pci)
    });
    // A GPU with MIG on is its first slice; one without a slice is nothing.
    let unit = |index: usize| match &gpus[index].slices {
        None => Some((index, None)),
        Some(slices) => (!slices.is_empty()).then_some((index, Some(0))),
    };
    let mut chosen: Vec<(usize, Option<u32>)> = match list {
        None => order.into_iter().filter_map(unit).collect(),
        Some(list) => {
            let mut chosen = Vec::new();
            for name in list.split(',').map(str::trim) {
                // What is behind a name of nothing isn't seen.
                let Some(device) = named(gpus, &order, name, unit) else { break };
                if chosen.contains(&device) {
                    return Vec::new();
                }
                chosen.push(device);
            }
            chosen
        }
    };
    if let Some(slice) = chosen.iter().find(|(_, slice)| slice.is_some()).copied() {
        chosen = vec![slice];
    }
    chosen
        .into_iter()
        .map(|(index, slice)| Device::new(index as u32, &gpus[index], slice))
        .collect()
}

fn named(
    gpus: &[Gpu],
    order: &[usize],
    name: &str,
    unit: impl Fn(usize) -> Option<(usize, Option<u32>)>,
) -> Option<(usize, Option<u32>)> {
    if let Ok(number) = name.parse::<usize>() {
        return order.get(number).and_then(|&index| unit(index));
    }
    if name.starts_with("MIG-") {
        return (0..gpus.len()).find_map(|index| {
            let slices = gpus[index].slices.as_deref().unwrap_or_default();
            let found = slices.iter().position(|slice| {
                let old = format!(
                    "MIG-{}/{}/{}",
                    gpus[index].uuid, slice.gpu_instance, slice.compute_instance
                );
                gpus[index].slice_uuid(slice) == name || old == name
            });
            found.map(|slice| (index, Some(slice as u32)))
        });
    }
    // The beginning of a UUID is enough, where it is of one GPU alone.
    let mut of = (0..gpus.len())
        .filter(|&index| name.starts_with("GPU-") && gpus[index].uuid.starts_with(name));
    let first = of.next()?;
    if of.next().is_some() { None } else { unit(first) }
}

#[cfg(test)]
mod tests {
    use simulated_nvml::Topology;

    use super::*;

    const NODE: &str = "[[gpu]]\nmodel = 't4'\n[[gpu]]\nmodel = 'h200'\ncount = 2\n";
    const MIG: &str = "[[gpu]]\nmodel = 'h200'\n[[gpu]]\nmodel = 'a100'\nmig = '1x3g.20gb+1x2g.10gb'\n\
                       [[gpu]]\nmodel = 'a100'\nmig = ''\n";

    fn seen(topology: &str, by_bus: bool, list: Option<&str>) -> Vec<(u32, Option<u32>)> {
        let gpus = Topology::parse(topology).unwrap().gpus().unwrap();
        choose(&gpus, by_bus, list).iter().map(|device| (device.gpu, device.slice)).collect()
    }

    #[test]
    fn devices_come_by_speed_or_by_bus() {
        assert_eq!(seen(NODE, false, None), [(1, None), (2, None), (0, None)]);
        assert_eq!(seen(NODE, true, None), [(0, None), (1, None), (2, None)]);
    }

    #[test]
    fn a_list_chooses_and_orders() {
        let uuids: Vec<String> = Topology::parse(NODE)
            .unwrap()
            .gpus()
            .unwrap()
            .iter()
            .map(|gpu| gpu.uuid.clone())
            .collect();
        assert_eq!(seen(NODE, true, Some("2,0")), [(2, None), (0, None)]);
        assert_eq!(seen(NODE, true, Some(&uuids[1])), [(1, None)]);
        assert_eq!(seen(NODE, true, Some(&uuids[0][..12])), [(0, None)]);
        // What is behind a name of nothing isn't seen; one named twice is an error.
        assert_eq!(seen(NODE, true, Some("1,7,0")), [(1, None)]);
        assert_eq!(seen(NODE, true, Some("1,1")), []);
        assert_eq!(seen(NODE, true, Some("GPU-")), []);
        assert_eq!(seen(NODE, true, Some("")), []);
        assert_eq!(seen(NODE, true, Some("-1")), []);
    }

    #[test]
    fn a_process_sees_one_slice_and_nothing_else() {
        let gpus = Topology::parse(MIG).unwrap().gpus().unwrap();
        let slices = gpus[1].slices.as_ref().unwrap();
        assert_eq!(seen(MIG, true, None), [(1, Some(0))]);
        let second = gpus[1].slice_uuid(&slices[1]);
        assert_eq!(seen(MIG, true, Some(&second)), [(1, Some(1))]);
        let both = format!("{},{second}", gpus[1].slice_uuid(&slices[0]));
        assert_eq!(seen(MIG, true, Some(&both)), [(1, Some(0))]);
        assert_eq!(seen(MIG, true, Some("0")), [(0, None)]);
        assert_eq!(seen(MIG, true, Some("2")), []);
        let device = &choose(&gpus, true, Some(&second))[0];
        assert_eq!(device.name, "NVIDIA A100-SXM4-40GB MIG 2g.10gb");
        assert_eq!((device.memory >> 20, device.multiprocessors), (9984, 28));
    }

    #[test]
    fn occupancy_is_what_fits() {
        let gpus = Topology::parse(NODE).unwrap().gpus().unwrap();
        let devices = choose(&gpus, true, None);
        assert_eq!(devices[0].blocks_per_multiprocessor(256, 0), 4);
        assert_eq!(devices[0].blocks_per_multiprocessor(64, 32 << 10), 2);
        assert_eq!(devices[1].blocks_per_multiprocessor(1024, 0), 2);
        assert_eq!(devices[1].blocks_per_multiprocessor(32, 0), 32);
    }
}
