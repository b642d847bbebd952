//! Whether YARN can tell MIG slices apart.
//!
//! LinuxContainerExecutor denies a container the devices that are not its own, by one major number
//! for the whole node and the minor numbers that nvidia-smi gave (Hadoop, `gpu-module.c`).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use creel_discovery::inventory::{Gpu, Slice};
use creel_settings::MigMinor;

use super::Finding;

const CHECK: &str = "mig";

/// `by_place`: the executor is LinuxContainerExecutor. Absent where there is no slice.
pub(super) fn check(root: &Path, gpus: &[Gpu], minor: MigMinor, by_place: bool) -> Option<Finding> {
    let slices = || gpus.iter().flat_map(|gpu| gpu.mig.slices.iter().map(move |each| (gpu, each)));
    let count = slices().count();
    if count == 0 {
        return None;
    }
    let slices_are = format!("{count} MIG slices, each of them a GPU to YARN");
    if !by_place {
        return Some(Finding::ok(CHECK, format!("{slices_are}; leases assign them")));
    }
    let unable = |why: &str| {
        Some(Finding::warning(
            CHECK,
            format!("LinuxContainerExecutor can't keep MIG slices apart: {why}"),
            "use DefaultContainerExecutor, where Creel's leases assign slices, or switch MIG off",
        ))
    };
    if minor == MigMinor::Gpu {
        return Some(Finding::warning(
            CHECK,
            "LinuxContainerExecutor denies containers their own MIG slices: those of a GPU share its minor number",
            "use DefaultContainerExecutor, where Creel's leases assign slices, or set yarn.mig_minor = \"capability\"",
        ));
    }
    if gpus.iter().any(|gpu| gpu.mig.enabled != Some(true)) {
        return unable("it knows one major number, and the node has whole GPUs beside them");
    }
    let access = |(_, slice): (&Gpu, &Slice)| slice.access_minor;
    let Some(minors) = slices().map(access).collect::<Option<BTreeSet<_>>>() else {
        return unable("the driver names no device of theirs in /proc/driver/nvidia-caps");
    };
    if minors.len() < count {
        return unable("several share a GPU instance, and so its device");
    }
    match capability_major(root) {
        Some(major) => Some(Finding::ok(
            CHECK,
            format!(
                "{slices_are}; LinuxContainerExecutor keeps them apart if container-executor.cfg has \
                 [gpu] gpu.major-device-number={major}"
            ),
        )),
        None => unable("/proc/devices has no nvidia-caps"),
    }
}

/// The major number of the devices below `/dev/nvidia-caps` (proc(5), `/proc/devices`).
fn capability_major(root: &Path) -> Option<u32> {
    let devices = fs::read_to_string(root.join("proc/devices")).ok()?;
    devices.lines().find_map(|line| {
        let (major, name) = line.trim().split_once(' ')?;
        (name == "nvidia-caps").then(|| major.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use creel_discovery::inventory::Mig;

    use super::super::State;
    use super::super::tests::write;
    use super::*;

    fn gpu(access: &[Option<u32>]) -> Gpu {
        let slices =
            access.iter().map(|&access_minor| Slice { access_minor, ..Slice::default() }).collect();
        Gpu { mig: Mig { enabled: Some(true), pending: None, slices }, ..Gpu::default() }
    }

    #[test]
    fn what_can_be_told_apart_and_what_can_not() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let told = |gpus: &[Gpu], minor, by_place| {
            let finding = check(root, gpus, minor, by_place).unwrap();
            (finding.state, finding.what)
        };
        let whole = || Gpu::default();
        assert_eq!(check(root, &[whole()], MigMinor::Gpu, true), None);

        let apart = [gpu(&[Some(12), Some(21)]), gpu(&[Some(147)])];
        assert_eq!(told(&apart, MigMinor::Gpu, false).0, State::Ok);
        for (gpus, minor, words) in [
            (&apart[..], MigMinor::Gpu, "share its minor number"),
            (&[gpu(&[Some(12)]), whole()], MigMinor::Capability, "whole GPUs"),
            (&[gpu(&[Some(12), None])], MigMinor::Capability, "names no device"),
            (&[gpu(&[Some(12), Some(12)])], MigMinor::Capability, "share a GPU instance"),
            (&apart, MigMinor::Capability, "no nvidia-caps"),
        ] {
            let (state, what) = told(gpus, minor, true);
            assert_eq!(state, State::Warning, "{what}");
            assert!(what.contains(words), "{what}");
        }
        write(root, "proc/devices", "Character devices:\n  1 mem\n195 nvidia\n239 nvidia-caps\n");
        let (state, what) = told(&apart, MigMinor::Capability, true);
        assert_eq!(state, State::Ok, "{what}");
        assert!(what.contains("gpu.major-device-number=239"), "{what}");
    }
}
