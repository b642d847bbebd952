//! `creel yarn`: YARN's side of the node.

mod conf_dir;

use std::path::PathBuf;

use clap::Subcommand;

use crate::error::Error;

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Print which configuration directory of Hadoop is used, and who named it
    ConfDir(conf_dir::Arguments),
}

pub(crate) fn run(action: &Action, config: Option<PathBuf>, json: bool) -> Result<(), Error> {
    match action {
        Action::ConfDir(arguments) => conf_dir::run(arguments, config, json),
    }
}
