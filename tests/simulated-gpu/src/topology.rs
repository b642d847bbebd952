//! What a node has: a TOML file, and the GPUs that it comes to.
//!
//! ```toml
//! driver_version = "470.57.02"
//! cuda_version = "11.4"
//! missing_functions = ["nvmlDeviceGetMemoryInfo_v2"]
//!
//! [[gpu]]
//! model = "rtx6000"
//! pci_bus_id = "00000000:3B:00.0"
//! numa_node = 1
//! memory = { used_mib = 701 }
//!
//! [[gpu]]
//! model = "a100"
//! count = 2
//! mig = "3x2g.10gb+1x1g.5gb"
//!
//! [[fault]]
//! gpu = 2
//! error = "GPU_IS_LOST"
//! ```

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::mig::{self, Slice};
use crate::model::{Model, NvLinkWiring};
use crate::{Error, Fault};

/// A topology file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Topology {
    /// Version of the driver; absent: [`Topology::DRIVER_VERSION`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<String>,
    /// CUDA version of the driver, as `13.0`; absent: [`Topology::CUDA_VERSION`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_version: Option<String>,
    /// Functions that the library doesn't have, as in old drivers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_functions: Vec<String>,
    /// The GPUs, in the order of their NVML index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu: Vec<GpuConfig>,
    /// What is wrong from the start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fault: Vec<Fault>,
}

/// One or more GPUs of a topology file. What is absent is the model's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuConfig {
    /// Name of the model, as in a SPEC.
    pub model: String,
    /// How many of them.
    #[serde(default = "one")]
    pub count: u32,
    /// MIG layout, as `3x2g.10gb+1x1g.5gb`; empty: MIG is on, and there is no slice. Absent: off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<String>,
    /// Name that NVML gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// As `GPU-` and a UUID; absent: made of model and index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Minor number of the device node; absent: the index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// As `00000000:3B:00.0`; absent: rising with the index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<String>,
    /// NUMA node; absent: unknown to the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Device memory.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory: MemoryConfig,
    /// Utilisation of GPU and memory in percent; absent: idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<(u32, u32)>,
    /// Temperature in °C.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<u32>,
    /// Power draw in watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<u32>,
    /// Compute mode.
    #[serde(default, skip_serializing_if = "is_default")]
    pub compute_mode: ComputeMode,
    /// Memory errors; absent: none yet.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ecc: EccConfig,
    /// Where its `NVLinks` lead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<NvLinkWiring>,
}

impl Default for GpuConfig {
    fn default() -> Self {
        Self {
            model: "h200".to_owned(),
            count: 1,
            mig: None,
            name: None,
            uuid: None,
            minor: None,
            pci_bus_id: None,
            numa_node: None,
            memory: MemoryConfig::default(),
            utilization: None,
            temperature: None,
            power: None,
            compute_mode: ComputeMode::default(),
            ecc: EccConfig::default(),
            nvlink: None,
        }
    }
}

fn one() -> u32 {
    1
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Device memory in MiB, fractions allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryConfig {
    /// All of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_mib: Option<f64>,
    /// What the driver keeps for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_mib: Option<f64>,
    /// What is in use by no process of the node's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_mib: Option<f64>,
    /// What each process that computes takes for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_mib: Option<f64>,
}

/// How many processes may compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    /// Any number.
    #[default]
    Default,
    /// None.
    Prohibited,
    /// One.
    ExclusiveProcess,
}

/// Memory errors and what came of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EccConfig {
    /// Whether ECC is switched off.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub off: bool,
    /// Corrected errors since the driver was loaded.
    pub corrected: u64,
    /// Uncorrected errors since the driver was loaded.
    pub uncorrected: u64,
    /// Rows remapped for uncorrected errors.
    pub remapped_rows: u32,
    /// A remapping waits for a reset.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub remap_pending: bool,
    /// A remapping failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub remap_failed: bool,
}

/// A GPU of the node.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Its constants.
    pub model: &'static Model,
    /// Name that NVML gives.
    pub name: String,
    /// As `GPU-` and a UUID.
    pub uuid: String,
    /// Minor number of the device node.
    pub minor: u32,
    /// Where it is.
    pub pci: PciAddress,
    /// NUMA node.
    pub numa_node: Option<u32>,
    /// Bytes of device memory.
    pub memory: u64,
    /// Bytes of it that the driver keeps for itself.
    pub memory_reserved: u64,
    /// Bytes of it in use from the start.
    pub memory_used: u64,
    /// Bytes that each process that computes takes for itself.
    pub memory_context: u64,
    /// Utilisation of GPU and memory in percent.
    pub utilization: (u32, u32),
    /// Temperature in °C.
    pub temperature: u32,
    /// Power draw in watts.
    pub power: u32,
    /// Compute mode.
    pub compute_mode: ComputeMode,
    /// Memory errors.
    pub ecc: EccConfig,
    /// Where its `NVLinks` lead.
    pub nvlink: NvLinkWiring,
    /// Its slices; absent: MIG is off, or the model has none.
    pub slices: Option<Vec<Slice>>,
}

