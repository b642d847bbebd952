//! What an executor computes on.

use std::fmt;

/// A GPU, a MIG slice, or none of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Device {
    /// The processor.
    Cpu,
    /// The GPU or slice of that UUID (`GPU-…`, `MIG-…`).
    Gpu(String),
}

impl Device {
    /// `cpu`, or the UUID.
    pub fn name(&self) -> &str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu(uuid) => uuid,
        }
    }

    /// The id of a user's executor on it, as `cpu-1000`.
    pub(super) fn executor(&self, uid: u32) -> String {
        format!("{self}-{uid}")
    }

    /// Whether an executor's id could be one of [`Device::executor`].
    pub(super) fn is_executor(id: &str) -> bool {
        let number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        id.rsplit_once('-').is_some_and(|(device, uid)| {
            let gpu = device.starts_with("GPU-") || device.starts_with("MIG-");
            number(uid) && (device == Self::Cpu.name() || gpu)
        })
    }

    /// What CUDA is to see (`CUDA_VISIBLE_DEVICES`, CUDA C++ Programming Guide, "CUDA Environment
    /// Variables"): nothing, or that one.
    pub(super) fn visible(&self) -> &str {
        match self {
            Self::Cpu => "",
            Self::Gpu(uuid) => uuid,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_executors() {
        let gpu = Device::Gpu("GPU-3f1a22bc-0000-4000-8000-000000000001".to_owned());
        assert_eq!(Device::Cpu.executor(7), "cpu-7");
        for id in [Device::Cpu.executor(7), gpu.executor(1000)] {
            assert!(Device::is_executor(&id), "{id}");
        }
        for id in ["cpu", "cpu-", "cpu-a", "photos-7", "7"] {
            assert!(!Device::is_executor(id), "{id}");
        }
        assert_eq!((Device::Cpu.visible(), gpu.visible()), ("", gpu.name()));
    }
}
