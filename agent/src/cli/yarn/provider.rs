//! `creel yarn node-label`, `node-attributes` and `health`: what the NodeManager runs as scripts.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::stdout;
use crate::error::Error;
use crate::yarn::provider::{self, attributes, health, label};

/// Which label.
#[derive(Debug, clap::Args)]
pub(crate) struct LabelArguments {
    /// The label of a node with GPUs; the cluster must know it (yarn rmadmin
    /// -addToClusterNodeLabels)
    #[arg(long, value_name = "NAME", default_value = "gpu", value_parser = label::parse)]
    label: String,
    /// The model of the node's GPUs as the label, as NVIDIA-H200
    #[arg(long, conflicts_with = "label")]
    model: bool,
}

/// What else is asked.
#[derive(Debug, clap::Args)]
pub(crate) struct HealthArguments {
    /// How many seconds another script may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    /// Another health script, and its arguments, to run too: everything after this is its
    #[arg(long, value_name = "SCRIPT", num_args = 1.., allow_hyphen_values = true)]
    chain: Vec<OsString>,
}

pub(super) fn node_label(
    arguments: &LabelArguments,
    run_dir: Option<PathBuf>,
) -> Result<(), Error> {
    let label = if arguments.model {
        label::Label::Model
    } else {
        label::Label::Named(arguments.label.clone())
    };
    stdout::write(label::print(&provider::snapshot(run_dir)?, &label)?.as_bytes())
}

pub(super) fn node_attributes(run_dir: Option<PathBuf>) -> Result<(), Error> {
    stdout::write(attributes::print(&provider::snapshot(run_dir)?).as_bytes())
}

/// Exits with 0 whatever it finds: YARN reads the lines of a script that does.
pub(super) fn health(arguments: &HealthArguments, run_dir: Option<PathBuf>) -> Result<(), Error> {
    let snapshot = provider::snapshot(run_dir);
    let mut report = health::check(snapshot.as_ref().ok());
    if let Err(error) = snapshot {
        report.stderr = format!("{error}\n");
    }
    if let [script, arguments_of_it @ ..] = arguments.chain.as_slice() {
        report.chain(script, arguments_of_it, Duration::from_secs(arguments.timeout));
    }
    // Nobody need read it.
    let _ = std::io::stderr().write_all(report.stderr.as_bytes());
    stdout::write(&report.stdout)
}
