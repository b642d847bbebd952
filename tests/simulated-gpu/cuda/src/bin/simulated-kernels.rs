//! Builds a library of kernels for the simulated CUDA driver, in place of the one that is built in.

#![allow(clippy::doc_markdown, reason = "doc comments are the help texts here")]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use simulated_cuda::compile::Build;

/// Builds kernels for the simulated CUDA driver: SIMULATED_GPU_KERNELS=OUT, or DIR/kernels.so of a
/// node.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// The library to make.
    #[arg(long)]
    out: PathBuf,
    /// A directory with .cu files; repeatable.
    #[arg(long, required = true)]
    root: Vec<PathBuf>,
    /// Check accesses with AddressSanitizer; processes then load its library first.
    #[arg(long)]
    sanitize: bool,
    /// Where objects are kept; absent: they aren't.
    #[arg(long)]
    work: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let made = tempfile::tempdir().map_err(|error| error.to_string()).and_then(|directory| {
        let work = cli.work.unwrap_or_else(|| directory.path().to_owned());
        Build { roots: cli.root, work, library: cli.out, sanitize: cli.sanitize }.run()
    });
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("simulated-kernels: {error}");
            ExitCode::FAILURE
        }
    }
}
