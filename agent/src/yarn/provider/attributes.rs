//! The node's attributes (Hadoop, "YARN Node Attributes", `ScriptBasedNodeAttributesProvider`).
//!
//! Each line `NODE_ATTRIBUTE:NAME,STRING,VALUE` is one; one bad line has YARN refuse them all, and
//! no line takes them away.
//!
//! | name | value |
//! |---|---|
//! | `GPU_COUNT` | devices that YARN counts: whole GPUs and MIG slices |
//! | `GPU_MODEL` | as `NVIDIA-H200` |
//! | `GPU_MEMORY_MIB` | memory of each device, as `143771` |
//! | `GPU_DRIVER` | version of the driver, as `580.65.06` |
//! | `GPU_CUDA` | the newest CUDA version that it serves, as `13.0` |
//! | `GPU_MIG` | `enabled` or `disabled`; absent where no GPU has MIG |
//! | `GPU_MIG_PROFILE` | of the slices, as `2g.10gb`; absent without any |
//! | `GPU_NVLINK` | `true`: every GPU has an NVLink that is up; `false`: none has |
//!
//! Where the devices of a node differ in one of these, its value is [`MIXED`]; what the driver
//! doesn't say is absent.

use std::fmt::Write;

use creel_discovery::nvidia_smi::View;
use creel_discovery::{Gpu, Snapshot};

use super::name::{is_name, is_value, value_of};

/// The value where devices differ.
pub const MIXED: &str = "mixed";

/// An attribute.
pub type Attribute = (&'static str, String);

/// How many devices YARN counts.
pub fn count(snapshot: &Snapshot) -> u64 {
    devices(&View::of(snapshot, None, |_| false)) as u64
}

fn devices(view: &View<'_>) -> usize {
    view.gpus.iter().map(|seen| usize::from(seen.is_whole()) + seen.slices.len()).sum()
}

/// The node's attributes; none on a node without a GPU.
pub fn of(snapshot: &Snapshot) -> Vec<Attribute> {
    let view = View::of(snapshot, None, |_| false);
    let gpus: Vec<&Gpu> = view.gpus.iter().map(|seen| seen.gpu).collect();
    if gpus.is_empty() {
        return Vec::new();
    }
    let whole = view.gpus.iter().filter(|seen| seen.is_whole());
    let slices = view.gpus.iter().flat_map(|seen| &seen.slices);
    let memory = whole
        .map(|seen| seen.gpu.memory.total)
        .chain(slices.clone().map(|slice| slice.memory.total))
        .map(|bytes| bytes.map(|bytes| (bytes >> 20).to_string()));
    let mig = |gpu: &&Gpu| {
        gpu.mig.enabled.map(|enabled| if enabled { "enabled" } else { "disabled" }.to_owned())
    };
    // A GPU of a model without MIG says nothing of it.
    let mig = gpus.iter().filter(|gpu| gpu.mig.enabled.is_some()).map(mig);
    let nvlink = |gpu: &&Gpu| gpu.nvlink.as_ref().map(|peers| (!peers.is_empty()).to_string());
    let driver = view.driver;
    [
        ("GPU_COUNT", Some(devices(&view).to_string())),
        ("GPU_MODEL", common(gpus.iter().map(|gpu| gpu.name.clone()))),
        ("GPU_MEMORY_MIB", common(memory)),
        ("GPU_DRIVER", driver.and_then(|driver| driver.version.clone())),
        ("GPU_CUDA", driver.and_then(|driver| driver.cuda.clone())),
        ("GPU_MIG", common(mig)),
        ("GPU_MIG_PROFILE", common(slices.map(|slice| slice.profile.clone()))),
        ("GPU_NVLINK", common(gpus.iter().map(nvlink))),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value_of(&value?)?)))
    .collect()
}

/// The script's output for that node.
pub fn print(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for (name, value) in of(snapshot) {
        debug_assert!(is_name(name) && is_value(&value), "{name}={value}");
        writeln!(text, "NODE_ATTRIBUTE:{name},STRING,{value}").expect("a string takes any text");
    }
    text
}

/// What all have, [`MIXED`] where they differ, nothing where one does not say.
fn common(mut values: impl Iterator<Item = Option<String>>) -> Option<String> {
    let first = values.next()??;
    let mut differ = false;
    for value in values {
        differ |= value? != first;
    }
    Some(if differ { MIXED.to_owned() } else { first })
}

