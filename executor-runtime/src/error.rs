//! What can go wrong in an executor.

use std::io;
use std::path::PathBuf;

use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::human_readable_size;

/// The result of what an executor does.
pub type Result<T, E = ExecutorError> = std::result::Result<T, E>;

/// What can go wrong in an executor.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The executor can't become the user that it is to serve.
    #[error("cannot become user {uid}: {source}; an agent without root serves its own user alone")]
    Privileges {
        /// The user.
        uid: u32,
        /// What the kernel says.
        source: io::Error,
    },
    /// The agent is not there, or not of this version.
    #[error(transparent)]
    Channel(#[from] creel_wire::ChannelError),
    /// The agent said something else than expected.
    #[error("the agent did not say how to start; creel-executor is started by creeld, not by hand")]
    NotStarted,
    /// A setting that the agent sent, or that a client set, is wrong.
    #[error("{0}")]
    Setting(String),
    /// Threads, sockets or files that the executor needs can't be had.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        source: io::Error,
    },
    /// A statement that no client may run.
    #[error("{statement} is refused: {reason}")]
    Refused {
        /// The kind of statement, in SQL words.
        statement: String,
        /// Why, and what to do instead.
        reason: String,
    },
    /// There is nothing by that name.
    #[error("{0}")]
    NotFound(String),
    /// What the client sent makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// This executor doesn't do that.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// Somebody ended the query.
    #[error("the query was cancelled: {0}")]
    Cancelled(String),
    /// The executor ends.
    #[error("the executor ends: {0}")]
    Ending(String),
    /// The queries would spill more than they may.
    #[error(
        "the query needs to spill, and executor.spill_max_bytes ({}) is used up; it may pass when \
         fewer queries run, or with more executor.memory",
        human_readable_size(usize::try_from(*.0).unwrap_or(usize::MAX))
    )]
    SpillLimit(u64),
    /// The disk is full.
    #[error("the query needs to spill, and the disk of executor.spill_dir ({}) is full", .0.display())]
    SpillFull(PathBuf),
    /// The query panicked.
    #[error("the query broke off, which is a bug: {0}")]
    Broken(String),
    /// The engine failed.
    #[error("{}", message_of(.0))]
    Engine(#[from] DataFusionError),
}

/// The engine's error in one paragraph, without the frames of a stack.
fn message_of(error: &DataFusionError) -> String {
    match error {
        DataFusionError::Context(context, source) => format!("{context}: {}", message_of(source)),
        DataFusionError::Diagnostic(_, source) => message_of(source),
        DataFusionError::Shared(source) => message_of(source),
        other => other.strip_backtrace().trim().to_owned(),
    }
}

impl From<datafusion::arrow::error::ArrowError> for ExecutorError {
    fn from(error: datafusion::arrow::error::ArrowError) -> Self {
        Self::Engine(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_read_from_the_outside_in() {
        let error = DataFusionError::Plan("no such thing".into()).context("cannot read 'x'");
        let error = ExecutorError::from(error);
        assert_eq!(error.to_string(), "cannot read 'x': Error during planning: no such thing");
    }
}
