//! The messages between the agent and an executor.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// From the agent to an executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToExecutor {
    /// The first message: what to be. Answered by [`FromExecutor::Ready`].
    Start(Start),
    /// Serve the connection whose descriptor comes with this message.
    Attach(Attach),
    /// Drop the connection: its peer is gone. Its queries end.
    Detach {
        /// The attachment's number.
        attachment: u64,
    },
    /// End a query. Answered by [`FromExecutor::Cancelled`].
    Cancel {
        /// Comes back in the answer.
        token: u64,
        /// The query's id.
        query: String,
        /// What the query's client is told.
        reason: String,
    },
    /// Say how things stand. Answered by [`FromExecutor::Report`].
    Report {
        /// Comes back in the answer.
        token: u64,
    },
    /// Take no new queries, let running ones end until the deadline, then exit.
    Drain {
        /// What the clients of queries that don't end in time are told.
        reason: String,
        /// How long running queries may take, in milliseconds.
        deadline_ms: u64,
    },
}

/// What an executor is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The executor's id, as `cpu-1000`.
    pub id: String,
    /// The device that it computes on: `cpu`, or the UUID of a GPU or MIG slice.
    pub device: String,
    /// Where it may spill; exists, belongs to the executor's user, and is empty.
    pub spill_dir: PathBuf,
    /// Settings by name, as text in the form that `creel.toml` takes. Those not named have
    /// their default.
    pub settings: BTreeMap<String, String>,
    /// GPUs and MIG slices of the node, which share the host's memory; 0 where they are not known,
    /// and for the CPU.
    #[serde(default)]
    pub gpus: u64,
    /// Processes that held memory of the device when the agent last looked; none for the CPU.
    #[serde(default)]
    pub holders: Vec<GpuHolder>,
}

/// A process that holds memory of a GPU or MIG slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuHolder {
    /// Its id, as the driver numbers it: in the initial PID namespace.
    pub pid: u32,
    /// What it calls itself.
    pub name: String,
    /// What it holds, in bytes; absent where the driver doesn't say.
    pub bytes: Option<u64>,
}

/// A connection that is handed over, and who is at its other end.
///
/// The kernel said all of this (`SO_PEERCRED`, `/proc`), not the peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// The attachment's number, unique in the agent's life.
    pub attachment: u64,
    /// Process of the peer.
    pub pid: i32,
    /// User of the peer.
    pub uid: u32,
    /// Working directory of the peer, for relative paths in SQL; absent where it can't be read.
    pub cwd: Option<PathBuf>,
    /// The YARN container of the peer, if it is in one.
    pub container: Option<String>,
}

/// From an executor to the agent.
#[expect(clippy::large_enum_variant, reason = "a message is read, taken apart and gone")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromExecutor {
    /// Connections may come.
    Ready {
        /// The executor's version.
        version: String,
    },
    /// The executor can't start; it exits after this.
    Failed {
        /// What failed, on what, why, and what to do.
        reason: String,
    },
    /// Its GPU failed for good: no call of the driver works in this process any more. It ends after
    /// its clients were told; another executor may find the GPU well again.
    GpuFailed {
        /// What failed, and why.
        reason: String,
    },
    /// A connection has ended.
    Closed {
        /// What it did in its life.
        attachment: AttachmentReport,
    },
    /// The answer to [`ToExecutor::Report`].
    Report {
        /// Of the question.
        token: u64,
        /// How things stand.
        report: Report,
    },
    /// The answer to [`ToExecutor::Cancel`].
    Cancelled {
        /// Of the question.
        token: u64,
        /// Whether there was such a query.
        found: bool,
    },
}

/// How an executor stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Memory and spill.
    pub memory: MemoryReport,
    /// Open connections.
    pub attachments: Vec<AttachmentReport>,
    /// Queries that are planned or run now.
    pub queries: Vec<QueryReport>,
    /// Its GPU; absent where it computes on the CPU alone.
    #[serde(default)]
    pub gpu: Option<GpuReport>,
    /// Why the GPU that it was to compute on can't be used; its queries run on the CPU.
    #[serde(default)]
    pub gpu_unusable: Option<String>,
}

