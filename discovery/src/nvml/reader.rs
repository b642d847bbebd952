//! What NVML knows, as an inventory.

use std::mem;

use nvml_wrapper::enum_wrappers::device::{
    ComputeMode as NvmlComputeMode, EccCounter, MemoryError, TemperatureSensor,
    TemperatureThreshold,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use super::{kernel, library, raw};
use crate::inventory::{
    ComputeMode, Driver, Ecc, Gpu, Inventory, Memory, Mig, NvLinkPeer, Power, Problem, Process,
    ProcessKind, SCHEMA, Slice, Temperature, Utilization,
};
use crate::{Error, Health};

/// More links than any GPU has (`NVML_NVLINK_MAX_LINKS` is 18, and grows).
const MOST_LINKS: u32 = 64;

/// `NVML_AFFINITY_SCOPE_NODE`.
const SCOPE_NODE: u32 = 0;

/// Reads the node's inventory; without a driver, an empty one.
///
/// This may take for ever: it is for a process that nobody waits for without a
/// [deadline](crate::deadline), and that ends afterwards. NVML stays loaded, since giving it back
/// is one more call that may not return.
pub fn read() -> Result<Inventory, Error> {
    let Some((nvml, library)) = library::start()? else { return Ok(Inventory::empty()) };
    let words = |error| raw::words(nvml.lib(), error);
    let count = nvml
        .device_count()
        .map_err(|error| Error::Driver { what: "count the GPUs", words: words(error) })?;
    let mut driver = driver(&nvml, library, Answers::new(&words));
    let mut gpus = Vec::new();
    for index in 0..count {
        match nvml.device_by_index(index) {
            // It is another's, as in a container: CUDA doesn't count it either.
            Err(error @ NvmlError::NoPermission) => {
                let what = format!("GPU {index}");
                driver.problems.push(Problem { what, error: words(error) });
            }
            device => gpus.push(gpu(device, Answers::new(&words))),
        }
    }
    place_lost(&mut gpus, &kernel::pci_bus_ids());
    let gpus = in_pci_order(gpus);
    mem::forget(nvml);
    Ok(Inventory { schema: SCHEMA, driver: Some(driver), gpus })
}

fn driver(nvml: &Nvml, library: &str, mut answers: Answers<'_>) -> Driver {
    let cuda = answers.take("cuda", nvml.sys_cuda_driver_version());
    Driver {
        library: library.to_owned(),
        version: answers.take("version", nvml.sys_driver_version()),
        cuda: cuda.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10)),
        nvml: answers.take("nvml", nvml.sys_nvml_version()),
        problems: answers.problems,
    }
}

/// Says where the GPUs are that don't say it, from where the kernel knows GPUs: they are on the
/// places that are left, if those are as many.
fn place_lost(gpus: &mut [Gpu], all: &[String]) {
    let taken: Vec<_> = gpus.iter().filter_map(|gpu| gpu.pci_bus_id.clone()).collect();
    let left: Vec<_> = all.iter().filter(|id| !taken.contains(id)).collect();
    let lost = gpus.iter_mut().filter(|gpu| gpu.pci_bus_id.is_none());
    if taken.len() + left.len() == all.len() && all.len() == taken.len() + lost.count() {
        let lost = gpus.iter_mut().filter(|gpu| gpu.pci_bus_id.is_none());
        for (gpu, id) in lost.zip(left) {
            gpu.pci_bus_id = Some(id.clone());
        }
    }
}

/// Sorts GPUs by where they are and numbers them. One of which that is not known keeps its place
/// in NVML's order, which is almost always that of PCI.
fn in_pci_order(gpus: Vec<Gpu>) -> Vec<Gpu> {
    let mut known: Vec<_> = gpus.iter().filter(|gpu| gpu.pci_bus_id.is_some()).cloned().collect();
    // NVML writes all parts with leading zeros: the order of the texts is that of the numbers.
    known.sort_by(|one, other| one.pci_bus_id.cmp(&other.pci_bus_id));
    let mut known = known.into_iter();
    gpus.into_iter()
        .map(|own| if own.pci_bus_id.is_some() { known.next().unwrap_or(own) } else { own })
        .zip(0..)
        .map(|(gpu, index)| Gpu { index, ..gpu })
        .collect()
}

