//! What can go wrong.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// Why there is no inventory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The driver's library is there, but can't be loaded.
    #[error("the NVIDIA driver's library {library} can't be used: {reason}; reinstall the driver")]
    Library {
        /// The file.
        library: String,
        /// The dynamic loader's words.
        reason: String,
    },
    /// The driver doesn't start to work.
    #[error("the NVIDIA driver failed to initialize ({library}): {words}; {remedy}")]
    Initialize {
        /// The library.
        library: String,
        /// The driver's own words, and the versions where they matter.
        words: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The driver works, but can't say how many GPUs there are, or can't watch them.
    #[error("the NVIDIA driver failed to {what}: {words}")]
    Driver {
        /// What it was asked to do.
        what: &'static str,
        /// Its own words.
        words: String,
    },
    /// The driver doesn't answer.
    #[error(
        "the NVIDIA driver did not answer within {deadline:?}: a call into it hangs or is very slow; look for NVRM and Xid in the kernel log (dmesg), and allow more time with --deadline if it is only slow"
    )]
    Hung {
        /// How long it was waited for.
        deadline: Duration,
    },
    /// The process that asks the driver could not be started.
    #[error("can't start the process that asks the NVIDIA driver: {0}")]
    Spawn(io::Error),
    /// The process that asks the driver was ended by a signal: the driver's library crashed.
    #[error("the process that asks the NVIDIA driver crashed ({status}){}", said(.stderr))]
    Crashed {
        /// How it ended.
        status: ExitStatus,
        /// What it wrote on standard error.
        stderr: String,
    },
    /// Text that is no inventory.
    #[error("this is no inventory of creel-discovery: {0}")]
    Json(#[from] serde_json::Error),
    /// An inventory of another version.
    #[error(
        "this is an inventory of schema {found}, and schema {} is understood",
        crate::inventory::SCHEMA
    )]
    Schema {
        /// The version found.
        found: u32,
    },
    /// A snapshot can't be read or written.
    #[error("the snapshot {}: {reason}", path.display())]
    Snapshot {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The process that asks the driver says why there is no answer.
    #[error("{0}")]
    Child(String),
    /// The driver's nvidia-smi can't be started.
    #[error("can't start {}: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is no nvidia-smi of the driver.
    #[error(
        "there is no nvidia-smi of the NVIDIA driver on this node: looked in {looked}; this one, of Creel, answers -q -x, -L and --query-gpu=… --format=csv"
    )]
    NoNvidiaSmi {
        /// Where it was looked for.
        looked: String,
    },
    /// The agent gives this container no lease; it says why.
    #[error("{0}")]
    NoLease(String),
    /// The answer can't be written.
    #[error("can't write the answer: {0}")]
    Write(#[from] io::Error),
}

fn said(stderr: &str) -> String {
    match stderr.trim() {
        "" => String::new(),
        text => format!(" and said: {text}"),
    }
}
