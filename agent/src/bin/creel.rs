//! The command line of Creel's agent; [`creel_agent::cli`] says what it does.

use std::process::ExitCode;

fn main() -> ExitCode {
    creel_agent::cli::main()
}