/// Collects what fails of the questions that one GPU is asked.
struct Answers<'a> {
    /// The driver's words for an error.
    words: &'a dyn Fn(NvmlError) -> String,
    problems: Vec<Problem>,
    health: Health,
    lost: bool,
}

impl<'a> Answers<'a> {
    fn new(words: &'a dyn Fn(NvmlError) -> String) -> Self {
        Self { words, problems: Vec::new(), health: Health::default(), lost: false }
    }

    /// The answer, if there is one. What the GPU or the driver doesn't have is no problem.
    fn take<T>(&mut self, what: &str, answer: Result<T, NvmlError>) -> Option<T> {
        let error = match answer {
            Ok(answer) => return Some(answer),
            Err(error) if is_absence(&error) => return None,
            Err(error) => error,
        };
        if matches!(error, NvmlError::GpuLost) {
            // All further answers would be this one.
            if self.lost {
                return None;
            }
            self.lost = true;
        }
        let unfit = matches!(error, NvmlError::GpuLost | NvmlError::ResetRequired);
        let problem = Problem { what: what.to_owned(), error: (self.words)(error) };
        if unfit {
            self.health.add(problem.error.clone());
        }
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
        None
    }
}

/// Whether an error says that there is nothing to know, rather than that it is not known.
fn is_absence(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_)
    )
}

fn gpu(device: Result<Device<'_>, NvmlError>, mut answers: Answers<'_>) -> Gpu {
    let mut gpu = Gpu::default();
    if let Some(device) = answers.take("handle", device) {
        gpu = Gpu {
            pci_bus_id: answers.take("pci_bus_id", device.pci_info()).map(|pci| pci.bus_id),
            uuid: answers.take("uuid", device.uuid()),
            minor: answers.take("minor", device.minor_number()),
            name: answers.take("name", device.name()),
            ..gpu
        };
        // A lost GPU has nothing to say, and may take long to say so.
        if !answers.lost {
            gpu = details(&mut answers, &device, gpu);
        }
    } else if !answers.lost {
        answers.health.add("the driver gives no access to it".to_owned());
    }
    Gpu { health: answers.health, problems: answers.problems, ..gpu }
}

fn details(answers: &mut Answers<'_>, device: &Device<'_>, identity: Gpu) -> Gpu {
    let capability = answers.take("compute_capability", device.cuda_compute_capability());
    let utilization = answers.take("utilization", device.utilization_rates());
    let threshold = |answers: &mut Answers<'_>, which| {
        answers.take("temperature", device.temperature_threshold(which))
    };
    Gpu {
        compute_capability: capability.map(|capability| {
            let (major, minor) = (capability.major, capability.minor);
            format!("{major}.{minor}")
        }),
        memory: memory(answers, device),
        mig: mig(answers, device),
        compute_mode: answers.take("compute_mode", device.compute_mode()).map(ComputeMode::from),
        utilization: Utilization {
            gpu: utilization.as_ref().map(|rates| rates.gpu),
            memory: utilization.as_ref().map(|rates| rates.memory),
        },
        temperature: Temperature {
            gpu: answers.take("temperature", device.temperature(TemperatureSensor::Gpu)),
            slowdown: threshold(answers, TemperatureThreshold::Slowdown),
            shutdown: threshold(answers, TemperatureThreshold::Shutdown),
        },
        power: Power {
            draw: answers.take("power", device.power_usage()),
            limit: answers.take("power", device.enforced_power_limit()),
        },
        ecc: ecc(answers, device),
        nvlink: nvlink(answers, device),
        numa_node: numa_node(answers, device),
        processes: processes(answers, device),
        ..identity
    }
}

fn memory(answers: &mut Answers<'_>, device: &Device<'_>) -> Memory {
    let answer = match device.memory_info() {
        Ok(info) => Ok(Memory {
            total: Some(info.total),
            reserved: Some(info.reserved),
            used: Some(info.used),
            free: Some(info.free),
        }),
        Err(error) if is_absence(&error) => raw::memory(device),
        Err(error) => Err(error),
    };
    answers.take("memory", answer).unwrap_or_default()
}

