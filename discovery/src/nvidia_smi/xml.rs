//! The XML of `nvidia-smi -x -q`, as far as YARN reads it.
//!
//! YARN counts `<gpu>` elements and knows a GPU by its place among them (Hadoop, `GpuDiscoverer`).
//! So each slice is a `<gpu>` of its own in the place of its GPU, and a GPU with MIG on is none.
//!
//! YARN's parser wants nothing but XML, integers before a blank (`143771 MiB`), and a
//! `<minor_number>` that is right: a text that is no number becomes minor 0, the wrong GPU, so one
//! that is unknown is left out. Scripts that read nvidia-smi line by line want tabs, one element per
//! line, and `<uuid>` in the third line of a `<gpu>`.

use std::io;

use quick_xml::Writer;
use quick_xml::events::BytesText;

use super::View;
use crate::inventory::{Gpu, Memory, Slice};
use crate::snapshot::MigMinor;

const HEADER: &str =
    "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n";

/// The document. Without a GPU, one without `<gpu>`.
pub fn text(view: &View<'_>) -> String {
    let mut writer = Writer::new_with_indent(HEADER.as_bytes().to_vec(), b'\t', 1);
    document(&mut writer, view).expect("a vector takes any bytes");
    String::from_utf8(writer.into_inner()).expect("made of strings") + "\n"
}

type Xml = Writer<Vec<u8>>;

fn document(xml: &mut Xml, view: &View<'_>) -> io::Result<()> {
    let devices: Vec<_> = view
        .gpus
        .iter()
        .flat_map(|seen| {
            let whole = seen.is_whole().then(|| Device::whole(seen.gpu));
            let slices = seen.slices.iter();
            whole
                .into_iter()
                .chain(slices.map(|each| Device::slice(seen.gpu, each, view.mig_minor)))
        })
        .collect();
    xml.create_element("nvidia_smi_log").write_inner_content(|xml| {
        leaf(xml, "driver_version", view.driver.and_then(|driver| driver.version.as_deref()))?;
        leaf(xml, "cuda_version", view.driver.and_then(|driver| driver.cuda.as_deref()))?;
        leaf(xml, "attached_gpus", Some(&devices.len().to_string()))?;
        devices.iter().try_for_each(|each| device(xml, each))
    })?;
    Ok(())
}

/// What a `<gpu>` is of: a whole GPU, or a slice with the heat and the load of its GPU.
struct Device<'a> {
    gpu: &'a Gpu,
    name: Option<String>,
    uuid: Option<&'a str>,
    minor: Option<u32>,
    /// Current and pending; a slice has no mode of its own.
    mig: [Option<bool>; 2],
    memory: &'a Memory,
}

impl<'a> Device<'a> {
    fn whole(gpu: &'a Gpu) -> Self {
        Self {
            gpu,
            name: gpu.name.clone(),
            uuid: gpu.uuid.as_deref(),
            minor: gpu.minor,
            mig: [gpu.mig.enabled, gpu.mig.pending],
            memory: &gpu.memory,
        }
    }

    fn slice(gpu: &'a Gpu, slice: &'a Slice, minor: MigMinor) -> Self {
        let known = |text: &'a Option<String>| text.as_deref().unwrap_or("N/A");
        Self {
            gpu,
            // As NVML names it.
            name: Some(format!("{} MIG {}", known(&gpu.name), known(&slice.profile))),
            uuid: slice.uuid.as_deref(),
            minor: match minor {
                MigMinor::Gpu => gpu.minor,
                MigMinor::Capability => slice.access_minor,
            },
            mig: [None, None],
            memory: &slice.memory,
        }
    }
}

fn device(xml: &mut Xml, device: &Device<'_>) -> io::Result<()> {
    let gpu = device.gpu;
    let id = clean(gpu.pci_bus_id.as_deref().unwrap_or("N/A"));
    let element = xml.create_element("gpu").with_attribute(("id", id.as_str()));
    element.write_inner_content(|xml| {
        leaf(xml, "product_name", device.name.as_deref())?;
        leaf(xml, "uuid", device.uuid)?;
        // YARN's is a Java int.
        if let Some(minor) = device.minor.filter(|minor| i32::try_from(*minor).is_ok()) {
            leaf(xml, "minor_number", Some(&minor.to_string()))?;
        }
        let enabled = |on: Option<bool>| on.map(|on| if on { "Enabled" } else { "Disabled" });
        let [current, pending] = device.mig.map(enabled);
        group(xml, "mig_mode", |xml| {
            leaf(xml, "current_mig", current)?;
            leaf(xml, "pending_mig", pending)
        })?;
        leaf(xml, "mig_devices", Some("None"))?;
        group(xml, "pci", |xml| leaf(xml, "pci_bus_id", gpu.pci_bus_id.as_deref()))?;
        memory(xml, device.memory)?;
        group(xml, "utilization", |xml| {
            measure(xml, "gpu_util", gpu.utilization.gpu, "%")?;
            measure(xml, "memory_util", gpu.utilization.memory, "%")
        })?;
        group(xml, "temperature", |xml| {
            measure(xml, "gpu_temp", gpu.temperature.gpu, "C")?;
            measure(xml, "gpu_temp_max_threshold", gpu.temperature.shutdown, "C")?;
            measure(xml, "gpu_temp_slow_threshold", gpu.temperature.slowdown, "C")
        })
    })?;
    Ok(())
}

