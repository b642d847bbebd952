//! The constants of the GPU models, as the driver reports them.
//!
//! Sources: the PCI ID database (device ids), NVIDIA's data sheets (SMs, power), `nvidia-smi -q`
//! and `nvidia-smi mig -lgip` of the parts (memory, temperatures, MIG profiles), and the MIG user
//! guide, "Supported MIG Profiles" (placements). Memory of MIG profiles differs by a few hundred
//! MiB between driver versions.

use crate::Error;

/// A GPU model.
#[derive(Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name in a SPEC.
    pub key: &'static str,
    /// Its name in NVML.
    pub name: &'static str,
    /// PCI device id; the vendor is NVIDIA, 0x10de.
    pub pci_device: u16,
    /// PCI subsystem device id.
    pub pci_subsystem: u16,
    /// Device memory in bytes.
    pub memory: u64,
    /// Bytes of it that the driver keeps for itself.
    pub memory_reserved: u64,
    /// CUDA compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Default power limit in watts.
    pub power_limit: u32,
    /// Power when idle in watts.
    pub power_idle: u32,
    /// Temperatures in °C: idle, slowdown, shutdown.
    pub temperature: (u32, u32, u32),
    /// `NVLinks` that the part has.
    pub nvlinks: u32,
    /// Version of them.
    pub nvlink_version: u32,
    /// Where the links lead on the usual board.
    pub nvlink: NvLinkWiring,
    /// MIG profiles; none: the model has no MIG.
    pub mig: &'static [MigProfile],
}

/// Where the `NVLinks` of a model lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NvLinkWiring {
    /// Nowhere: all links are down.
    None,
    /// To the other GPUs, in turn.
    Mesh,
    /// To switches.
    Switch,
}

/// A MIG GPU instance profile.
#[derive(Debug, PartialEq, Eq)]
pub struct MigProfile {
    /// As `3g.20gb`.
    pub name: &'static str,
    /// The id that `nvidia-smi mig -lgip` shows.
    pub id: u32,
    /// Index among NVML's `NVML_GPU_INSTANCE_PROFILE_*`.
    pub nvml_profile: u32,
    /// Compute slices, of 7.
    pub slices: u32,
    /// Memory slices, of 8.
    pub memory_slices: u32,
    /// How many there can be on a GPU.
    pub instances: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
}

impl Model {
    /// Finds a model by its name in a SPEC.
    pub fn find(key: &str) -> Result<&'static Self, Error> {
        MODELS.iter().find(|model| model.key == key).ok_or_else(|| Error::Model {
            model: key.to_owned(),
            known: MODELS.iter().map(|model| model.key).collect::<Vec<_>>().join(", "),
        })
    }

    /// Finds a MIG profile by its name.
    pub fn mig_profile(&self, name: &str) -> Option<&'static MigProfile> {
        self.mig.iter().find(|profile| profile.name == name)
    }
}

const MIB: u64 = 1 << 20;

