//! Whatever a snapshot holds, YARN gets XML that it takes.

use creel_discovery::inventory::{Driver, Gpu, Inventory, Memory, Mig, SCHEMA, Slice, Temperature};
use creel_discovery::inventory::{Unit, Utilization};
use creel_discovery::nvidia_smi::{View, xml};
use creel_discovery::{Health, Snapshot};
use proptest::prelude::*;

use crate::formats;

fn words() -> impl Strategy<Value = Option<String>> {
    proptest::option::of(prop_oneof![
        any::<String>(),
        "[\\x00-\\x20<>&\"'\\]\u{fffe}\u{ffff}\u{85}]{0,12}",
        "GPU-[0-9a-f]{8}",
    ])
}

fn memory() -> impl Strategy<Value = Memory> {
    any::<[Option<u64>; 4]>().prop_map(|[total, reserved, used, free]| Memory {
        total,
        reserved,
        used,
        free,
    })
}

fn slice() -> impl Strategy<Value = Slice> {
    (words(), words(), memory(), any::<Option<u32>>()).prop_map(
        |(uuid, profile, memory, access_minor)| Slice {
            uuid,
            profile,
            memory,
            access_minor,
            ..Slice::default()
        },
    )
}

fn gpu() -> impl Strategy<Value = Gpu> {
    let names = [words(), words(), words()];
    let mig = (any::<Option<bool>>(), proptest::collection::vec(slice(), 0..4));
    (names, any::<[Option<u32>; 6]>(), memory(), mig, any::<bool>()).prop_map(
        |([name, uuid, pci_bus_id], numbers, memory, (enabled, slices), healthy)| Gpu {
            name,
            uuid,
            pci_bus_id,
            minor: numbers[0],
            memory,
            mig: Mig { enabled, pending: enabled, slices },
            utilization: Utilization { gpu: numbers[1], memory: numbers[2] },
            temperature: Temperature {
                gpu: numbers[3],
                slowdown: numbers[4],
                shutdown: numbers[5],
            },
            health: if healthy { Health::default() } else { Health::unhealthy("ill".to_owned()) },
            ..Gpu::default()
        },
    )
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    (words(), proptest::collection::vec(gpu(), 0..5), any::<bool>(), any::<bool>()).prop_map(
        |(version, gpus, keep_places, capability)| {
            let gpus = gpus.into_iter().zip(0..).map(|(gpu, index)| Gpu { index, ..gpu });
            let driver = Driver {
                library: "libnvidia-ml.so.1".to_owned(),
                cuda: version.clone(),
                version,
                nvml: None,
                problems: Vec::new(),
            };
            let inventory =
                Inventory { schema: SCHEMA, driver: Some(driver), gpus: gpus.collect() };
            let mut snapshot = Snapshot { keep_places, ..Snapshot::new(inventory, 0) };
            if capability {
                snapshot.mig_minor = creel_discovery::snapshot::MigMinor::Capability;
            }
            snapshot
        },
    )
}

/// What YARN's classes take for a measure (Hadoop, `GpuDeviceInformationParser`, `PerGpuMemoryUsage`).
fn is_measure(text: &str) -> bool {
    text == "N/A" || text.split_once(' ').is_some_and(|(number, _)| number.parse::<u64>().is_ok())
}

proptest! {
    #[test]
    fn gives_xml_that_yarn_takes(snapshot in snapshot()) {
        let document = xml::text(&View::of(&snapshot, None, |_| false));
        let is_xml = |c: char| matches!(c, '\t' | '\n' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
        prop_assert!(document.chars().all(is_xml));
        prop_assert!(document.starts_with("<?xml version=\"1.0\" ?>\n"));
        let texts = formats::xml(&document);
        let gpu = |path: &str| formats::values(&texts, &format!("nvidia_smi_log/gpu/{path}"));

        let fit = snapshot.inventory.units().filter(Unit::usable).count();
        let all = snapshot.inventory.units().count();
        let shown = if snapshot.keep_places || fit == 0 { all } else { fit };
        prop_assert_eq!(document.matches("<gpu id=").count(), shown);
        prop_assert_eq!(document.matches("<utilization>").count(), shown);
        prop_assert_eq!(gpu("utilization/gpu_util").len(), shown);
        for minor in gpu("minor_number") {
            prop_assert!(minor.parse::<i32>().is_ok_and(|minor| minor >= 0), "{}", minor);
        }
        for path in [
            "utilization/gpu_util",
            "fb_memory_usage/used",
            "fb_memory_usage/free",
            "temperature/gpu_temp",
            "temperature/gpu_temp_max_threshold",
            "temperature/gpu_temp_slow_threshold",
        ] {
            for text in gpu(path) {
                prop_assert!(is_measure(text), "{}: {}", path, text);
            }
        }
    }

    #[test]
    fn comes_back_from_its_file(snapshot in snapshot()) {
        let text = serde_json::to_vec(&snapshot).unwrap();
        prop_assert_eq!(Snapshot::from_json(&text).unwrap(), snapshot);
    }

    #[test]
    fn no_bytes_are_a_crash(bytes in any::<Vec<u8>>()) {
        let _ = Snapshot::from_json(&bytes);
    }
}
