//! The calls that a test may want to count, one JSON object a line, in a file of the node.
//!
//! `{"pid":7,"call":"cuLaunchKernel","kernel":"select","module":"filter/select","grid":[8,1,1],…}`

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

/// The file, if the node has one.
#[derive(Debug)]
pub(crate) struct Log(Option<File>);

impl Log {
    /// Opens the log of a node; a node whose log was removed has none.
    pub(crate) fn open(path: &Path) -> Self {
        Self(OpenOptions::new().append(true).open(path).ok())
    }

    /// Adds a line, with the fields of an object.
    pub(crate) fn add(&self, call: &str, fields: &Value) {
        let Some(mut file) = self.0.as_ref() else { return };
        let mut line = json!({ "pid": std::process::id(), "call": call });
        if let (Some(line), Some(fields)) = (line.as_object_mut(), fields.as_object()) {
            line.extend(fields.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        // In one write, so that lines of several processes stay whole.
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}
