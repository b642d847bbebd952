//! Prepares simulated nodes, and changes what happens on them.

// Doc comments are the help texts here.
#![allow(clippy::doc_markdown)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use simulated_nvml::spec::Spec;
use simulated_nvml::{Action, Code, CudaCode, Error, Fault, Node, Topology};

/// Simulated nodes with NVIDIA GPUs, for tests.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Makes a node in a directory and prints what belongs into LD_LIBRARY_PATH.
    Prepare {
        /// The node's directory.
        #[arg(long)]
        dir: PathBuf,
        /// MODEL:COUNT[,mig=NxPROFILE[+NxPROFILE…]], or a topology file FILE.toml; repeatable, in
        /// PCI order.
        #[arg(long, value_name = "SPEC", num_args = 1.., required = true)]
        gpus: Vec<Spec>,
    },
    /// Lets something be wrong with a node from now on.
    Fault(FaultArgs),
    /// Raises an Xid event on a GPU.
    Xid {
        /// The node's directory.
        #[arg(long)]
        dir: PathBuf,
        /// NVML index of the GPU.
        #[arg(long)]
        gpu: u32,
        /// The Xid, as 79.
        #[arg(long)]
        code: u64,
    },
    /// Sets the memory that is in use on a GPU.
    Use {
        /// The node's directory.
        #[arg(long)]
        dir: PathBuf,
        /// NVML index of the GPU.
        #[arg(long)]
        gpu: u32,
        /// Index of the MIG slice on it.
        #[arg(long, requires = "pid")]
        slice: Option<u32>,
        /// How much, in MiB.
        #[arg(long)]
        mib: u64,
        /// The process that uses it; absent: none.
        #[arg(long)]
        pid: Option<u32>,
    },
}

#[derive(Args)]
struct FaultArgs {
    /// The node's directory.
    #[arg(long)]
    dir: PathBuf,
    /// NVML index of the GPU; absent: all calls, those that are about no GPU included.
    #[arg(long)]
    gpu: Option<u32>,
    /// The function, as nvmlDeviceGetName or cuMemAlloc_v2; absent: all.
    #[arg(long)]
    function: Option<String>,
    /// Only to call number K of each process, and with --onward to those after it; from 1.
    #[arg(long, value_name = "K")]
    call: Option<u64>,
    /// From call number K on.
    #[arg(long, requires = "call")]
    onward: bool,
    #[command(flatten)]
    action: ActionArgs,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct ActionArgs {
    /// The call fails with this, as NO_PERMISSION.
    #[arg(long, value_name = "CODE")]
    error: Option<Code>,
    /// The call of the CUDA driver fails with this, as OUT_OF_MEMORY.
    #[arg(long, value_name = "CODE")]
    cuda_error: Option<CudaCode>,
    /// The GPU is lost: short for --error GPU_IS_LOST.
    #[arg(long, requires = "gpu")]
    lost: bool,
    /// The call takes so many milliseconds.
    #[arg(long, value_name = "MS")]
    delay: Option<u64>,
    /// The call doesn't come back.
    #[arg(long)]
    hang: bool,
    /// Nothing is wrong any more: ends all faults, or those of --gpu or --function.
    #[arg(long)]
    clear: bool,
}

impl ActionArgs {
    /// The action; absent: faults are to end.
    fn action(&self) -> Option<Action> {
        if self.lost {
            Some(Action::Fail(Code::GPU_IS_LOST))
        } else if self.hang {
            Some(Action::Hang)
        } else {
            let delay = self.delay.map(|ms| Action::Delay(Duration::from_millis(ms)));
            delay.or(self.error.map(Action::Fail)).or(self.cuda_error.map(Action::FailCuda))
        }
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("simulated-gpu: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Prepare { dir, gpus } => {
            let mut topology = Topology::default();
            for spec in gpus {
                topology.append(spec.topology()?);
            }
            println!("{}", Node::prepare(&dir, &topology)?.library_path().display());
            Ok(())
        }
        Command::Fault(FaultArgs { dir, gpu, function, call, onward, action }) => {
            let node = Node::open(&dir)?;
            let mut faults = node.faults()?;
            match action.action() {
                Some(action) => {
                    let fault = Fault { function, ..Fault::new(gpu, action) };
                    faults.push(match call {
                        None => fault,
                        Some(call) if onward => fault.from(call),
                        Some(call) => fault.at(call),
                    });
                }
                None => faults.retain(|fault| {
                    (gpu.is_some() && fault.gpu != gpu)
                        || (function.is_some() && fault.function != function)
                }),
            }
            node.set_faults(&faults)
        }
        Command::Xid { dir, gpu, code } => Node::open(&dir)?.raise_xid(gpu, code),
        Command::Use { dir, gpu, slice, mib, pid } => {
            Node::open(&dir)?.set_used(gpu, slice, pid, mib << 20)
        }
    }
}