/// All models, oldest first.
pub const MODELS: &[Model] = &[
    Model {
        key: "t4",
        name: "Tesla T4",
        pci_device: 0x1eb8,
        pci_subsystem: 0x12a2,
        memory: 15360 * MIB,
        memory_reserved: 399 * MIB,
        compute_capability: (7, 5),
        multiprocessors: 40,
        power_limit: 70,
        power_idle: 9,
        temperature: (31, 93, 96),
        nvlinks: 0,
        nvlink_version: 0,
        nvlink: NvLinkWiring::None,
        mig: &[],
    },
    Model {
        key: "v100",
        name: "Tesla V100-SXM2-16GB",
        pci_device: 0x1db1,
        pci_subsystem: 0x1212,
        memory: 16384 * MIB,
        memory_reserved: 223 * MIB,
        compute_capability: (7, 0),
        multiprocessors: 80,
        power_limit: 300,
        power_idle: 24,
        temperature: (34, 87, 90),
        nvlinks: 6,
        nvlink_version: 2,
        nvlink: NvLinkWiring::Mesh,
        mig: &[],
    },
    Model {
        key: "rtx6000",
        name: "Quadro RTX 6000",
        pci_device: 0x1e30,
        pci_subsystem: 0x12ba,
        // 24220.3125 MiB: what CUDA sees of 24 GiB.
        memory: 25_396_838_400,
        memory_reserved: 0,
        compute_capability: (7, 5),
        multiprocessors: 72,
        power_limit: 260,
        power_idle: 20,
        temperature: (38, 91, 94),
        nvlinks: 2,
        nvlink_version: 2,
        nvlink: NvLinkWiring::None,
        mig: &[],
    },
    Model {
        key: "a10",
        name: "NVIDIA A10",
        pci_device: 0x2236,
        pci_subsystem: 0x1482,
        memory: 23028 * MIB,
        memory_reserved: 490 * MIB,
        compute_capability: (8, 6),
        multiprocessors: 72,
        power_limit: 150,
        power_idle: 16,
        temperature: (29, 95, 98),
        nvlinks: 0,
        nvlink_version: 0,
        nvlink: NvLinkWiring::None,
        mig: &[],
    },
    Model {
        key: "a100",
        name: "NVIDIA A100-SXM4-40GB",
        pci_device: 0x20b0,
        pci_subsystem: 0x134f,
        memory: 40960 * MIB,
        memory_reserved: 583 * MIB,
        compute_capability: (8, 0),
        multiprocessors: 108,
        power_limit: 400,
        power_idle: 52,
        temperature: (30, 89, 92),
        nvlinks: 12,
        nvlink_version: 3,
        nvlink: NvLinkWiring::Switch,
        mig: &[
            mig("1g.5gb", 19, 0, 1, 1, 7, 14, 4864),
            mig("1g.5gb+me", 20, 7, 1, 1, 1, 14, 4864),
            mig("1g.10gb", 15, 9, 1, 2, 4, 14, 9984),
            mig("2g.10gb", 14, 1, 2, 2, 3, 28, 9984),
            mig("3g.20gb", 9, 2, 3, 4, 2, 42, 20096),
            mig("4g.20gb", 5, 3, 4, 4, 1, 56, 20096),
            mig("7g.40gb", 0, 4, 7, 8, 1, 98, 40320),
        ],
    },
    Model {
        key: "a100-80gb",
        name: "NVIDIA A100-SXM4-80GB",
        pci_device: 0x20b2,
        pci_subsystem: 0x1463,
        memory: 81920 * MIB,
        memory_reserved: 868 * MIB,
        compute_capability: (8, 0),
        multiprocessors: 108,
        power_limit: 400,
        power_idle: 61,
        temperature: (31, 89, 92),
        nvlinks: 12,
        nvlink_version: 3,
        nvlink: NvLinkWiring::Switch,
        mig: &[
            mig("1g.10gb", 19, 0, 1, 1, 7, 14, 9728),
            mig("1g.10gb+me", 20, 7, 1, 1, 1, 14, 9728),
            mig("1g.20gb", 15, 9, 1, 2, 4, 14, 19968),
            mig("2g.20gb", 14, 1, 2, 2, 3, 28, 19968),
            mig("3g.40gb", 9, 2, 3, 4, 2, 42, 40192),
            mig("4g.40gb", 5, 3, 4, 4, 1, 56, 40192),
            mig("7g.80gb", 0, 4, 7, 8, 1, 98, 80640),
        ],
    },
    Model {
        key: "h100",
        name: "NVIDIA H100 80GB HBM3",
        pci_device: 0x2330,
        pci_subsystem: 0x16c1,
        memory: 81559 * MIB,
        memory_reserved: 551 * MIB,
        compute_capability: (9, 0),
        multiprocessors: 132,
        power_limit: 700,
        power_idle: 69,
        temperature: (28, 92, 95),
        nvlinks: 18,
        nvlink_version: 4,
        nvlink: NvLinkWiring::Switch,
        mig: &[
            mig("1g.10gb", 19, 0, 1, 1, 7, 16, 9984),
            mig("1g.10gb+me", 20, 7, 1, 1, 1, 16, 9984),
            mig("1g.20gb", 15, 9, 1, 2, 4, 26, 20096),
            mig("2g.20gb", 14, 1, 2, 2, 3, 32, 20096),
            mig("3g.40gb", 9, 2, 3, 4, 2, 60, 40448),
            mig("4g.40gb", 5, 3, 4, 4, 1, 64, 40448),
            mig("7g.80gb", 0, 4, 7, 8, 1, 132, 81152),
        ],
    },
    Model {
        key: "h200",
        name: "NVIDIA H200",
        pci_device: 0x2335,
        pci_subsystem: 0x18be,
        memory: 143_771 * MIB,
        memory_reserved: 600 * MIB,
        compute_capability: (9, 0),
        multiprocessors: 132,
        power_limit: 700,
        power_idle: 76,
        temperature: (30, 92, 95),
        nvlinks: 18,
        nvlink_version: 4,
        nvlink: NvLinkWiring::Switch,
        mig: &[
            mig("1g.18gb", 19, 0, 1, 1, 7, 16, 16384),
            mig("1g.18gb+me", 20, 7, 1, 1, 1, 16, 16384),
            mig("1g.35gb", 15, 9, 1, 2, 4, 26, 33280),
            mig("2g.35gb", 14, 1, 2, 2, 3, 32, 33280),
            mig("3g.71gb", 9, 2, 3, 4, 2, 60, 71424),
            mig("4g.71gb", 5, 3, 4, 4, 1, 64, 71424),
            mig("7g.141gb", 0, 4, 7, 8, 1, 132, 143_360),
        ],
    },
    Model {
        key: "b200",
        name: "NVIDIA B200",
        pci_device: 0x2901,
        pci_subsystem: 0x1999,
        memory: 183_359 * MIB,
        memory_reserved: 721 * MIB,
        compute_capability: (10, 0),
        multiprocessors: 148,
        power_limit: 1000,
        power_idle: 140,
        temperature: (33, 92, 95),
        nvlinks: 18,
        nvlink_version: 5,
        nvlink: NvLinkWiring::Switch,
        mig: &[
            mig("1g.23gb", 19, 0, 1, 1, 7, 18, 22528),
            mig("1g.23gb+me", 20, 7, 1, 1, 1, 18, 22528),
            mig("1g.45gb", 15, 9, 1, 2, 4, 30, 45312),
            mig("2g.45gb", 14, 1, 2, 2, 3, 36, 45312),
            mig("3g.90gb", 9, 2, 3, 4, 2, 70, 90880),
            mig("4g.90gb", 5, 3, 4, 4, 1, 72, 90880),
            mig("7g.180gb", 0, 4, 7, 8, 1, 148, 182_272),
        ],
    },
];

#[allow(clippy::too_many_arguments, reason = "a row of the table above")]
const fn mig(
    name: &'static str,
    id: u32,
    nvml_profile: u32,
    slices: u32,
    memory_slices: u32,
    instances: u32,
    multiprocessors: u32,
    memory_mib: u64,
) -> MigProfile {
    MigProfile {
        name,
        id,
        nvml_profile,
        slices,
        memory_slices,
        instances,
        multiprocessors,
        memory_mib,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_fit_on_their_models() {
        for model in MODELS {
            for profile in model.mig {
                let all = profile.memory_mib * u64::from(profile.instances);
                assert!(all * MIB <= model.memory, "{} {}", model.key, profile.name);
                assert!(profile.slices * profile.instances <= 7, "{} {}", model.key, profile.name);
                assert!(
                    profile.multiprocessors * profile.instances <= model.multiprocessors,
                    "{} {}",
                    model.key,
                    profile.name
                );
            }
        }
    }

    #[test]
    fn an_unknown_model_names_the_known() {
        let error = Model::find("k80").unwrap_err().to_string();
        assert!(error.contains("k80") && error.contains("a100-80gb"), "{error}");
    }
}