fn memory(xml: &mut Xml, memory: &Memory) -> io::Result<()> {
    group(xml, "fb_memory_usage", |xml| {
        measure(xml, "total", memory.total.map(|bytes| bytes >> 20), "MiB")?;
        measure(xml, "reserved", memory.reserved.map(|bytes| bytes >> 20), "MiB")?;
        measure(xml, "used", memory.used.map(|bytes| bytes >> 20), "MiB")?;
        measure(xml, "free", memory.free.map(|bytes| bytes >> 20), "MiB")
    })
}

fn measure(
    xml: &mut Xml,
    name: &str,
    value: Option<impl std::fmt::Display>,
    unit: &str,
) -> io::Result<()> {
    leaf(xml, name, value.map(|value| format!("{value} {unit}")).as_deref())
}

fn group(
    xml: &mut Xml,
    name: &str,
    content: impl FnOnce(&mut Xml) -> io::Result<()>,
) -> io::Result<()> {
    xml.create_element(name).write_inner_content(content)?;
    Ok(())
}

/// An element with a text; `N/A`, as nvidia-smi has it, where the text is unknown.
fn leaf(xml: &mut Xml, name: &str, text: Option<&str>) -> io::Result<()> {
    let text = clean(text.unwrap_or("N/A"));
    xml.create_element(name).write_text_content(BytesText::new(&text))?;
    Ok(())
}

/// Without the characters that XML can't hold, however escaped.
fn clean(text: &str) -> String {
    text.replace(|c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'), "?")
}

#[cfg(test)]
mod tests {
    use quick_xml::events::Event;

    use super::*;
    use crate::Inventory;
    use crate::snapshot::Snapshot;
    use crate::snapshot::tests::snapshot;

    fn document(snapshot: &Snapshot) -> String {
        text(&View::of(snapshot, None, |_| false))
    }

    #[test]
    fn the_layout_is_nvidia_smis() {
        let text = document(&snapshot());
        let start = "<?xml version=\"1.0\" ?>\n\
            <!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n\
            <nvidia_smi_log>\n\
            \t<driver_version>580.95.05</driver_version>\n\
            \t<cuda_version>13.0</cuda_version>\n\
            \t<attached_gpus>3</attached_gpus>\n\
            \t<gpu id=\"00000000:00:00.0\">\n\
            \t\t<product_name>NVIDIA A100-SXM4-40GB MIG 3g.20gb</product_name>\n\
            \t\t<uuid>MIG-0</uuid>\n\
            \t\t<minor_number>0</minor_number>\n\
            \t\t<mig_mode>\n\
            \t\t\t<current_mig>N/A</current_mig>\n\
            \t\t\t<pending_mig>N/A</pending_mig>\n\
            \t\t</mig_mode>\n\
            \t\t<mig_devices>None</mig_devices>\n\
            \t\t<pci>\n\
            \t\t\t<pci_bus_id>00000000:00:00.0</pci_bus_id>\n\
            \t\t</pci>\n\
            \t\t<fb_memory_usage>\n\
            \t\t\t<total>20480 MiB</total>\n\
            \t\t\t<reserved>0 MiB</reserved>\n\
            \t\t\t<used>0 MiB</used>\n\
            \t\t\t<free>20480 MiB</free>\n\
            \t\t</fb_memory_usage>\n\
            \t\t<utilization>\n\
            \t\t\t<gpu_util>7 %</gpu_util>\n\
            \t\t\t<memory_util>1 %</memory_util>\n\
            \t\t</utilization>\n\
            \t\t<temperature>\n\
            \t\t\t<gpu_temp>30 C</gpu_temp>\n\
            \t\t\t<gpu_temp_max_threshold>92 C</gpu_temp_max_threshold>\n\
            \t\t\t<gpu_temp_slow_threshold>89 C</gpu_temp_slow_threshold>\n\
            \t\t</temperature>\n\
            \t</gpu>\n";
        assert!(text.starts_with(start), "{text}");
        assert!(text.ends_with("\t</gpu>\n</nvidia_smi_log>\n"), "{text}");
        assert!(text.contains("\t\t\t<current_mig>Disabled</current_mig>\n"), "{text}");
        assert!(text.contains("\t\t\t<used>2048 MiB</used>\n"), "{text}");
    }

    #[test]
    fn a_slice_may_have_the_minor_number_of_its_capability() {
        let mut snapshot = snapshot();
        snapshot.mig_minor = MigMinor::Capability;
        let text = document(&snapshot);
        let minors: Vec<_> = text.lines().filter(|line| line.contains("minor_number")).collect();
        assert_eq!(
            minors,
            [12, 21, 3].map(|minor| format!("\t\t<minor_number>{minor}</minor_number>"))
        );
    }

    #[test]
    fn nonsense_stays_xml() {
        let mut snapshot = snapshot();
        snapshot.inventory.gpus[3].name = Some("R&D <\u{1}\u{ffff}> \"GPU\"".to_owned());
        snapshot.inventory.gpus[0].minor = None;
        let text = document(&snapshot);
        assert!(text.contains("<product_name>R&amp;D &lt;??&gt; "), "{text}");
        assert!(!text.contains("<minor_number>0"), "{text}");
        let mut reader = quick_xml::Reader::from_str(&text);
        while reader.read_event().unwrap() != Event::Eof {}
    }

    #[test]
    fn without_a_gpu_it_is_a_document() {
        let text = document(&Snapshot::new(Inventory::empty(), 0));
        assert!(text.contains("<attached_gpus>0</attached_gpus>"), "{text}");
        assert!(!text.contains("<gpu "), "{text}");
    }
}
