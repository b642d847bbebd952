//! What there is to know about a node's GPUs. These types are the JSON format.
//!
//! Memory is in bytes. `None` (`null`) is what the driver doesn't say.

use serde::{Deserialize, Serialize};

use crate::{Error, Health, HealthState};

/// The version of the JSON format; a change that breaks a reader raises it.
pub const SCHEMA: u32 = 1;

/// A node's GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The driver; absent: there is none on the node.
    pub driver: Option<Driver>,
    /// The GPUs in the order of their PCI bus ids, which is that of nvidia-smi.
    pub gpus: Vec<Gpu>,
}

/// The NVIDIA driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// The NVML library that was loaded.
    pub library: String,
    /// Version of the driver, as `580.95.05`.
    pub version: Option<String>,
    /// The newest CUDA version that it serves, as `13.0`.
    pub cuda: Option<String>,
    /// Version of NVML, as `13.580.95.05`.
    pub nvml: Option<String>,
    /// What it failed to say.
    pub problems: Vec<Problem>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Place in PCI order, from 0.
    pub index: u32,
    /// Minor number of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// As `00000000:17:00.0`.
    pub pci_bus_id: Option<String>,
    /// The model.
    pub name: Option<String>,
    /// CUDA compute capability, as `9.0`.
    pub compute_capability: Option<String>,
    /// Device memory.
    pub memory: Memory,
    /// Multi-Instance GPU.
    pub mig: Mig,
    /// How many processes may compute.
    pub compute_mode: Option<ComputeMode>,
    /// How busy it is, in percent.
    pub utilization: Utilization,
    /// Temperatures in °C.
    pub temperature: Temperature,
    /// Power in milliwatts.
    pub power: Power,
    /// Memory errors.
    pub ecc: Ecc,
    /// Where its `NVLinks` lead; empty: it has none that is up.
    pub nvlink: Option<Vec<NvLinkPeer>>,
    /// The NUMA node of the host that is nearest.
    pub numa_node: Option<u32>,
    /// Processes with a context on it.
    pub processes: Option<Vec<Process>>,
    /// Whether it is fit for use.
    pub health: Health,
    /// What the driver failed to say.
    pub problems: Vec<Problem>,
}

/// Something that the driver failed to say; what it doesn't support is no problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What was asked for, as `memory`.
    pub what: String,
    /// The driver's words.
    pub error: String,
}

/// Device memory in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All of it.
    pub total: Option<u64>,
    /// What the driver keeps for itself. Drivers before R510 count it as used.
    pub reserved: Option<u64>,
    /// What is in use.
    pub used: Option<u64>,
    /// What is free.
    pub free: Option<u64>,
}

/// Multi-Instance GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mig {
    /// Whether it is on; absent: the model has none.
    pub enabled: Option<bool>,
    /// Whether it will be on after the next reset.
    pub pending: Option<bool>,
    /// The slices, in the driver's order.
    pub slices: Vec<Slice>,
}

/// A MIG slice: a compute instance within a GPU instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Place within its GPU, from 0.
    pub index: u32,
    /// `MIG-…`.
    pub uuid: Option<String>,
    /// As `3g.20gb`.
    pub profile: Option<String>,
    /// Id of the GPU instance.
    pub gpu_instance: Option<u32>,
    /// Id of the compute instance in it.
    pub compute_instance: Option<u32>,
    /// Minor number of the device below `/dev/nvidia-caps` that gives access to the GPU instance.
    pub access_minor: Option<u32>,
    /// Streaming multiprocessors.
    pub multiprocessors: Option<u32>,
    /// Its part of the device memory.
    pub memory: Memory,
}

/// How many processes may compute on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    /// Any number.
    Default,
    /// One, by one thread (drivers of long ago).
    ExclusiveThread,
    /// None.
    Prohibited,
    /// One.
    ExclusiveProcess,
}

/// How busy a GPU was in the driver's last sampling period, in percent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Utilization {
    /// Time in which a kernel ran.
    pub gpu: Option<u32>,
    /// Time in which device memory was read or written.
    pub memory: Option<u32>,
}

