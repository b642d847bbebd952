//! What the NodeManager's provider scripts print: its label, its attributes, its health.
//!
//! ```text
//!   NodeManager ──runs every so often──▶ creel yarn node-label | node-attributes | health
//!                                              │ reads
//!                                        snapshot.json, which the agent keeps
//! ```
//!
//! The NodeManager takes the path of a program and its arguments with commas between them, so
//! `creel` itself is the script:
//!
//! | property of `yarn-site.xml` | value |
//! |---|---|
//! | `yarn.nodemanager.node-labels.provider` | `script` |
//! | `yarn.nodemanager.node-labels.provider.script.path`, `.script.opts` | `/usr/bin/creel`, `yarn,node-label` |
//! | `yarn.nodemanager.node-attributes.provider` | `script` |
//! | `yarn.nodemanager.node-attributes.provider.script.path`, `.script.opts` | `/usr/bin/creel`, `yarn,node-attributes` |
//! | `yarn.nodemanager.health-checker.script.path`, `.script.opts` | `/usr/bin/creel`, `yarn,health` |
//!
//! They read a regular file and ask neither the driver nor the agent, so they never hang. Where
//! nobody ever looked at the GPUs, label and attributes fail: the NodeManager keeps what it had.

pub mod attributes;
pub mod health;
pub mod label;
mod name;

use std::path::PathBuf;

use creel_discovery::Snapshot;
use creel_discovery::snapshot::{self, Place};

use crate::clock;
use crate::error::Error;

/// The snapshot that the agent keeps: in that run directory, or where it is by default.
pub fn snapshot(run_dir: Option<PathBuf>) -> Result<Snapshot, Error> {
    let places: Vec<_> = match run_dir {
        Some(path) => vec![Place { path, named: true }],
        None => snapshot::places(),
    };
    let mut reasons = Vec::new();
    let found = snapshot::best(&places, clock::now(), |error| reasons.push(error.to_string()));
    found.ok_or_else(|| {
        if reasons.is_empty() {
            reasons.push("no agent has written one yet (systemctl status creeld)".to_owned());
        }
        Error::Failed(format!("there is no snapshot of the GPUs: {}", reasons.join("; ")))
    })
}

#[cfg(test)]
mod tests {
    use creel_discovery::Inventory;

    use super::*;

    #[test]
    fn a_snapshot_is_read_where_it_is_and_its_absence_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = || Some(directory.path().to_owned());
        let error = snapshot(run_dir()).unwrap_err().to_string();
        assert!(error.contains("no agent has written one"), "{error}");
        let written = Snapshot::new(Inventory::empty(), 7);
        written.write(directory.path()).unwrap();
        assert_eq!(snapshot(run_dir()).unwrap(), written);
        std::fs::write(directory.path().join(snapshot::FILE_NAME), "{").unwrap();
        let error = snapshot(run_dir()).unwrap_err().to_string();
        assert!(error.contains("snapshot.json"), "{error}");
    }
}
