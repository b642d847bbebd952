//! For people.

use crate::inventory::{Gpu, Inventory, Memory};
use crate::{HealthState, Slice};

const HEADER: [&str; 8] =
    ["GPU", "NAME", "UUID", "PCI BUS ID", "MEMORY USED / TOTAL", "UTIL", "TEMP", "HEALTH"];

/// A table of GPUs and, indented, their slices; a word where there is none.
pub fn text(inventory: &Inventory) -> String {
    let driver = match &inventory.driver {
        None => return "no NVIDIA driver\n".to_owned(),
        Some(driver) => format!(
            "driver {}, CUDA {}\n",
            driver.version.as_deref().unwrap_or("-"),
            driver.cuda.as_deref().unwrap_or("-")
        ),
    };
    if inventory.gpus.is_empty() {
        return driver + "no GPU\n";
    }
    let mut rows = vec![HEADER.map(str::to_owned)];
    for gpu in &inventory.gpus {
        rows.push(gpu_row(gpu));
        rows.extend(gpu.mig.slices.iter().map(|slice| slice_row(gpu, slice)));
        if gpu.mig.enabled == Some(true) && gpu.mig.slices.is_empty() {
            let note = "  (MIG is on, and there is no slice)";
            rows.push(["", note, "", "", "", "", "", ""].map(str::to_owned));
        }
    }
    driver + &aligned(&rows)
}

fn gpu_row(gpu: &Gpu) -> [String; 8] {
    let health = match gpu.health.state {
        HealthState::Healthy if gpu.problems.is_empty() => "healthy".to_owned(),
        HealthState::Healthy => {
            let what: Vec<_> = gpu.problems.iter().map(|problem| problem.what.as_str()).collect();
            format!("healthy (unknown: {})", what.join(", "))
        }
        HealthState::Unhealthy => format!("unhealthy: {}", gpu.health.reasons.join("; ")),
    };
    [
        gpu.index.to_string(),
        known(gpu.name.as_ref()),
        known(gpu.uuid.as_ref()),
        known(gpu.pci_bus_id.as_ref()),
        memory(&gpu.memory),
        known(gpu.utilization.gpu.map(|percent| format!("{percent} %")).as_ref()),
        known(gpu.temperature.gpu.map(|degrees| format!("{degrees} C")).as_ref()),
        health,
    ]
}

fn slice_row(gpu: &Gpu, slice: &Slice) -> [String; 8] {
    [
        format!("{}:{}", gpu.index, slice.index),
        format!("  MIG {}", known(slice.profile.as_ref())),
        known(slice.uuid.as_ref()),
        String::new(),
        memory(&slice.memory),
        String::new(),
        String::new(),
        String::new(),
    ]
}

fn known(value: Option<&String>) -> String {
    // A driver that gives nonsense shall not move the cursor.
    value.map_or_else(|| "-".to_owned(), |text| text.replace(char::is_control, "?"))
}

fn memory(memory: &Memory) -> String {
    let mib = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| (bytes >> 20).to_string());
    format!("{} / {} MiB", mib(memory.used), mib(memory.total))
}

fn aligned(rows: &[[String; 8]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..HEADER.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<_> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::tests::node;

    #[test]
    fn gpus_slices_and_what_is_wrong() {
        let text = text(&node());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "driver 580.95.05, CUDA 13.0");
        assert!(lines[2].starts_with("0    NVIDIA A100-SXM4-40GB"), "{text}");
        assert!(lines[2].contains("2048 / 40960 MiB") && lines[2].ends_with("healthy"), "{text}");
        assert!(lines[3].starts_with("0:0    MIG 3g.20gb"), "{text}");
        assert!(lines[5].ends_with("unhealthy: GPU is lost"), "{text}");
        assert!(lines[7].contains("no slice"), "{text}");
    }

    #[test]
    fn none_is_said() {
        assert_eq!(text(&Inventory::empty()), "no NVIDIA driver\n");
    }
}