fn mig(answers: &mut Answers<'_>, device: &Device<'_>) -> Mig {
    let Some(mode) = answers.take("mig", device.mig_mode()) else { return Mig::default() };
    let enabled = mode.current == 1;
    let most = enabled.then(|| answers.take("mig", device.mig_device_count())).flatten();
    let mut slices = Vec::new();
    for index in 0..most.unwrap_or(0) {
        match device.mig_device_by_index(index) {
            // There may be fewer than there can be.
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
            answer => {
                if let Some(slice_device) = answers.take("mig", answer) {
                    slices.push(slice(answers, &slice_device, slices.len() as u32));
                }
            }
        }
    }
    if let Some(minor) = device.minor_number().ok().filter(|_| !slices.is_empty()) {
        let minors = kernel::access_minors(minor);
        for slice in &mut slices {
            let of = |instance| minors.get(&instance).copied();
            slice.access_minor = slice.gpu_instance.and_then(of);
        }
    }
    Mig { enabled: Some(enabled), pending: Some(mode.pending == 1), slices }
}

fn slice(answers: &mut Answers<'_>, device: &Device<'_>, index: u32) -> Slice {
    let name = answers.take("mig name", device.name());
    let attributes = answers.take("mig attributes", device.attributes());
    Slice {
        index,
        uuid: answers.take("mig uuid", device.uuid()),
        // `NVIDIA A100-SXM4-40GB MIG 3g.20gb`
        profile: name.and_then(|name| Some(name.rsplit_once(" MIG ")?.1.to_owned())),
        gpu_instance: answers.take("mig gpu_instance", raw::gpu_instance(device)),
        compute_instance: answers.take("mig compute_instance", raw::compute_instance(device)),
        access_minor: None,
        multiprocessors: attributes.map(|attributes| attributes.multiprocessor_count),
        memory: memory(answers, device),
    }
}

fn ecc(answers: &mut Answers<'_>, device: &Device<'_>) -> Ecc {
    let mode = answers.take("ecc", device.is_ecc_enabled());
    let mut errors = |kind, counter| answers.take("ecc", device.total_ecc_errors(kind, counter));
    let corrected = errors(MemoryError::Corrected, EccCounter::Volatile);
    let uncorrected = errors(MemoryError::Uncorrected, EccCounter::Volatile);
    let uncorrected_ever = errors(MemoryError::Uncorrected, EccCounter::Aggregate);
    let remapped_rows = answers.take("ecc", raw::remapped_rows(device));
    if remapped_rows.as_ref().is_some_and(|rows| rows.failed) {
        answers.health.add("a bad memory row could not be replaced".to_owned());
    }
    Ecc {
        enabled: mode.map(|mode| mode.currently_enabled),
        corrected,
        uncorrected,
        uncorrected_ever,
        remapped_rows,
    }
}

/// The peers of all links that are up, each once.
fn nvlink(answers: &mut Answers<'_>, device: &Device<'_>) -> Option<Vec<NvLinkPeer>> {
    let mut peers: Vec<NvLinkPeer> = Vec::new();
    for number in 0..MOST_LINKS {
        let link = device.link_wrapper_for(number);
        match link.is_active() {
            Ok(false) => continue,
            Ok(true) => {}
            // Beyond its last link; a GPU without any says so of the first.
            Err(NvmlError::InvalidArg | NvmlError::NotSupported) => break,
            Err(error) => {
                answers.take("nvlink", Err::<(), _>(error));
                return None;
            }
        }
        let kind = answers.take("nvlink", raw::nvlink_peer(device, number)).flatten();
        let pci = answers.take("nvlink", link.remote_pci_info());
        let pci_bus_id = pci.map(|pci| pci.bus_id);
        match peers.iter_mut().find(|peer| peer.kind == kind && peer.pci_bus_id == pci_bus_id) {
            Some(peer) => peer.links += 1,
            None => peers.push(NvLinkPeer { kind, pci_bus_id, links: 1 }),
        }
    }
    Some(peers)
}

/// The first NUMA node whose memory is nearest to the GPU.
fn numa_node(answers: &mut Answers<'_>, device: &Device<'_>) -> Option<u32> {
    // Room for 1024 nodes, the kernel's limit.
    let words = answers.take("numa_node", device.memory_affinity(16, SCOPE_NODE))?;
    let (word, bits) = words.iter().enumerate().find(|(_, bits)| **bits != 0)?;
    Some(word as u32 * u64::BITS + bits.trailing_zeros())
}

