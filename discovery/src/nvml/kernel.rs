//! What the kernel says of the driver, without NVML.

use std::fs;

/// The version of the driver that is loaded.
pub(super) fn driver_version() -> Option<String> {
    Some(fs::read_to_string("/sys/module/nvidia/version").ok()?.trim().to_owned())
}

/// Where GPUs are, in PCI order, as NVML writes it; also those that are lost. Empty where the
/// kernel doesn't say, as in a container.
pub(super) fn pci_bus_ids() -> Vec<String> {
    let names = fs::read_dir("/proc/driver/nvidia/gpus").into_iter().flatten().flatten();
    let mut ids: Vec<_> =
        names.filter_map(|entry| as_nvml_writes_it(entry.file_name().to_str()?)).collect();
    ids.sort();
    ids
}

/// `0000:3b:00.0` is `00000000:3B:00.0` to NVML.
fn as_nvml_writes_it(name: &str) -> Option<String> {
    let (domain, rest) = name.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    Some(format!("{domain:08X}:{}", rest.to_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_nvmls() {
        assert_eq!(as_nvml_writes_it("0000:3b:00.0").as_deref(), Some("00000000:3B:00.0"));
        assert_eq!(as_nvml_writes_it("10000:01:00.0").as_deref(), Some("00010000:01:00.0"));
        assert_eq!(as_nvml_writes_it("readme"), None);
    }
}
