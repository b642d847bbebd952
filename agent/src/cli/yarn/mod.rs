//! `creel yarn`: YARN's side of the node.

mod conf_dir;
mod files;
mod provider;
mod status;

use std::path::PathBuf;

use clap::Subcommand;

use crate::error::Error;

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Show this node as YARN sees it, and where that is not what it is
    Status(status::Arguments),
    /// Print which configuration directory of Hadoop is used, and who named it
    ConfDir(conf_dir::Arguments),
    /// Show what apply would change, as a unified diff
    Diff(files::Arguments),
    /// Bring YARN's configuration files to what GPUs need
    Apply(files::Arguments),
    /// Take back what apply wrote
    Undo(files::UndoArguments),
    /// Print the node's label, as a script of the NodeManager
    NodeLabel(provider::LabelArguments),
    /// Print the node's attributes, as a script of the NodeManager
    NodeAttributes,
    /// Say what should stop all scheduling on the node, as a health script of the NodeManager
    Health(provider::HealthArguments),
}

pub(crate) fn run(
    action: &Action,
    run_dir: Option<PathBuf>,
    config: Option<PathBuf>,
    json: bool,
) -> Result<(), Error> {
    match action {
        Action::Status(arguments) => {
            let run = status::run(arguments, run_dir, config, json);
            crate::cli::block_on(run)
        }
        Action::ConfDir(arguments) => conf_dir::run(arguments, config, json),
        Action::Diff(arguments) => files::diff(arguments, config, json),
        Action::Apply(arguments) => files::apply(arguments, config, json),
        Action::Undo(arguments) => files::undo(arguments, config, json),
        Action::NodeLabel(arguments) => provider::node_label(arguments, run_dir),
        Action::NodeAttributes => provider::node_attributes(run_dir),
        Action::Health(arguments) => provider::health(arguments, run_dir),
    }
}
