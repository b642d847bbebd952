//! `creeld`: see [`creel_agent::daemon`].

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use creel_agent::daemon::{self, Options};

/// The agent of a node: finds its GPUs and hosts its executors.
#[derive(Parser)]
#[command(version, args_override_self = true)]
struct Arguments {
    /// Read settings from this file instead of /etc/creel/creel.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Put the sockets into this directory instead of CREEL_RUN_DIR, /run/creel (root) or
    /// $XDG_RUNTIME_DIR/creel.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Set a setting, over file and environment.
    #[arg(long, value_name = "NAME=VALUE", value_parser = creel_settings::assignment)]
    set: Vec<(String, String)>,
    /// Short for --set agent.log_level=LEVEL.
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Short for --set agent.log_format=FORMAT.
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

fn main() -> ExitCode {
    let Arguments { config, run_dir, mut set, log_level, log_format } = Arguments::parse();
    let short = [("agent.log_level", log_level), ("agent.log_format", log_format)];
    set.extend(short.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    match daemon::run(&Options { config, run_dir, settings: set }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            for line in error.to_string().lines() {
                eprintln!("creeld: {line}");
            }
            ExitCode::FAILURE
        }
    }
}
