//! `creel-executor`: see the library.

use std::process::ExitCode;

use clap::Parser;
use creel_executor_runtime::privileges::Identity;
use creel_executor_runtime::process;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs queries for one user on one device. Started by creeld, which talks to it over its
/// standard input; not meant to be started by hand.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The user to become.
    #[arg(long, requires = "gid")]
    uid: Option<u32>,
    /// The primary group to take.
    #[arg(long, requires = "uid")]
    gid: Option<u32>,
    /// The supplementary groups to take.
    #[arg(long, requires = "uid", value_delimiter = ',')]
    groups: Vec<u32>,
}

fn main() -> ExitCode {
    let Arguments { uid, gid, groups } = Arguments::parse();
    let identity = uid.zip(gid).map(|(uid, gid)| Identity { uid, gid, groups });
    match process::run(identity) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("creel-executor: {error}");
            ExitCode::FAILURE
        }
    }
}
