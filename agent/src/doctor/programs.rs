//! Whether the agent's helper programs are there.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Finding, Node};

const CHECK: &str = "programs";

pub(super) fn check(node: &Node) -> Vec<Finding> {
    let programs = [
        (&node.executor, "creel-executor", "CREEL_EXECUTOR", "no SQL can be run"),
        (&node.discovery, "creel-discovery", "CREEL_DISCOVERY", "no GPU can be found"),
    ];
    programs
        .into_iter()
        .map(|(path, name, variable, loss)| {
            if is_program(path) {
                return Finding::ok(CHECK, format!("{name} is {}", path.display()));
            }
            Finding::error(
                CHECK,
                format!("there is no {}: {loss}", path.display()),
                format!(
                    "install it beside creel or in /usr/libexec/creel, or set {variable} to its path"
                ),
            )
        })
        .collect()
}

/// Whether there is something to execute: at the path, or, for a bare name, anywhere on `PATH`.
fn is_program(path: &Path) -> bool {
    let executable = |path: &Path| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if path.components().count() > 1 {
        return executable(path);
    }
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&on_path).any(|directory| executable(&directory.join(path)))
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::{node, write};
    use super::*;

    #[test]
    fn a_program_that_is_missing_or_not_executable_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let node = node(directory.path());
        write(directory.path(), "creel-executor", "");
        let findings = check(&node);
        assert!(findings.iter().all(|finding| finding.state == State::Error), "{findings:?}");
        std::fs::set_permissions(&node.executor, PermissionsExt::from_mode(0o755)).unwrap();
        let findings = check(&node);
        assert_eq!(findings[0].state, State::Ok);
        assert_eq!(findings[1].state, State::Error);
        assert!(findings[1].remedy.as_ref().unwrap().contains("CREEL_DISCOVERY"));
    }

    #[test]
    fn a_bare_name_is_looked_for_on_the_path() {
        assert!(is_program(Path::new("sh")));
        assert!(!is_program(Path::new("no-such-program-of-creel")));
    }
}