/// Memory of an executor, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// What queries may reserve together.
    pub limit: u64,
    /// What they have reserved now.
    pub reserved: u64,
    /// What lies on disk now.
    pub spilled: u64,
    /// What may lie on disk.
    pub spill_limit: u64,
}

/// The GPU of an executor: what its queries have of it, and what became of what they asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuReport {
    /// Where device memory comes from.
    pub pool: PoolReport,
    /// Who may have how much.
    pub ledger: LedgerReport,
    /// How many tasks use the GPU.
    pub semaphore: SemaphoreReport,
    /// Batches that were moved out of the way.
    pub spill: SpillReport,
}

/// A pool of device memory, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolReport {
    /// `ARENA`, `DEFAULT`, `ASYNC` or `NONE`.
    pub kind: String,
    /// What it may take; absent where the device alone limits it.
    pub limit: Option<u64>,
    /// What it took of the driver.
    pub taken: u64,
    /// What is in use.
    pub live: u64,
    /// The most that was in use at one time.
    pub peak: u64,
    /// Its largest free piece; 0 where the driver keeps what is free.
    pub largest_free: u64,
    /// Pieces handed out, a number.
    pub allocations: u64,
    /// Requests for which it had no room, a number.
    pub failures: u64,
}

/// What is reserved, and how requests ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerReport {
    /// Device memory.
    pub device: AccountReport,
    /// Page-locked memory of the host.
    pub pinned: AccountReport,
    /// Other memory of the host.
    pub host: AccountReport,
    /// Tasks that wait for memory now.
    pub waiting: u64,
    /// Times that a task had to wait.
    pub waits: u64,
    /// Times that a task was told to take its step again.
    pub retries: u64,
    /// Times that a task was told to take a smaller step.
    pub splits: u64,
    /// Requests that failed.
    pub refusals: u64,
}

/// One kind of memory in the ledger, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountReport {
    /// What there is.
    pub limit: u64,
    /// What is reserved.
    pub used: u64,
    /// The most that was reserved at one time.
    pub peak: u64,
}

/// Tasks and the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SemaphoreReport {
    /// `gpu.concurrent_tasks`; 0 where it follows from what tasks were seen to need.
    pub tasks: u64,
    /// Tasks that use the GPU now.
    pub holding: u64,
    /// Tasks that wait for it.
    pub waiting: u64,
}

/// Batches at rest that were moved, in bytes but for the first and the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpillReport {
    /// Batches at rest, wherever they are.
    pub batches: u64,
    /// On the host now.
    pub host: u64,
    /// On disk now.
    pub disk: u64,
    /// Moved from the device to the host so far.
    pub to_host: u64,
    /// Moved to disk so far.
    pub to_disk: u64,
    /// Batches that could not be moved.
    pub failures: u64,
}

/// What a connection did so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentReport {
    /// The attachment's number.
    pub attachment: u64,
    /// Statements that it ran, those that failed included.
    pub queries: u64,
    /// Bytes of results that it was sent.
    pub bytes_sent: u64,
}

/// A query of an executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryReport {
    /// The query's id, unique on the node.
    pub id: String,
    /// The connection that it came over.
    pub attachment: u64,
    /// The statement, cut to [`QueryReport::SQL_CHARS`] characters.
    pub sql: String,
    /// Milliseconds since the statement came.
    pub elapsed_ms: u64,
    /// Rows that left its scans.
    pub rows_scanned: u64,
    /// Bytes that its scans read.
    pub bytes_scanned: u64,
    /// Rows sent to the client.
    pub rows_sent: u64,
    /// Bytes sent to the client.
    pub bytes_sent: u64,
}

impl QueryReport {
    /// How much of a statement a report carries.
    pub const SQL_CHARS: usize = 1000;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_says_nothing_of_gpus_knows_of_none() {
        let text = r#"{"type":"start","id":"cpu-1","device":"cpu","spill_dir":"/s","settings":{}}"#;
        let ToExecutor::Start(start) = serde_json::from_str(text).unwrap() else {
            panic!("{text}")
        };
        assert_eq!((start.gpus, start.holders), (0, Vec::new()));
    }
}
