//! The node's health (`NodeHealthScriptRunner`).
//!
//! A line that begins with `ERROR` has YARN stop all scheduling on the node, and mark it
//! UNHEALTHY; only if the script exits with 0. So `ERROR` is said only of what leaves a node with
//! GPUs without any: containers that ask for one would be sent here and fail, one after the other.
//! A GPU of several that is lost is for `creel yarn status` and `yarn.update_resource` to tell.
//!
//! The NodeManager runs one script alone, whatever names it is given, so one that there was before
//! is run from here and its output passed on.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use creel_discovery::{HealthState, Snapshot, deadline};

/// What the health check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// For standard output: what the NodeManager reads.
    pub stdout: Vec<u8>,
    /// For standard error: what a person reads.
    pub stderr: String,
}

/// The node's own health, from a snapshot if there is one.
pub fn check(snapshot: Option<&Snapshot>) -> Report {
    let mut report = Report::default();
    let Some(snapshot) = snapshot else { return report };
    let gpus = &snapshot.inventory.gpus;
    let unfit: Vec<_> = gpus
        .iter()
        .filter(|gpu| gpu.health.state == HealthState::Unhealthy)
        .map(|gpu| format!("GPU {}: {}", gpu.index, gpu.health.reasons.join(", ")))
        .collect();
    let lines = unfit.iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let text = lines.collect::<Vec<_>>().join("; ");
    if !unfit.is_empty() && unfit.len() == gpus.len() {
        report.stdout = format!("ERROR no GPU of this node is fit for use: {text}\n").into_bytes();
    } else if !unfit.is_empty() {
        report.stderr = format!("{text}\n");
    }
    report
}

impl Report {
    /// Adds what another health script says, as the NodeManager would take it: its output if it
    /// exits with 0, nothing if it exits otherwise or is not there, and an error if it does not end.
    pub fn chain(&mut self, script: &OsString, arguments: &[OsString], timeout: Duration) {
        let name = script.to_string_lossy();
        let output = deadline::run(Command::new(script).args(arguments), timeout);
        match output {
            Ok(output) if output.status.success() => {
                self.stdout.extend(output.stdout);
                if !self.stdout.is_empty() && !self.stdout.ends_with(b"\n") {
                    self.stdout.push(b'\n');
                }
            }
            Ok(output) => {
                self.note(&format!("{name} failed ({}), so it says nothing", output.status));
            }
            Err(creel_discovery::Error::Hung { .. }) => {
                let seconds = timeout.as_secs();
                let text = format!("ERROR {name} did not end within {seconds} s\n");
                self.stdout.extend(text.into_bytes());
            }
            Err(error) => self.note(&format!("{name} can't be run: {error}")),
        }
    }

    /// Adds a line for people.
    fn note(&mut self, line: &str) {
        self.stderr.push_str(line);
        self.stderr.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use creel_discovery::{Gpu, Health, Inventory};

    use super::*;

    /// More than any script here needs.
    const PATIENCE: Duration = Duration::from_mins(1);

    fn node(fit: &[bool]) -> Snapshot {
        let gpu = |(fit, index): (&bool, u32)| {
            let reason = || Health::unhealthy("Xid 79:\nERROR fell off the bus".to_owned());
            Gpu { index, health: if *fit { Health::default() } else { reason() }, ..Gpu::default() }
        };
        let gpus = fit.iter().zip(0..).map(gpu).collect();
        Snapshot::new(Inventory { gpus, ..Inventory::empty() }, 0)
    }

    fn chained(script: &str) -> Report {
        let mut report = Report { stdout: b"own\n".to_vec(), ..Report::default() };
        report.chain(&"sh".into(), &["-c".into(), script.into()], PATIENCE);
        report
    }

    #[test]
    fn only_a_node_of_whose_gpus_none_is_left_is_in_error() {
        for fit in [&[true][..], &[true, false], &[]] {
            assert_eq!(check(Some(&node(fit))).stdout, b"", "{fit:?}");
        }
        assert!(check(Some(&node(&[true, false]))).stderr.starts_with("GPU 1: Xid 79"));
        let all = String::from_utf8(check(Some(&node(&[false, false]))).stdout).unwrap();
        assert!(all.starts_with("ERROR no GPU") && all.contains("GPU 1: Xid 79"), "{all}");
        assert_eq!(all.lines().count(), 1, "{all}");
        assert_eq!(check(None), Report::default());
    }

    #[test]
    fn another_script_is_taken_as_yarn_takes_it() {
        assert_eq!(chained("printf 'ERROR disk'; echo note >&2").stdout, b"own\nERROR disk\n");
        assert_eq!(chained("echo fine").stdout, b"own\nfine\n");
        for failing in ["echo ERROR; exit 1", "echo ERROR; kill -9 $$"] {
            let report = chained(failing);
            assert_eq!(report.stdout, b"own\n", "{failing}");
            assert!(report.stderr.starts_with("sh "), "{report:?}");
        }
        let mut report = Report::default();
        report.chain(&"/nonexistent".into(), &[], PATIENCE);
        assert!(report.stdout.is_empty() && report.stderr.contains("/nonexistent"), "{report:?}");
    }

    #[test]
    fn another_script_that_hangs_is_an_error() {
        let mut report = Report::default();
        let arguments = ["-c".into(), "echo half; sleep 600 & sleep 600".into()];
        report.chain(&"sh".into(), &arguments, Duration::from_millis(200));
        assert_eq!(report.stdout, b"ERROR sh did not end within 0 s\n");
    }
}