/// Temperatures in °C.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Temperature {
    /// Now.
    pub gpu: Option<u32>,
    /// Where the hardware slows down.
    pub slowdown: Option<u32>,
    /// Where it shuts down.
    pub shutdown: Option<u32>,
}

/// Power in milliwatts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Power {
    /// Now.
    pub draw: Option<u32>,
    /// What it is held to.
    pub limit: Option<u32>,
}

/// Memory errors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ecc {
    /// Whether memory is checked; absent: the model can't.
    pub enabled: Option<bool>,
    /// Errors corrected since the driver was loaded.
    pub corrected: Option<u64>,
    /// Errors not corrected since the driver was loaded.
    pub uncorrected: Option<u64>,
    /// Errors not corrected in the GPU's life.
    pub uncorrected_ever: Option<u64>,
    /// Memory rows replaced by spare ones; absent before Ampere.
    pub remapped_rows: Option<RemappedRows>,
}

/// Memory rows that were replaced by spare ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// For errors that were corrected.
    pub corrected: u32,
    /// For errors that were not.
    pub uncorrected: u32,
    /// One waits for a reset of the GPU.
    pub pending: bool,
    /// One failed: no spare row was left.
    pub failed: bool,
}

/// What is at the other end of one or more `NVLinks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLinkPeer {
    /// What it is.
    pub kind: Option<NvLinkPeerKind>,
    /// Where it is.
    pub pci_bus_id: Option<String>,
    /// Links that lead there.
    pub links: u32,
}

/// What an `NVLink` leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NvLinkPeerKind {
    /// A GPU.
    Gpu,
    /// A processor.
    Cpu,
    /// A switch.
    Switch,
}

/// A process with a context on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its process id, as the driver sees it: that of the initial pid namespace.
    pub pid: u32,
    /// What it does there.
    pub kind: ProcessKind,
    /// Bytes of device memory that it uses.
    pub memory: Option<u64>,
    /// The GPU instance that it is on.
    pub gpu_instance: Option<u32>,
    /// The compute instance that it is on.
    pub compute_instance: Option<u32>,
}

/// What a process does on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessKind {
    /// It computes (CUDA).
    Compute,
    /// It draws.
    Graphics,
}

impl Gpu {
    /// Without what changes all the time: utilisation, temperature, power, memory in use and
    /// processes.
    #[must_use]
    pub fn lasting(mut self) -> Self {
        let slices = self.mig.slices.iter_mut().map(|slice| &mut slice.memory);
        for memory in slices.chain([&mut self.memory]) {
            (memory.used, memory.free) = (None, None);
        }
        self.utilization = Utilization::default();
        self.temperature.gpu = None;
        self.power.draw = None;
        self.processes = None;
        self
    }
}

/// Something that can be given to one user alone: a whole GPU or a MIG slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit<'a> {
    /// Place among the node's units, from 0: its address for Spark.
    pub address: u32,
    /// The GPU.
    pub gpu: &'a Gpu,
    /// The slice of it; absent: all of the GPU.
    pub slice: Option<&'a Slice>,
}

impl<'a> Unit<'a> {
    /// Its UUID: `GPU-…` or `MIG-…`.
    pub fn uuid(&self) -> Option<&'a str> {
        let uuid = self.slice.map_or(&self.gpu.uuid, |slice| &slice.uuid);
        uuid.as_deref()
    }

    /// Whether it may be given to anybody.
    pub fn usable(&self) -> bool {
        self.gpu.health.state == HealthState::Healthy
    }
}

impl Inventory {
    /// A node without a driver.
    pub fn empty() -> Self {
        Self { schema: SCHEMA, driver: None, gpus: Vec::new() }
    }

