//! The formats of real answers.

use quick_xml::Reader;
use quick_xml::events::Event;

use crate::node::{TestNode, text};

/// Every text of a document with the path of its element, as `nvidia_smi_log/gpu/uuid`.
pub(crate) fn xml(document: &str) -> Vec<(String, String)> {
    let mut reader = Reader::from_str(document);
    let mut path: Vec<String> = Vec::new();
    let mut texts = Vec::new();
    loop {
        match reader.read_event().unwrap() {
            Event::Start(start) => path.push(start.name().as_ref().to_owned()),
            Event::End(_) => {
                path.pop();
            }
            Event::Text(content) if !content.trim().is_empty() => {
                texts.push((path.join("/"), content.to_string()));
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(path, Vec::<String>::new());
    texts
}

pub(crate) fn values<'a>(texts: &'a [(String, String)], path: &str) -> Vec<&'a str> {
    texts.iter().filter(|(at, _)| at == path).map(|(_, text)| text.as_str()).collect()
}

#[test]
fn spark_gets_its_line() {
    let node = TestNode::of(&["h200:2"]);
    assert_eq!(node.spark(), "{\"name\": \"gpu\", \"addresses\":[\"0\",\"1\"]}\n");
    assert_eq!(TestNode::of(&["t4:1"]).spark(), "{\"name\": \"gpu\", \"addresses\":[\"0\"]}\n");
}

#[test]
fn yarn_gets_its_xml() {
    let node = TestNode::of(&["a100:1,mig=3x2g.10gb+1x1g.5gb", "h200:1"]);
    node.node.set_used(1, None, None, 3 << 20).unwrap();
    let output = node.discover(&["--format", "nvidia-smi"]);
    assert!(output.status.success());
    let document = text(&output.stdout);
    assert!(document.starts_with("<?xml version=\"1.0\" ?>\n"), "{document}");
    let texts = xml(&document);
    let gpu = |path: &str| values(&texts, &format!("nvidia_smi_log/gpu/{path}"));
    assert_eq!(values(&texts, "nvidia_smi_log/driver_version"), ["580.95.05"]);
    assert_eq!(values(&texts, "nvidia_smi_log/attached_gpus"), ["5"]);
    let slice = |profile: &str| format!("NVIDIA A100-SXM4-40GB MIG {profile}");
    let (two, one) = (slice("2g.10gb"), slice("1g.5gb"));
    assert_eq!(gpu("product_name"), [&two, &two, &two, &one, "NVIDIA H200"]);
    let inventory = node.inventory();
    let uuids: Vec<_> = inventory.units().map(|unit| unit.uuid().unwrap()).collect();
    assert_eq!(gpu("uuid"), uuids);
    assert_eq!(gpu("minor_number"), ["0", "0", "0", "0", "1"]);
    assert_eq!(gpu("mig_mode/current_mig"), ["N/A", "N/A", "N/A", "N/A", "Disabled"]);
    assert_eq!(
        gpu("fb_memory_usage/total"),
        ["9984 MiB", "9984 MiB", "9984 MiB", "4864 MiB", "143771 MiB"]
    );
    assert_eq!(gpu("fb_memory_usage/used"), ["0 MiB", "0 MiB", "0 MiB", "0 MiB", "3 MiB"]);
    assert_eq!(gpu("utilization/gpu_util"), ["N/A", "N/A", "N/A", "N/A", "0 %"]);
    assert_eq!(gpu("temperature/gpu_temp"), ["30 C"; 5]);
    assert_eq!(gpu("temperature/gpu_temp_max_threshold"), ["92 C", "92 C", "92 C", "92 C", "95 C"]);
}

#[test]
fn a_name_that_is_no_xml_is_escaped() {
    let node = TestNode::from_toml("[[gpu]]\nmodel = 't4'\nname = 'NVIDIA & <Co> \"T4\"'");
    let document = text(&node.discover(&["--format", "nvidia-smi"]).stdout);
    assert!(document.contains("<product_name>NVIDIA &amp; &lt;Co&gt; "), "{document}");
    xml(&document);
}

#[test]
fn people_get_a_table() {
    let node = TestNode::of(&["a100:1,mig=1x3g.20gb", "h200:1"]);
    let table = text(&node.discover(&[]).stdout);
    for part in ["driver 580.95.05, CUDA 13.0", "NVIDIA H200", "MIG 3g.20gb", "healthy"] {
        assert!(table.contains(part), "{table}");
    }
}
