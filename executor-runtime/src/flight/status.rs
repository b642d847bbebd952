//! Errors as gRPC says them.

use datafusion::error::DataFusionError;
use tonic::{Code, Status};

use crate::engine::statement::is_mistake;
use crate::error::ExecutorError;

/// The longest message of an error. gRPC carries it in headers, percent-encoded (up to three bytes
/// for one), whose size clients limit (8 KiB by default); a message past that would hide the error
/// behind another.
const MAX_MESSAGE_BYTES: usize = 2 << 10;

impl From<ExecutorError> for Status {
    fn from(error: ExecutorError) -> Self {
        Status::new(code(&error), short(error.to_string()))
    }
}

fn code(error: &ExecutorError) -> Code {
    match error {
        ExecutorError::Refused { .. } => Code::PermissionDenied,
        ExecutorError::NotFound(_) => Code::NotFound,
        ExecutorError::Setting(_) | ExecutorError::Invalid(_) => Code::InvalidArgument,
        ExecutorError::Unsupported(_) => Code::Unimplemented,
        ExecutorError::Cancelled(_) => Code::Cancelled,
        ExecutorError::Ending(_) => Code::Unavailable,
        ExecutorError::SpillLimit(_) | ExecutorError::SpillFull(_) => Code::ResourceExhausted,
        ExecutorError::Engine(error) => engine_code(error),
        ExecutorError::Privileges { .. }
        | ExecutorError::Channel(_)
        | ExecutorError::NotStarted
        | ExecutorError::Io { .. }
        | ExecutorError::Broken(_) => Code::Internal,
    }
}

fn engine_code(error: &DataFusionError) -> Code {
    if is_mistake(error) {
        return Code::InvalidArgument;
    }
    match error.find_root() {
        DataFusionError::NotImplemented(_) => Code::Unimplemented,
        DataFusionError::ResourcesExhausted(_) => Code::ResourceExhausted,
        // What a query meets in its data: a division by zero, a damaged file.
        DataFusionError::ArrowError(..)
        | DataFusionError::ParquetError(_)
        | DataFusionError::ObjectStore(_)
        | DataFusionError::Execution(_) => Code::InvalidArgument,
        _ => Code::Internal,
    }
}

/// Cuts a message in its middle, at characters.
fn short(message: String) -> String {
    if message.len() <= MAX_MESSAGE_BYTES {
        return message;
    }
    let half = MAX_MESSAGE_BYTES / 2 - 8;
    let head = &message[..message.floor_char_boundary(half)];
    let tail = &message[message.ceil_char_boundary(message.len() - half)..];
    format!("{head} [...] {tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_and_failures_differ() {
        let status = |error: DataFusionError| Status::from(ExecutorError::from(error)).code();
        assert_eq!(status(DataFusionError::Plan("x".into())), Code::InvalidArgument);
        let wrapped = DataFusionError::Plan("x".into()).context("cannot read");
        assert_eq!(status(wrapped), Code::InvalidArgument);
        assert_eq!(status(DataFusionError::Internal("x".into())), Code::Internal);
        let full = DataFusionError::ResourcesExhausted("x".into());
        assert_eq!(status(full), Code::ResourceExhausted);
    }

    #[test]
    fn a_long_message_keeps_its_ends() {
        let message = format!("begin{}end", "ä".repeat(100_000));
        let short = short(message);
        assert!(short.len() <= MAX_MESSAGE_BYTES);
        assert!(short.starts_with("begin") && short.ends_with("end"));
    }
}
