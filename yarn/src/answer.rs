//! Whether YARN would accept what an `nvidia-smi -x -q` answers.
//!
//! The NodeManager parses its standard output at start, and does not start when it can't
//! (`GpuDeviceInformationParser`: JAXB over a SAX parser that is not aware of namespaces and loads
//! no DTD). Of each `<gpu>` it takes `minor_number`, and every few seconds
//! `utilization/gpu_util`; what else it knows may be missing.

use std::fmt;

use crate::xml::{Piece, Walk};

/// What a NodeManager would make of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The GPUs, in the order of their indices.
    pub gpus: Vec<Gpu>,
}

/// A GPU of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// The number in `/dev/nvidia<minor>`; absent where there is none, or none that is a number.
    pub minor: Option<u32>,
    /// Whether there is a `<utilization>`: without, the NodeManager logs an error at each look.
    pub utilization: bool,
}

/// Why a NodeManager would not start with an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads an answer: the bytes of standard output.
///
/// # Errors
///
/// Where YARN's parser would refuse it: anything that is not XML before or after the document, a
/// document that is not well-formed, and one that does not begin with `<nvidia_smi_log>`.
pub fn read(stdout: &[u8]) -> Result<Answer, Refusal> {
    if stdout.is_empty() {
        return Err(Refusal("the answer is empty".to_owned()));
    }
    let text = std::str::from_utf8(stdout).map_err(|_| Refusal("it is not UTF-8".to_owned()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    gpus(text)
        .map(|gpus| Answer { gpus })
        .map_err(|malformed| Refusal(format!("line {}: {}", malformed.line, malformed.reason)))
}

fn gpus(text: &str) -> Result<Vec<Gpu>, crate::xml::Malformed> {
    let mut walk = Walk::new(text)?;
    let mut gpus: Vec<Gpu> = Vec::new();
    let mut path: Vec<String> = Vec::new();
    let mut minor = String::new();
    while let Some((_, piece)) = walk.next()? {
        match piece {
            Piece::Start { name, empty, .. } => {
                if path.is_empty() && name != "nvidia_smi_log" {
                    let reason = format!("the root element is <{name}>, not <nvidia_smi_log>");
                    return Err(crate::xml::Malformed { line: 1, reason });
                }
                path.push(name);
                match (steps(&path).as_slice(), gpus.last_mut()) {
                    (["nvidia_smi_log", "gpu"], _) => gpus.push(Gpu::default()),
                    (["nvidia_smi_log", "gpu", "utilization"], Some(gpu)) => gpu.utilization = true,
                    _ => {}
                }
                if empty {
                    path.pop();
                }
            }
            Piece::End { .. } => {
                if let (["nvidia_smi_log", "gpu", "minor_number"], Some(gpu)) =
                    (steps(&path).as_slice(), gpus.last_mut())
                {
                    gpu.minor = minor.trim().parse().ok();
                    minor.clear();
                }
                path.pop();
            }
            Piece::Text(text) | Piece::Cdata(text) => {
                if path.last().is_some_and(|name| name == "minor_number") {
                    minor.push_str(&text);
                }
            }
            Piece::Other => {}
        }
    }
    Ok(gpus)
}

fn steps(path: &[String]) -> Vec<&str> {
    path.iter().map(String::as_str).collect()
}

impl Answer {
    /// What is to be known of an answer that YARN takes: nothing, if all is well.
    pub fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        let minors: Vec<_> = self.gpus.iter().filter_map(|gpu| gpu.minor).collect();
        if minors.len() < self.gpus.len() {
            notices.push(
                "nvidia-smi names no minor number for a GPU: YARN could not isolate it".to_owned(),
            );
        }
        if self.gpus.iter().any(|gpu| !gpu.utilization) {
            notices.push(
                "nvidia-smi names no utilization for a GPU: the NodeManager logs an error at each \
                 look at it"
                    .to_owned(),
            );
        }
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_yarn_takes_is_taken() {
        for (text, gpus) in [
            ("<nvidia_smi_log><gpu><minor_number>3</minor_number></gpu></nvidia_smi_log>", 1),
            (
                "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\n</nvidia_smi_log>\n",
                0,
            ),
            (
                "<nvidia_smi_log><gpu/><gpu><minor_number>N/A</minor_number></gpu></nvidia_smi_log>",
                2,
            ),
            ("<nvidia_smi_log><x><gpu/></x></nvidia_smi_log>", 0),
        ] {
            assert_eq!(read(text.as_bytes()).unwrap().gpus.len(), gpus, "{text}");
        }
        let text = "<nvidia_smi_log><gpu><utilization><gpu_util>7 %</gpu_util></utilization><minor_number>3</minor_number></gpu></nvidia_smi_log>";
        let answer = read(text.as_bytes()).unwrap();
        assert_eq!(answer.gpus, [Gpu { minor: Some(3), utilization: true }]);
        assert!(answer.notices().is_empty());
    }

    #[test]
    fn what_yarn_refuses_is_refused() {
        for text in [
            "",
            "No devices were found\n",
            "\n<?xml version=\"1.0\" ?><nvidia_smi_log/>",
            "WARNING: infoROM is corrupted\n<nvidia_smi_log/>",
            "<nvidia_smi_log/>\nWARNING: infoROM is corrupted at gpu 0",
            "<nvidia_smi_log><gpu></nvidia_smi_log>",
            "<nvidia_smi_log><product_name>A & B</product_name></nvidia_smi_log>",
            "<html/>",
            "<nvidia_smi_log>",
        ] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
        assert!(read(b"<nvidia_smi_log>\xff</nvidia_smi_log>").is_err());
    }

    #[test]
    fn what_is_missing_and_matters_is_told() {
        let answer = read(b"<nvidia_smi_log><gpu/></nvidia_smi_log>").unwrap();
        assert_eq!(answer.notices().len(), 2);
    }
}
