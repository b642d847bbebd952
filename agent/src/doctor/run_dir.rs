//! Whether the run directory is there, and whose it is.

use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::{Finding, Node};

const CHECK: &str = "run directory";

/// Write permission of group and others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

pub(super) fn check(node: &Node) -> Vec<Finding> {
    let run_dir = match &node.run_dir {
        Ok(run_dir) => run_dir,
        Err(error) => {
            return vec![Finding::error(
                CHECK,
                error.to_string(),
                "name a run directory with a shorter path",
            )];
        }
    };
    let path = run_dir.path().display();
    let directory = match run_dir.path().metadata() {
        Ok(directory) => directory,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return vec![Finding::warning(
                CHECK,
                format!("there is no {path}: no agent has run here"),
                "start the agent (systemctl start creeld), or name its directory with --run-dir",
            )];
        }
        Err(error) => {
            return vec![Finding::error(
                CHECK,
                format!("{path} can't be looked at: {error}"),
                "let every user enter it and the directories above it (chmod a+x)",
            )];
        }
    };
    if !directory.is_dir() {
        return vec![Finding::error(
            CHECK,
            format!("{path} is not a directory"),
            "remove it, and start the agent again",
        )];
    }
    let mut findings = Vec::new();
    let mode = directory.permissions().mode();
    if ![0, node.uid].contains(&directory.uid()) {
        findings.push(Finding::warning(
            CHECK,
            format!(
                "{path} belongs to user {}, who can put sockets of his own there",
                directory.uid()
            ),
            "use the agent of root, or an agent of your own",
        ));
    }
    if mode & WRITABLE_BY_OTHERS != 0 && mode & STICKY == 0 {
        findings.push(Finding::error(
            CHECK,
            format!("{path} has mode {:04o}: others can put sockets of their own in place of the agent's", mode & 0o7777),
            format!("chmod go-w {path}"),
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, format!("{path}, mode {:04o}", mode & 0o7777)));
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::State;
    use super::super::tests::{node, write};
    use super::*;
    use crate::run_dir::RunDir;

    #[test]
    fn no_directory_is_a_warning_and_a_file_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let node = node(directory.path());
        assert_eq!(check(&node)[0].state, State::Warning);
        write(directory.path(), "run", "");
        assert_eq!(check(&node)[0].state, State::Error);
    }

    #[test]
    fn a_directory_that_others_write_to_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let node = node(directory.path());
        let path = directory.path().join("run");
        fs::create_dir(&path).unwrap();
        for (mode, state) in [(0o755, State::Ok), (0o777, State::Error), (0o1777, State::Ok)] {
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let findings = check(&node);
            assert_eq!(findings[0].state, state, "{findings:?}");
        }
    }

    #[test]
    fn a_directory_of_another_user_is_a_warning() {
        let directory = tempfile::tempdir().unwrap();
        let mut node = node(directory.path());
        node.uid = 4711;
        let path = directory.path().join("run");
        fs::create_dir(&path).unwrap();
        let expected = if path.metadata().unwrap().uid() == 0 { State::Ok } else { State::Warning };
        assert_eq!(check(&node)[0].state, expected);
    }

    #[test]
    fn a_path_that_is_too_long_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let mut node = node(directory.path());
        node.run_dir = RunDir::resolve(Some(directory.path().join("x".repeat(100))));
        assert_eq!(check(&node)[0].state, State::Error);
    }
}