fn processes(answers: &mut Answers<'_>, device: &Device<'_>) -> Option<Vec<Process>> {
    let compute = match device.running_compute_processes() {
        Err(error) if is_absence(&error) => device.running_compute_processes_v2(),
        answer => answer,
    };
    let graphics = match device.running_graphics_processes() {
        Err(error) if is_absence(&error) => device.running_graphics_processes_v2(),
        answer => answer,
    };
    let compute = answers.take("processes", compute);
    let graphics = answers.take("processes", graphics);
    if compute.is_none() && graphics.is_none() {
        return None;
    }
    let all = compute.into_iter().flatten().map(|info| process(&info, ProcessKind::Compute));
    let graphics = graphics.into_iter().flatten();
    Some(all.chain(graphics.map(|info| process(&info, ProcessKind::Graphics))).collect())
}

fn process(info: &ProcessInfo, kind: ProcessKind) -> Process {
    Process {
        pid: info.pid,
        kind,
        memory: match info.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
        gpu_instance: info.gpu_instance_id,
        compute_instance: info.compute_instance_id,
    }
}

impl From<NvmlComputeMode> for ComputeMode {
    fn from(mode: NvmlComputeMode) -> Self {
        match mode {
            NvmlComputeMode::Default => Self::Default,
            NvmlComputeMode::ExclusiveThread => Self::ExclusiveThread,
            NvmlComputeMode::Prohibited => Self::Prohibited,
            NvmlComputeMode::ExclusiveProcess => Self::ExclusiveProcess,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(ids: &[Option<&str>]) -> Vec<Gpu> {
        let names = (0..).map(|place: u32| place.to_string());
        ids.iter()
            .zip(names)
            .map(|(id, name)| Gpu {
                pci_bus_id: id.map(str::to_owned),
                name: Some(name),
                ..Gpu::default()
            })
            .collect()
    }

    fn order(ids: &[Option<&str>]) -> Vec<String> {
        let sorted = in_pci_order(gpus(ids));
        assert!(sorted.iter().zip(0..).all(|(gpu, index)| gpu.index == index));
        sorted.into_iter().filter_map(|gpu| gpu.name).collect()
    }

    const A: &str = "00000000:3B:00.0";
    const B: &str = "00000000:AF:00.0";
    const C: &str = "00000001:01:00.0";

    #[test]
    fn the_order_is_that_of_pci() {
        assert_eq!(order(&[Some(C), Some(A), Some(B)]), ["1", "2", "0"]);
    }

    #[test]
    fn a_gpu_of_unknown_place_keeps_nvmls() {
        assert_eq!(order(&[None, Some(C), Some(A)]), ["0", "2", "1"]);
        assert_eq!(order(&[Some(C), None, Some(A)]), ["2", "1", "0"]);
    }

    #[test]
    fn a_lost_gpu_is_where_no_other_is() {
        let placed = |ids: &[Option<&str>], all: &[&str]| {
            let mut gpus = gpus(ids);
            let all: Vec<_> = all.iter().map(|id| (*id).to_owned()).collect();
            place_lost(&mut gpus, &all);
            gpus.into_iter().map(|gpu| gpu.pci_bus_id.unwrap_or_default()).collect::<Vec<_>>()
        };
        assert_eq!(placed(&[Some(A), None, Some(C)], &[A, B, C]), [A, B, C]);
        assert_eq!(placed(&[None, Some(B), None], &[A, B, C]), [A, B, C]);
        // The kernel tells of others, or of none.
        assert_eq!(placed(&[Some(A), None], &[A, B, C]), [A, ""]);
        assert_eq!(placed(&[Some(A), None], &[B, C]), [A, ""]);
        assert_eq!(placed(&[Some(A), None], &[]), [A, ""]);
    }

    #[test]
    fn a_lost_gpu_is_a_problem_once() {
        let words = |error: NvmlError| error.to_string();
        let mut answers = Answers::new(&words);
        assert_eq!(answers.take::<u32>("uuid", Err(NvmlError::GpuLost)), None);
        assert_eq!(answers.take::<u32>("name", Err(NvmlError::GpuLost)), None);
        assert_eq!(answers.take::<u32>("power", Err(NvmlError::NotSupported)), None);
        assert_eq!(answers.problems.len(), 1);
        assert_eq!(answers.health.state, crate::HealthState::Unhealthy);
    }
}