/// A PCI address; ordered as `nvidia-smi` orders GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
}

impl std::fmt::Display for PciAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }
}

impl PciAddress {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_suffix(".0")?.split(':');
        let address = Self {
            domain: u32::from_str_radix(parts.next()?, 16).ok()?,
            bus: u8::from_str_radix(parts.next()?, 16).ok()?,
            device: u8::from_str_radix(parts.next()?, 16).ok()?,
        };
        parts.next().is_none().then_some(address)
    }
}

impl Topology {
    /// The driver that a node has if nothing else is said.
    pub const DRIVER_VERSION: &str = "580.95.05";
    /// The CUDA version that goes with it.
    pub const CUDA_VERSION: &str = "13.0";
    /// A node has no more GPUs than this.
    pub const MAX_GPUS: usize = 64;

    /// Reads and checks a topology file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        let topology = Self::parse(&text).map_err(|error| match error {
            Error::Parse { reason, .. } => Error::Parse { path: path.to_owned(), reason },
            other => other,
        })?;
        Ok(topology)
    }

    /// Parses and checks the text of a topology file.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let topology: Self = toml::from_str(text)
            .map_err(|error| Error::Parse { path: "topology".into(), reason: error.to_string() })?;
        topology.gpus()?;
        topology.cuda()?;
        for fault in &topology.fault {
            fault.action()?;
        }
        Ok(topology)
    }

    /// Adds the GPUs of another topology behind the own; its other values come before the own.
    pub fn append(&mut self, other: Self) {
        let before: u32 = self.gpu.iter().map(|gpu| gpu.count).sum();
        self.driver_version = other.driver_version.or(self.driver_version.take());
        self.cuda_version = other.cuda_version.or(self.cuda_version.take());
        self.missing_functions.extend(other.missing_functions);
        self.gpu.extend(other.gpu);
        self.fault.extend(
            other
                .fault
                .into_iter()
                .map(|fault| Fault { gpu: fault.gpu.map(|gpu| gpu + before), ..fault }),
        );
    }

    /// The text of a topology file that says the same.
    pub fn to_toml(&self) -> String {
        let value = serde_json::to_value(self).expect("a topology is JSON");
        // The one character that JSON leaves as it is and TOML doesn't.
        toml_text(&value).replace('\u{7f}', "\\u007F")
    }

    /// Version of the driver.
    pub fn driver_version(&self) -> &str {
        self.driver_version.as_deref().unwrap_or(Self::DRIVER_VERSION)
    }

    /// CUDA version as the driver gives it: 13000 for 13.0.
    pub fn cuda(&self) -> Result<i32, Error> {
        let text = self.cuda_version.as_deref().unwrap_or(Self::CUDA_VERSION);
        text.split_once('.')
            .and_then(|(major, minor)| {
                let (major, minor) = (major.parse::<i32>().ok()?, minor.parse::<i32>().ok()?);
                ((1..=99).contains(&major) && (0..=9).contains(&minor))
                    .then_some(major * 1000 + minor * 10)
            })
            .ok_or_else(|| Error::Parse {
                path: "topology".into(),
                reason: format!("cuda_version = '{text}' is not MAJOR.MINOR, as 13.0"),
            })
    }

    /// The GPUs, in the order of their NVML index.
    pub fn gpus(&self) -> Result<Vec<Gpu>, Error> {
        let mut gpus = Vec::new();
        for config in &self.gpu {
            let refuse = |reason: &str| Error::Gpu { gpu: gpus.len(), reason: reason.to_owned() };
            if config.count == 0 || config.count as usize > Self::MAX_GPUS - gpus.len() {
                return Err(refuse("a node has from 1 to 64 GPUs"));
            }
            let alone = config.uuid.is_none() && config.minor.is_none();
            if config.count > 1 && !(alone && config.pci_bus_id.is_none()) {
                return Err(refuse("uuid, minor and pci_bus_id are of one GPU: count must be 1"));
            }
            for _ in 0..config.count {
                let gpu = config.resolve(gpus.len())?;
                gpus.push(gpu);
            }
        }
        for (index, gpu) in gpus.iter().enumerate() {
            let others = &gpus[..index];
            if others.iter().any(|other| other.pci == gpu.pci || other.uuid == gpu.uuid) {
                let reason = "another GPU has its pci_bus_id or uuid".to_owned();
                return Err(Error::Gpu { gpu: index, reason });
            }
        }
        Ok(gpus)
    }
}

