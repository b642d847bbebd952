//! Which errors make a GPU unfit for use.
//!
//! Two sources: what NVML says when it is asked ([`Health`]), and the Xid events that it reports
//! as they happen ([`Severity`]).

use serde::{Deserialize, Serialize};

/// Whether a GPU is fit for use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Fit or not.
    pub state: HealthState,
    /// Why not.
    pub reasons: Vec<String>,
}

/// Fit or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    /// Fit for use.
    Healthy,
    /// Not fit: lost, or with an error that only a reset or a repair ends.
    Unhealthy,
}

impl Default for Health {
    fn default() -> Self {
        Self { state: HealthState::Healthy, reasons: Vec::new() }
    }
}

impl Health {
    /// Unfit for one reason.
    pub fn unhealthy(reason: String) -> Self {
        let mut health = Self::default();
        health.add(reason);
        health
    }

    /// Adds a reason not to use the GPU.
    pub fn add(&mut self, reason: String) {
        self.state = HealthState::Unhealthy;
        if !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
    }
}

/// What an Xid says of the GPU that it happened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A program went wrong: nothing is wrong with the GPU.
    Application,
    /// The GPU had an error and contained it: it works on, and should be reset when it is idle.
    Contained,
    /// The GPU can't be relied on before it is reset, or at all.
    Fatal,
}

/// What an Xid means (NVIDIA, "XID Errors", docs.nvidia.com/deploy/xid-errors).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid {
    /// What it says of the GPU.
    pub severity: Severity,
    /// What happened.
    pub meaning: &'static str,
}

/// What an Xid means. One that is not known is fatal: most are, and a GPU that is used in spite of
/// an error harms more than one that is left alone.
pub fn xid(number: u64) -> Xid {
    use Severity::{Application, Contained, Fatal};
    let (severity, meaning) = match number {
        13 => (Application, "a program caused an exception in the graphics engine"),
        31 => (Application, "a program accessed memory that is not its own (MMU fault)"),
        43 => (Application, "a program's channel stopped after a fault of its own"),
        45 => (Application, "a program's channels were removed when it ended"),
        48 => (Fatal, "double-bit memory error"),
        61 | 62 => (Fatal, "the GPU's microcontroller halted"),
        63 => (Contained, "a memory row or page was recorded to be replaced at the next reset"),
        64 => (Fatal, "a bad memory row or page could not be recorded to be replaced"),
        68 => (Application, "a program caused an exception in the video decoder"),
        69 => (Application, "a program gave the graphics engine a class of work that it refuses"),
        74 => (Fatal, "NVLink error"),
        79 => (Fatal, "the GPU has fallen off the bus"),
        92 => (Contained, "many single-bit memory errors"),
        94 => (Contained, "memory error that only the programs on it suffered from"),
        95 => (Fatal, "memory error that could not be contained: all programs suffer from it"),
        109 => (Application, "a program's work did not give way to another's in time"),
        119 | 120 => (Fatal, "the GPU's system processor (GSP) doesn't answer"),
        137 => (Application, "a program accessed memory of another GPU that is not its own"),
        154 => (Contained, "what it takes to recover the GPU has changed: see the kernel log"),
        _ => (Fatal, "an error that Creel doesn't know; see NVIDIA's list of Xid errors"),
    };
    Xid { severity, meaning }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_programs_are_not_of_the_gpu() {
        for number in [13, 31, 43, 45, 68, 109] {
            assert_eq!(xid(number).severity, Severity::Application, "{number}");
        }
        for number in [48, 64, 74, 79, 95, 119, 4711] {
            assert_eq!(xid(number).severity, Severity::Fatal, "{number}");
        }
        assert_eq!(xid(94).severity, Severity::Contained);
    }

    #[test]
    fn a_reason_is_given_once() {
        let mut health = Health::default();
        health.add("lost".to_owned());
        health.add("lost".to_owned());
        assert_eq!(health, Health::unhealthy("lost".to_owned()));
    }
}