    /// Reads what `creel-discovery --format json` prints.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Schema {
            schema: u32,
        }
        let Schema { schema } = serde_json::from_str(text)?;
        if schema != SCHEMA {
            return Err(Error::Schema { found: schema });
        }
        Ok(serde_json::from_str(text)?)
    }

    /// The node's units, in order: of a GPU with MIG on, its slices (none, if it has none); of any
    /// other, itself. Those that are not [usable](Unit::usable) are among them, so that an address
    /// means the same device when another one fails.
    pub fn units(&self) -> impl Iterator<Item = Unit<'_>> {
        self.gpus
            .iter()
            .flat_map(|gpu| {
                let whole = (gpu.mig.enabled != Some(true)).then_some((gpu, None));
                let slices = gpu.mig.slices.iter().map(move |slice| (gpu, Some(slice)));
                whole.into_iter().chain(slices)
            })
            .zip(0..)
            .map(|((gpu, slice), address)| Unit { address, gpu, slice })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A node with a GPU of two slices, a lost one, one with MIG on and no slice, and a whole one.
    pub(crate) fn node() -> Inventory {
        let gib = 1 << 30;
        let slice = |index| Slice {
            index,
            uuid: Some(format!("MIG-{index}")),
            profile: Some("3g.20gb".to_owned()),
            gpu_instance: Some(index + 1),
            compute_instance: Some(0),
            access_minor: Some(9 * (index + 1) + 3),
            multiprocessors: Some(42),
            memory: Memory {
                total: Some(20 * gib),
                reserved: Some(0),
                used: Some(0),
                free: Some(20 * gib),
            },
        };
        let gpu = |index: u32| Gpu {
            index,
            minor: Some(index),
            uuid: Some(format!("GPU-{index}")),
            pci_bus_id: Some(format!("00000000:{index:02X}:00.0")),
            name: Some("NVIDIA A100-SXM4-40GB".to_owned()),
            mig: Mig { enabled: Some(false), pending: Some(false), slices: Vec::new() },
            utilization: Utilization { gpu: Some(7), memory: Some(1) },
            temperature: Temperature { gpu: Some(30), slowdown: Some(89), shutdown: Some(92) },
            memory: Memory {
                total: Some(40 * gib),
                reserved: Some(gib),
                used: Some(2 * gib),
                free: Some(37 * gib),
            },
            ..Gpu::default()
        };
        let on = |slices| Mig { enabled: Some(true), pending: Some(true), slices };
        let lost =
            Gpu { index: 1, health: Health::unhealthy("GPU is lost".to_owned()), ..Gpu::default() };
        Inventory {
            schema: SCHEMA,
            driver: Some(Driver {
                library: "libnvidia-ml.so.1".to_owned(),
                version: Some("580.95.05".to_owned()),
                cuda: Some("13.0".to_owned()),
                nvml: None,
                problems: Vec::new(),
            }),
            gpus: vec![
                Gpu { mig: on(vec![slice(0), slice(1)]), ..gpu(0) },
                lost,
                Gpu { mig: on(Vec::new()), ..gpu(2) },
                gpu(3),
            ],
        }
    }

    #[test]
    fn units_are_slices_and_whole_gpus() {
        let node = node();
        let units: Vec<_> =
            node.units().map(|unit| (unit.address, unit.uuid(), unit.usable())).collect();
        assert_eq!(
            units,
            [
                (0, Some("MIG-0"), true),
                (1, Some("MIG-1"), true),
                (2, None, false),
                (3, Some("GPU-3"), true)
            ]
        );
    }

    #[test]
    fn json_comes_back_as_it_went() {
        let node = node();
        let text = serde_json::to_string(&node).unwrap();
        assert_eq!(Inventory::from_json(&text).unwrap(), node);
    }

    #[test]
    fn what_is_no_inventory_is_refused() {
        assert!(matches!(Inventory::from_json("hello"), Err(Error::Json(_))));
        assert!(matches!(Inventory::from_json("{}"), Err(Error::Json(_))));
        let newer = r#"{"schema":2,"new":true}"#;
        assert!(matches!(Inventory::from_json(newer), Err(Error::Schema { found: 2 })));
    }
}