impl GpuConfig {
    fn resolve(&self, index: usize) -> Result<Gpu, Error> {
        let refuse = |reason: String| Error::Gpu { gpu: index, reason };
        let model = Model::find(&self.model)?;
        let bytes = |mib: Option<f64>, default: u64| match mib {
            None => Ok(default),
            Some(mib) if (0.0..=16_777_216.0).contains(&mib) => {
                Ok((mib * f64::from(1 << 20)).round() as u64)
            }
            Some(mib) => Err(refuse(format!("{mib} MiB is no size of memory"))),
        };
        let memory = bytes(self.memory.total_mib, model.memory)?;
        let memory_reserved = bytes(self.memory.reserved_mib, model.memory_reserved)?;
        let memory_used = bytes(self.memory.used_mib, 0)?;
        if memory_reserved + memory_used > memory {
            return Err(refuse("more memory is reserved and in use than there is".to_owned()));
        }
        let pci = match &self.pci_bus_id {
            Some(text) => PciAddress::parse(text).ok_or_else(|| {
                refuse(format!("pci_bus_id = '{text}' is not as 00000000:3B:00.0"))
            })?,
            // Eight GPUs behind each root, as on the usual boards.
            None => PciAddress {
                domain: (index / 32) as u32,
                bus: 7 + 8 * (index % 32) as u8,
                device: 0,
            },
        };
        if let Some((gpu, memory)) = self.utilization
            && (gpu > 100 || memory > 100)
        {
            return Err(refuse("utilization is in percent".to_owned()));
        }
        if self.numa_node.is_some_and(|node| node > 63) {
            return Err(refuse("numa_node is from 0 to 63".to_owned()));
        }
        Ok(Gpu {
            model,
            name: self.name.clone().unwrap_or_else(|| model.name.to_owned()),
            uuid: self
                .uuid
                .clone()
                .unwrap_or_else(|| uuid("GPU", &format!("{} {index}", model.key))),
            minor: self.minor.unwrap_or(index as u32),
            pci,
            numa_node: self.numa_node,
            memory,
            memory_reserved,
            memory_used,
            memory_context: bytes(self.memory.context_mib, 0)?,
            utilization: self.utilization.unwrap_or((0, 0)),
            temperature: self.temperature.unwrap_or(model.temperature.0),
            power: self.power.unwrap_or(model.power_idle),
            compute_mode: self.compute_mode,
            ecc: self.ecc,
            nvlink: self.nvlink.unwrap_or(model.nvlink),
            slices: self.mig.as_deref().map(|layout| mig::place(model, layout)).transpose()?,
        })
    }
}

impl Gpu {
    /// UUID of a slice.
    pub fn slice_uuid(&self, slice: &Slice) -> String {
        let (gpu, compute) = (slice.gpu_instance, slice.compute_instance);
        uuid("MIG", &format!("{} {gpu} {compute}", self.uuid))
    }
}

/// A UUID that a seed alone decides.
fn uuid(prefix: &str, seed: &str) -> String {
    // FNV-1a, 128 bits.
    let hash = seed.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    let hex = format!("{hash:032x}");
    let groups = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("{prefix}-{}", groups.join("-"))
}

