//! What can go wrong with memory, and what the caller may do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::ledger::{Holder, Kind, Unreturned};
use super::sizing::Mib;
use super::upstream::UpstreamError;

/// A process that holds memory of a GPU, as NVML tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// What it holds, in bytes, where the driver says it.
    pub bytes: Option<u64>,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {}", self.name, self.pid)?;
        match self.bytes {
            Some(bytes) => write!(f, ", {} MiB)", Mib(bytes)),
            None => write!(f, ")"),
        }
    }
}

/// What the caller may do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Give back what the step holds, make its inputs spillable, and take the step again.
    Retry,
    /// The same, with smaller inputs.
    Split,
    /// End the query.
    Fail,
    /// End the process: no call of the driver works any more.
    Restart,
}

/// What can go wrong with memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The pool's first size is more than its largest.
    #[error(
        "gpu.memory.max_alloc_fraction = {maximum} is less than gpu.memory.alloc_fraction = {alloc}: \
         raise one or lower the other"
    )]
    FractionsCross {
        /// The share at first.
        alloc: f64,
        /// The share at the most.
        maximum: f64,
    },
    /// Nothing is left beside the reserve.
    #[error(
        "gpu.memory.reserve ({} MiB) leaves nothing of a pool of at most {} MiB \
         (gpu.memory.max_alloc_fraction = {max_alloc}): lower it, or raise the fraction",
        Mib(*reserve), Mib(*maximum)
    )]
    ReserveTooLarge {
        /// The reserve, in bytes.
        reserve: u64,
        /// The pool's largest size before it, in bytes.
        maximum: u64,
        /// The share that makes that size.
        max_alloc: f64,
    },
    /// There is too little free memory for a pool.
    #[error(
        "the GPU has no room for a pool: {} MiB are free, of which gpu.memory.reserve leaves and \
         gpu.memory.alloc_fraction takes {} MiB ((free - {} MiB) * {alloc}), and at least {} MiB \
         are wanted (gpu.memory.min_alloc_fraction = {min_alloc} of {} MiB); {}",
        Mib(*free), Mib(*pool), Mib(*reserve), Mib(*minimum), Mib(*total), others(holders)
    )]
    PoolTooSmall {
        /// The size that would be, in bytes.
        pool: u64,
        /// What is free, in bytes.
        free: u64,
        /// The reserve, in bytes.
        reserve: u64,
        /// The share at first.
        alloc: f64,
        /// The least size, in bytes.
        minimum: u64,
        /// All memory, in bytes.
        total: u64,
        /// The least share.
        min_alloc: f64,
        /// Who holds the rest.
        holders: Vec<Process>,
    },
    /// The pool would be larger than it may be.
    #[error(
        "a pool of {} MiB (gpu.memory.alloc_fraction: ({} MiB free - {} MiB reserve) * {alloc}) is \
         more than {} MiB (gpu.memory.max_alloc_fraction = {max_alloc} of {} MiB): lower the \
         first fraction, or raise the second",
        Mib(*pool), Mib(*free), Mib(*reserve), Mib(*maximum), Mib(*total)
    )]
    PoolTooLarge {
        /// The size that would be, in bytes.
        pool: u64,
        /// What is free, in bytes.
        free: u64,
        /// The reserve, in bytes.
        reserve: u64,
        /// The share at first.
        alloc: f64,
        /// The largest size, in bytes.
        maximum: u64,
        /// All memory, in bytes.
        total: u64,
        /// The largest share.
        max_alloc: f64,
    },
    /// The pool has no piece of that size.
    #[error(
        "the GPU's pool has no room for {bytes} bytes: {live} of {limit} bytes are in use, and the \
         largest free piece has {largest}"
    )]
    PoolExhausted {
        /// What was asked for, in bytes.
        bytes: u64,
        /// What is in use, in bytes.
        live: u64,
        /// What the pool may have, in bytes.
        limit: u64,
        /// The largest free piece, in bytes; more may be free in smaller ones.
        largest: u64,
    },
    /// The driver said no.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// All wait for memory, and this task is the one to give back what it holds.
    #[error("the task must give back memory for others, and then take its step again")]
    Retry,
    /// The task's step does not fit beside what others hold; a smaller one may.
    #[error("{0}; a smaller step may fit")]
    Split(Box<Refusal>),
    /// Memory can't be had.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// The step does not fit, and can't be made smaller.
    #[error("{refusal}; and what the step works on can't be split further: {reason}")]
    CannotSplit {
        /// What did not fit.
        refusal: Box<Self>,
        /// Why there is no smaller step.
        reason: &'static str,
    },
    /// A step was taken again so often that something must be wrong.
    #[error("the step was taken {0} times, and memory ran out each time: {1}")]
    TooManyRetries(usize, Box<Self>),
    /// Somebody ended the query while it waited.
    #[error("the query was cancelled")]
    Cancelled,
    /// A query ended, and something that it took was not given back.
    #[error("query {query} has ended and did not give back {}", list(left))]
    Leak {
        /// The query.
        query: String,
        /// What is left, the largest first.
        left: Vec<Unreturned>,
    },
    /// A copy between the device and the host failed.
    #[error("{what} failed: {reason}")]
    Copy {
        /// What was copied where.
        what: &'static str,
        /// What the driver says.
        reason: String,
        /// Whether every later call fails too.
        sticky: bool,
    },
    /// Spilled batches would take more of the disk than they may.
    #[error(
        "{bytes} bytes can't be spilled: {used} of executor.spill_max_bytes ({limit}) are in use; \
         the query may pass when fewer run"
    )]
    SpillLimit {
        /// What was to be spilled, in bytes.
        bytes: u64,
        /// What is on disk, in bytes.
        used: u64,
        /// What may be, in bytes.
        limit: u64,
    },
    /// The spill file can't be written or read.
    #[error("cannot {what} the spill file {}: {source}", path.display())]
    SpillFile {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The spill file is not as it was written.
    #[error(
        "the spill file {} is damaged: {reason}; the query can't go on, and the disk below \
         executor.spill_dir should be looked at",
        path.display()
    )]
    SpillDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        reason: String,
    },
}

