//! XML as of `nvidia-smi -x -q`, for YARN.
//!
//! YARN's parser wants nothing but XML, integers before a blank (`143771 MiB`), and a
//! `<minor_number>` that is right: a text that is no number becomes minor 0, the wrong GPU, so one
//! that is unknown is left out. Scripts that read nvidia-smi line by line want tabs, one element per
//! line, and `<uuid>` in the third line of a `<gpu>`.
//!
//! A GPU that is unfit for use is left out: YARN would give it to somebody.

use std::io;

use quick_xml::Writer;
use quick_xml::events::BytesText;

use crate::HealthState;
use crate::inventory::{Gpu, Inventory, Memory, Slice};

const HEADER: &str =
    "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n";

/// The document. Without a GPU, one without `<gpu>`.
pub fn text(inventory: &Inventory) -> String {
    let mut writer = Writer::new_with_indent(HEADER.as_bytes().to_vec(), b'\t', 1);
    document(&mut writer, inventory).expect("a vector takes any bytes");
    String::from_utf8(writer.into_inner()).expect("made of strings") + "\n"
}

type Xml = Writer<Vec<u8>>;

fn document(xml: &mut Xml, inventory: &Inventory) -> io::Result<()> {
    xml.create_element("nvidia_smi_log").write_inner_content(|xml| {
        let driver = inventory.driver.as_ref();
        leaf(xml, "driver_version", driver.and_then(|driver| driver.version.as_deref()))?;
        leaf(xml, "cuda_version", driver.and_then(|driver| driver.cuda.as_deref()))?;
        let fit = |gpu: &&Gpu| gpu.health.state == HealthState::Healthy;
        let gpus: Vec<_> = inventory.gpus.iter().filter(fit).collect();
        leaf(xml, "attached_gpus", Some(&gpus.len().to_string()))?;
        gpus.into_iter().try_for_each(|each| gpu(xml, each))
    })?;
    Ok(())
}

fn gpu(xml: &mut Xml, gpu: &Gpu) -> io::Result<()> {
    let id = clean(gpu.pci_bus_id.as_deref().unwrap_or("N/A"));
    let element = xml.create_element("gpu").with_attribute(("id", id.as_str()));
    element.write_inner_content(|xml| {
        leaf(xml, "product_name", gpu.name.as_deref())?;
        leaf(xml, "uuid", gpu.uuid.as_deref())?;
        if let Some(minor) = gpu.minor {
            leaf(xml, "minor_number", Some(&minor.to_string()))?;
        }
        let enabled = |on: Option<bool>| on.map(|on| if on { "Enabled" } else { "Disabled" });
        group(xml, "mig_mode", |xml| {
            leaf(xml, "current_mig", enabled(gpu.mig.enabled))?;
            leaf(xml, "pending_mig", enabled(gpu.mig.pending))
        })?;
        if gpu.mig.slices.is_empty() {
            leaf(xml, "mig_devices", Some("None"))?;
        } else {
            group(xml, "mig_devices", |xml| {
                gpu.mig.slices.iter().try_for_each(|each| slice(xml, each))
            })?;
        }
        group(xml, "pci", |xml| leaf(xml, "pci_bus_id", gpu.pci_bus_id.as_deref()))?;
        memory(xml, &gpu.memory)?;
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

fn slice(xml: &mut Xml, slice: &Slice) -> io::Result<()> {
    let number = |number: Option<u32>| number.map(|number| number.to_string());
    group(xml, "mig_device", |xml| {
        leaf(xml, "index", Some(&slice.index.to_string()))?;
        leaf(xml, "gpu_instance_id", number(slice.gpu_instance).as_deref())?;
        leaf(xml, "compute_instance_id", number(slice.compute_instance).as_deref())?;
        group(xml, "device_attributes", |xml| {
            group(xml, "shared", |xml| {
                leaf(xml, "multiprocessor_count", number(slice.multiprocessors).as_deref())
            })
        })?;
        memory(xml, &slice.memory)
    })
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
    use super::*;
    use crate::inventory::tests::node;

    #[test]
    fn the_layout_is_nvidia_smis() {
        let text = text(&node());
        let start = "<?xml version=\"1.0\" ?>\n\
            <!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n\
            <nvidia_smi_log>\n\
            \t<driver_version>580.95.05</driver_version>\n\
            \t<cuda_version>13.0</cuda_version>\n\
            \t<attached_gpus>3</attached_gpus>\n\
            \t<gpu id=\"00000000:00:00.0\">\n\
            \t\t<product_name>NVIDIA A100-SXM4-40GB</product_name>\n\
            \t\t<uuid>GPU-0</uuid>\n\
            \t\t<minor_number>0</minor_number>\n\
            \t\t<mig_mode>\n\
            \t\t\t<current_mig>Enabled</current_mig>\n";
        assert!(text.starts_with(start), "{text}");
        assert!(text.ends_with("\t</gpu>\n</nvidia_smi_log>\n"), "{text}");
        assert!(text.contains("\t\t\t\t<gpu_instance_id>2</gpu_instance_id>\n"), "{text}");
        assert!(text.contains("\t\t\t<gpu_util>7 %</gpu_util>\n"), "{text}");
        assert!(text.contains("\t\t\t<used>2048 MiB</used>\n"), "{text}");
    }

    #[test]
    fn nonsense_stays_xml() {
        let mut node = node();
        node.gpus[0].name = Some("R&D <\u{1}\u{ffff}> \"GPU\"".to_owned());
        node.gpus[0].minor = None;
        let text = text(&node);
        assert!(text.contains("<product_name>R&amp;D &lt;??&gt; "), "{text}");
        assert!(!text.contains("<minor_number>0"), "{text}");
        let mut reader = quick_xml::Reader::from_str(&text);
        while reader.read_event().unwrap() != quick_xml::events::Event::Eof {}
    }

    #[test]
    fn without_a_gpu_it_is_a_document() {
        let text = text(&Inventory::empty());
        assert!(text.contains("<attached_gpus>0</attached_gpus>"), "{text}");
        assert!(!text.contains("<gpu "), "{text}");
    }
}