/// Writes a JSON object as TOML: scalars, lists of scalars, inline tables, and lists of tables.
/// JSON's scalars and strings are TOML's too.
fn toml_text(value: &serde_json::Value) -> String {
    use serde_json::Value;
    let (mut text, mut tables) = (Vec::new(), Vec::new());
    for (key, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::Array(list) if list.iter().any(Value::is_object) => {
                let table = |table| format!("\n[[{key}]]\n{}", toml_text(table));
                tables.extend(list.iter().map(table));
            }
            Value::Object(table) => {
                let field = |(key, value): (&String, &Value)| format!("{key} = {value}");
                let fields: Vec<String> = table.iter().map(field).collect();
                text.push(format!("{key} = {{ {} }}\n", fields.join(", ")));
            }
            value => text.push(format!("{key} = {value}\n")),
        }
    }
    text.concat() + &tables.concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Action;

    #[test]
    fn the_file_of_the_manual() {
        let manual = include_str!("topology.rs");
        let text: String = manual
            .lines()
            .skip_while(|line| *line != "//! ```toml")
            .skip(1)
            .take_while(|line| *line != "//! ```")
            .map(|line| line.trim_start_matches("//!").to_owned() + "\n")
            .collect();
        let topology = Topology::parse(&text).unwrap();
        let gpus = topology.gpus().unwrap();
        assert_eq!(gpus.len(), 3);
        // 24220.3125 MiB of which 701 are in use: 23519.3125 are free.
        assert_eq!(gpus[0].memory - gpus[0].memory_used, 24_661_786_624);
        assert_eq!(gpus[0].pci.to_string(), "00000000:3B:00.0");
        assert_eq!(gpus[2].slices.as_ref().unwrap().len(), 4);
        assert_eq!(topology.cuda().unwrap(), 11040);
        assert_eq!(Topology::parse(&topology.to_toml()).unwrap(), topology);
    }

    #[test]
    fn gpus_differ_in_what_identifies_them() {
        let text = "[[gpu]]\nmodel = 'a100'\ncount = 16\nmig = '7x1g.5gb'";
        let gpus = Topology::parse(text).unwrap().gpus().unwrap();
        assert!(gpus.windows(2).all(|pair| pair[0].pci < pair[1].pci));
        let mut uuids: Vec<_> = gpus
            .iter()
            .flat_map(|gpu| gpu.slices.iter().flatten().map(|slice| gpu.slice_uuid(slice)))
            .collect();
        uuids.extend(gpus.iter().map(|gpu| gpu.uuid.clone()));
        uuids.sort();
        uuids.dedup();
        assert_eq!(uuids.len(), 16 * 8);
    }

    #[test]
    fn appended_faults_keep_their_gpu() {
        let mut topology = Topology::parse("[[gpu]]\nmodel = 't4'\ncount = 2").unwrap();
        let other = "[[gpu]]\nmodel = 't4'\n[[fault]]\ngpu = 0\nerror = 'GPU_IS_LOST'";
        topology.append(Topology::parse(other).unwrap());
        assert_eq!(topology.fault[0].gpu, Some(2));
        assert_eq!(topology.fault[0].action().unwrap(), Action::Fail(crate::Code::GPU_IS_LOST));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, why) in [
            ("[[gpu]]\nmodel = 'k80'", "k80"),
            ("[[gpu]]\nmodel = 't4'\ncolour = 'red'", "colour"),
            ("[[gpu]]\nmodel = 't4'\ncount = 65", "64"),
            ("[[gpu]]\nmodel = 't4'\ncount = 2\nminor = 1", "count must be 1"),
            ("[[gpu]]\nmodel = 't4'\npci_bus_id = 'here'", "here"),
            ("[[gpu]]\nmodel = 't4'\nmemory = { used_mib = 20000 }", "than there is"),
            ("[[gpu]]\nmodel = 't4'\nmemory = { used_mib = -1 }", "-1 MiB"),
            ("[[gpu]]\nmodel = 't4'\nuuid = 'a'\n[[gpu]]\nmodel = 't4'\nuuid = 'a'", "another"),
            ("[[gpu]]\nmodel = 't4'\nutilization = [101, 0]", "percent"),
            ("[[fault]]\ngpu = 1", "exactly one"),
            ("[[fault]]\nerror = 'OOPS'", "OOPS"),
            ("cuda_version = 'new'", "MAJOR.MINOR"),
        ] {
            let error = Topology::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_topology_or_an_error(text in "\\PC{0,60}|(\\[\\[(gpu|fault)\\]\\]\n|[a-z_]{1,9} = (-?[0-9]{1,12}|'[a-z0-9]{0,8}'|true)\n){0,8}") {
            if let Ok(topology) = Topology::parse(&text) {
                prop_assert_eq!(Topology::parse(&topology.to_toml()).unwrap(), topology);
            }
        }

        #[test]
        fn a_written_topology_reads_the_same(
            name in "\\PC{0,20}",
            total in proptest::option::of(20_000.0..30_000.0),
            delay in proptest::option::of(0_u64..100),
        ) {
            let gpu = GpuConfig {
                model: "t4".to_owned(),
                name: Some(name),
                memory: MemoryConfig { total_mib: total, ..MemoryConfig::default() },
                ..GpuConfig::default()
            };
            let fault = Fault { delay_ms: delay, hang: delay.is_none(), ..Fault::lost(0) };
            let fault = Fault { error: None, ..fault };
            let topology = Topology { gpu: vec![gpu], fault: vec![fault], ..Topology::default() };
            prop_assert_eq!(Topology::parse(&topology.to_toml()).unwrap(), topology);
        }
    }
}
