//! What the kernel says of the driver, without NVML.

use std::collections::BTreeMap;
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

/// Minor numbers of the devices that give access to the GPU instances of the GPU with that minor
/// number, by the instances' ids. (MIG user guide, "Device Nodes and Capabilities": lines as
/// `gpu0/gi1/access 12`.)
pub(super) fn access_minors(gpu: u32) -> BTreeMap<u32, u32> {
    let text = fs::read_to_string("/proc/driver/nvidia-caps/mig-minors").unwrap_or_default();
    access_minors_in(&text, gpu)
}

fn access_minors_in(text: &str, gpu: u32) -> BTreeMap<u32, u32> {
    let start = format!("gpu{gpu}/gi");
    let one = |line: &str| {
        let (instance, minor) = line.strip_prefix(&start)?.split_once("/access ")?;
        Some((instance.parse().ok()?, minor.trim().parse().ok()?))
    };
    text.lines().filter_map(one).collect()
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
    fn access_is_that_of_a_gpu_instance() {
        let text = "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n\
            gpu0/gi13/access 120\ngpu1/gi0/access 138\ngpu10/gi1/access 1500\ngpu0/gi2/access x\n";
        assert_eq!(access_minors_in(text, 0), BTreeMap::from([(0, 3), (13, 120)]));
        assert_eq!(access_minors_in(text, 1), BTreeMap::from([(0, 138)]));
        assert!(access_minors_in("", 0).is_empty());
    }

    #[test]
    fn names_become_nvmls() {
        assert_eq!(as_nvml_writes_it("0000:3b:00.0").as_deref(), Some("00000000:3B:00.0"));
        assert_eq!(as_nvml_writes_it("10000:01:00.0").as_deref(), Some("00010000:01:00.0"));
        assert_eq!(as_nvml_writes_it("readme"), None);
    }
}
