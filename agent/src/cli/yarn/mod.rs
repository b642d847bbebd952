//! `creel yarn`: YARN's side of the node.

mod conf_dir;
mod files;

use std::path::PathBuf;

use clap::Subcommand;

use crate::error::Error;

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Print which configuration directory of Hadoop is used, and who named it
    ConfDir(conf_dir::Arguments),
    /// Show what apply would change, as a unified diff
    Diff(files::Arguments),
    /// Bring YARN's configuration files to what GPUs need
    Apply(files::Arguments),
    /// Take back what apply wrote
    Undo(files::UndoArguments),
}

pub(crate) fn run(action: &Action, config: Option<PathBuf>, json: bool) -> Result<(), Error> {
    match action {
        Action::ConfDir(arguments) => conf_dir::run(arguments, config, json),
        Action::Diff(arguments) => files::diff(arguments, config, json),
        Action::Apply(arguments) => files::apply(arguments, config, json),
        Action::Undo(arguments) => files::undo(arguments, config, json),
    }
}
