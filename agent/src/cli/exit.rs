//! The exit codes.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | failed |
//! | 2 | wrong usage |
//! | 3 | agent not reachable |
//! | 4 | not allowed |
//! | 5 | not found |
//! | 6 | refused by the state of things |
//! | 126 | `creel run`: the program can't be run |
//! | 127 | `creel run`: there is no such program |
//! | 130 | interrupted |

use std::io::ErrorKind;
use std::process::ExitCode;

use creel_yarn::error::Kind;

use crate::error::Error;

/// The exit code of a command that ended so.
pub fn code(result: Result<(), Error>) -> ExitCode {
    ExitCode::from(result.map_or_else(|error| number(&error), |()| 0))
}

fn number(error: &Error) -> u8 {
    match error {
        Error::Output(source) if source.kind() == ErrorKind::BrokenPipe => 0,
        Error::Usage(_) | Error::NoRunDir | Error::SocketPath { .. } => 2,
        Error::Unreachable { .. } => 3,
        Error::NotAllowed(_) => 4,
        Error::NotFound(_) => 5,
        Error::Refused(_) | Error::Busy(_) => 6,
        // As shells have it (POSIX, "Exit Status for Commands").
        Error::Program { source, .. } if source.kind() == ErrorKind::NotFound => 127,
        Error::Program { .. } => 126,
        Error::Yarn(error) => match error.kind() {
            Kind::Usage => 2,
            Kind::NotAllowed => 4,
            Kind::NotFound => 5,
            Kind::Refused => 6,
            Kind::Failed => 1,
        },
        Error::Interrupted => 130,
        _ => 1,
    }
}

/// Whether there is nothing to say: the reader of our output has enough, or the user stopped us.
pub fn is_quiet(error: &Error) -> bool {
    match error {
        Error::Output(source) => source.kind() == ErrorKind::BrokenPipe,
        Error::Interrupted => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_end_has_its_code() {
        let unreachable = Error::Unreachable { socket: "/s".into(), reason: "x".into() };
        let program = |kind: ErrorKind| Error::Program { program: "p".into(), source: kind.into() };
        for (error, expected) in [
            (program(ErrorKind::NotFound), 127),
            (program(ErrorKind::PermissionDenied), 126),
            (Error::Failed("x".into()), 1),
            (Error::Output(ErrorKind::StorageFull.into()), 1),
            (Error::Usage("x".into()), 2),
            (Error::NoRunDir, 2),
            (unreachable, 3),
            (Error::NotAllowed("x".into()), 4),
            (Error::NotFound("x".into()), 5),
            (Error::Refused("x".into()), 6),
            (Error::Busy("x".into()), 6),
            (Error::Interrupted, 130),
            (Error::Output(ErrorKind::BrokenPipe.into()), 0),
        ] {
            assert_eq!(number(&error), expected, "{error}");
        }
    }

    #[test]
    fn only_a_reader_that_left_and_ctrl_c_go_unsaid() {
        assert!(is_quiet(&Error::Interrupted));
        assert!(is_quiet(&Error::Output(ErrorKind::BrokenPipe.into())));
        assert!(!is_quiet(&Error::Output(ErrorKind::StorageFull.into())));
        assert!(!is_quiet(&Error::Failed("x".into())));
    }
}