#[cfg(test)]
mod tests {
    use creel_discovery::inventory::{Driver, Memory, Mig, NvLinkPeer, Slice};
    use creel_discovery::{Health, Inventory};

    use super::*;

    fn h200(index: u32) -> Gpu {
        let memory = Memory { total: Some(150_754_820_096), ..Memory::default() };
        Gpu {
            index,
            name: Some("NVIDIA H200".to_owned()),
            memory,
            mig: Mig { enabled: Some(false), ..Mig::default() },
            nvlink: Some(vec![NvLinkPeer { kind: None, pci_bus_id: None, links: 18 }]),
            ..Gpu::default()
        }
    }

    fn a100_with_slices(index: u32, profile: &str) -> Gpu {
        let slice = |index| Slice {
            index,
            profile: Some(profile.to_owned()),
            memory: Memory { total: Some(9728 << 20), ..Memory::default() },
            ..Slice::default()
        };
        Gpu {
            name: Some("NVIDIA A100-SXM4-40GB".to_owned()),
            mig: Mig { enabled: Some(true), slices: vec![slice(0), slice(1)], ..Mig::default() },
            nvlink: Some(Vec::new()),
            ..h200(index)
        }
    }

    fn node(gpus: Vec<Gpu>) -> Snapshot {
        let driver = Driver {
            library: "libnvidia-ml.so.1".to_owned(),
            version: Some("580.65.06".to_owned()),
            cuda: Some("13.0".to_owned()),
            nvml: None,
            problems: Vec::new(),
        };
        Snapshot::new(Inventory { driver: Some(driver), gpus, ..Inventory::empty() }, 0)
    }

    #[test]
    fn a_node_of_like_gpus() {
        let expected = "\
NODE_ATTRIBUTE:GPU_COUNT,STRING,2
NODE_ATTRIBUTE:GPU_MODEL,STRING,NVIDIA-H200
NODE_ATTRIBUTE:GPU_MEMORY_MIB,STRING,143771
NODE_ATTRIBUTE:GPU_DRIVER,STRING,580.65.06
NODE_ATTRIBUTE:GPU_CUDA,STRING,13.0
NODE_ATTRIBUTE:GPU_MIG,STRING,disabled
NODE_ATTRIBUTE:GPU_NVLINK,STRING,true
";
        assert_eq!(print(&node(vec![h200(0), h200(1)])), expected);
    }

    #[test]
    fn slices_count_one_each() {
        let attributes = of(&node(vec![a100_with_slices(0, "2g.10gb")]));
        let get = |name| attributes.iter().find(|(known, _)| *known == name).unwrap().1.as_str();
        assert_eq!((get("GPU_COUNT"), get("GPU_MIG_PROFILE")), ("2", "2g.10gb"));
        assert_eq!((get("GPU_MIG"), get("GPU_MEMORY_MIB")), ("enabled", "9728"));
    }

    #[test]
    fn what_differs_is_mixed_and_what_is_unknown_absent() {
        let silent = Gpu { nvlink: None, ..a100_with_slices(1, "1g.5gb") };
        let text = print(&node(vec![h200(0), a100_with_slices(1, "1g.10gb+me"), silent]));
        for name in ["GPU_MODEL", "GPU_MEMORY_MIB", "GPU_MIG", "GPU_MIG_PROFILE"] {
            assert!(text.contains(&format!(":{name},STRING,mixed\n")), "{text}");
        }
        assert!(text.contains(":GPU_COUNT,STRING,5\n") && !text.contains("NVLINK"), "{text}");
    }

    #[test]
    fn a_lost_gpu_counts_as_yarn_counts_it_and_a_node_without_has_none() {
        let lost = Gpu { health: Health::unhealthy("lost".to_owned()), ..h200(1) };
        let mut snapshot = node(vec![h200(0), lost]);
        assert_eq!(of(&snapshot)[0].1, "1");
        snapshot.keep_places = true;
        assert_eq!(of(&snapshot)[0].1, "2");
        assert_eq!(print(&node(Vec::new())), "");
    }

    #[test]
    fn what_a_driver_says_can_not_break_a_line() {
        let odd = Gpu { name: Some("a,b\nNODE_ATTRIBUTE:X,STRING,y".to_owned()), ..h200(0) };
        let text = print(&node(vec![odd]));
        assert!(text.lines().all(|line| line.matches(',').count() == 2), "{text}");
        assert!(text.contains(":GPU_MODEL,STRING,a-b-NODE_ATTRIBUTE-X-STRING-y\n"), "{text}");
    }
}