impl MemoryError {
    /// What the caller may do.
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Retry => Recovery::Retry,
            Self::Split(_)
            | Self::PoolExhausted { .. }
            | Self::Upstream(UpstreamError::OutOfMemory { .. }) => Recovery::Split,
            Self::Upstream(UpstreamError::Failed { sticky: true, .. })
            | Self::Copy { sticky: true, .. } => Recovery::Restart,
            _ => Recovery::Fail,
        }
    }
}

/// Why memory can't be had, and who has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was asked for, in bytes.
    pub bytes: u64,
    /// Which memory.
    pub kind: Kind,
    /// What is in use, in bytes.
    pub used: u64,
    /// What may be, in bytes.
    pub limit: u64,
    /// Why it can't be had.
    pub cause: Cause,
    /// Who holds it, the largest first.
    pub holders: Vec<Holder>,
}

/// Why memory can't be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It is more than there is, if all of it were free.
    MoreThanThereIs,
    /// It is more than one attachment may hold.
    MoreThanTheQuota,
    /// Nobody who holds memory can go on before others give some back.
    AllWait,
    /// It was not given back in time.
    TimedOut(Duration),
    /// A test wants it so.
    Injected,
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, kind, used, limit, cause, holders } = self;
        write!(f, "{bytes} bytes of {kind} memory can't be had: ")?;
        match cause {
            Cause::MoreThanThereIs => write!(f, "there are {limit} in all")?,
            Cause::MoreThanTheQuota => {
                write!(f, "an attachment may hold {limit} (gpu.memory.attachment_quota)")?;
            }
            Cause::AllWait => write!(
                f,
                "{used} of {limit} are in use, and all who hold them wait for memory themselves"
            )?,
            Cause::TimedOut(waited) => write!(
                f,
                "{used} of {limit} are in use, and were not given back in {} s \
                 (gpu.memory.wait_timeout)",
                waited.as_secs_f64()
            )?,
            Cause::Injected => write!(f, "a test refuses it")?,
        }
        if !holders.is_empty() {
            write!(f, "; held by {}", list(holders))?;
        }
        Ok(())
    }
}

/// The first of them, with the number of the others.
fn list(all: &[impl fmt::Display]) -> String {
    const SHOWN: usize = 5;
    let mut shown: Vec<_> = all.iter().take(SHOWN).map(ToString::to_string).collect();
    if all.len() > SHOWN {
        shown.push(format!("{} more", all.len() - SHOWN));
    }
    shown.join(", ")
}

fn others(holders: &[Process]) -> String {
    if holders.is_empty() {
        return "end what else uses the GPU, or adjust these settings".into();
    }
    format!("the rest is held by {}: end some of that, or adjust these settings", list(holders))
}
