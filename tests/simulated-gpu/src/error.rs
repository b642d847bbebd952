//! What is wrong with a description of a node, or with its directory.

use std::io;
use std::path::{Path, PathBuf};

/// Why a node can't be prepared, opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A SPEC that is none.
    #[error(
        "'{spec}' is no description of GPUs: {reason}; it is MODEL:COUNT[,mig=NxPROFILE[+NxPROFILE…]], as h200:2 or a100:1,mig=3x2g.10gb+1x1g.5gb, or a topology file FILE.toml"
    )]
    Spec {
        /// The text.
        spec: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A model that is not known.
    #[error("there is no GPU model '{model}'; known are {known}")]
    Model {
        /// The name.
        model: String,
        /// Those that are known.
        known: String,
    },
    /// MIG slices that don't exist or don't fit.
    #[error("'{layout}' is no MIG layout of {model}: {reason}")]
    Mig {
        /// The model's name.
        model: String,
        /// The layout.
        layout: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A topology whose values don't agree.
    #[error("GPU {gpu} of the topology: {reason}")]
    Gpu {
        /// Position, from 0.
        gpu: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A TOML file that can't be parsed.
    #[error("{path}: {reason}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        reason: String,
    },
    /// A return code that NVML doesn't have.
    #[error("NVML has no error '{0}'; it has such as GPU_IS_LOST, UNKNOWN or NOT_SUPPORTED")]
    Code(String),
    /// A result that the CUDA driver doesn't have.
    #[error("the CUDA driver has no error '{0}'; it has such as OUT_OF_MEMORY or ILLEGAL_ADDRESS")]
    CudaCode(String),
    /// A fault that does nothing, or two things.
    #[error("a fault has exactly one of error, cuda_error, delay_ms and hang")]
    Fault,
    /// The library lacks the function that a topology wants to be missing.
    #[error("there is no function '{0}' that could be missing")]
    Function(String),
    /// A GPU that the node hasn't.
    #[error("the node has no GPU {gpu}: it has {count}")]
    NoGpu {
        /// The index asked for.
        gpu: u32,
        /// How many there are.
        count: usize,
    },
    /// More memory than there is.
    #[error("{asked} bytes can't be in use: {what} has {total}")]
    Memory {
        /// Bytes asked for.
        asked: u64,
        /// The device.
        what: String,
        /// Bytes that it has.
        total: u64,
    },
    /// The state file is of another version, or no state file.
    #[error("{0} is no state file of this version: prepare the node anew")]
    State(PathBuf),
    /// The state file has no room for another process.
    #[error("{0} holds as many processes as it can")]
    Full(PathBuf),
    /// The built library is not beside the program.
    #[error("no {0} beside the program: build the crate creel-simulated-gpu")]
    Library(String),
    /// A file can't be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// Says which file an I/O error is about.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }
}
