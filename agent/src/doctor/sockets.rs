//! Whether the agent's sockets are there and answer.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::{Finding, Node};
use crate::api;
use crate::client::Client;
use crate::error::Error;

const CHECK: &str = "sockets";

/// What was found, and who answers.
#[derive(Debug)]
pub(super) struct Sockets {
    /// The process of the agent that answers.
    pub(super) agent: Option<u32>,
    pub(super) findings: Vec<Finding>,
}

impl From<Finding> for Sockets {
    fn from(finding: Finding) -> Self {
        Self { agent: None, findings: vec![finding] }
    }
}

/// Asks on the control socket. The data socket is only looked at: a connection would start an
/// executor.
pub(super) async fn check(node: &Node) -> Sockets {
    let Ok(run_dir) = &node.run_dir else {
        let what = "there is no run directory to look in";
        return Finding::warning(CHECK, what, "see above").into();
    };
    let socket = run_dir.agent_socket();
    if let Some(finding) = is_socket(&socket) {
        return finding.into();
    }
    let path = socket.display();
    let client = Client::new(run_dir);
    let version = match tokio::time::timeout(node.patience, client.get("/v1/version")).await {
        Ok(answer) => answer.and_then(|answer| answer.parse::<api::Version>()),
        Err(_) => {
            return Finding::error(
                CHECK,
                format!(
                    "the agent took a connection on {path}, and did not answer within {:?}",
                    node.patience
                ),
                "look at its log (journalctl -u creeld), and restart it (systemctl restart creeld)",
            )
            .into();
        }
    };
    match version {
        Ok(version) => {
            let answers = Finding::ok(
                CHECK,
                format!("the agent answers on {path}, version {}", version.version),
            );
            let data = run_dir.data_socket();
            let data = is_socket(&data)
                .unwrap_or_else(|| Finding::ok(CHECK, format!("{} is there", data.display())));
            Sockets { agent: process(node, &client).await, findings: vec![answers, data] }
        }
        Err(error @ Error::Unreachable { .. }) => Finding::error(
            CHECK,
            format!("{path} is left over from an agent that is gone: {error}"),
            "start the agent (systemctl start creeld): it replaces it",
        )
        .into(),
        Err(error @ Error::NotAllowed(_)) => Finding::error(
            CHECK,
            error.to_string(),
            "let users enter the run directory (chmod 755) and open its sockets (chmod 666), as \
             the agent makes them when it starts",
        )
        .into(),
        Err(error) => Finding::error(
            CHECK,
            format!("{path} does not speak as an agent: {error}"),
            "look at who listens there (ss -xlp), or install creel and creeld of one version",
        )
        .into(),
    }
}

/// The agent's process, by its own word.
async fn process(node: &Node, client: &Client) -> Option<u32> {
    let answer = tokio::time::timeout(node.patience, client.get("/v1/status")).await.ok()?.ok()?;
    Some(answer.parse::<api::Status>().ok()?.agent.pid)
}

/// What is wrong with a path that is to be a socket.
fn is_socket(path: &Path) -> Option<Finding> {
    match path.symlink_metadata() {
        Ok(file) if file.file_type().is_socket() => None,
        Ok(_) => Some(Finding::error(
            CHECK,
            format!("{} is not a socket", path.display()),
            "remove it, and start the agent again",
        )),
        Err(error) => Some(Finding::warning(
            CHECK,
            format!("there is no {}: {error}", path.display()),
            "start the agent (systemctl start creeld), or name its directory with --run-dir",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::State;
    use super::super::tests::{node, write};
    use super::*;

    #[tokio::test]
    async fn no_socket_and_no_run_directory_are_warnings() {
        let directory = tempfile::tempdir().unwrap();
        let mut node = node(directory.path());
        assert_eq!(check(&node).await.findings[0].state, State::Warning);
        node.run_dir = Err(Error::NoRunDir);
        assert_eq!(check(&node).await.findings[0].state, State::Warning);
    }

    #[tokio::test]
    async fn a_file_and_a_stale_socket_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let node = node(directory.path());
        write(directory.path(), "run/agent.sock", "");
        let findings = check(&node).await.findings;
        assert!(findings[0].what.contains("is not a socket"), "{findings:?}");
        let socket = directory.path().join("run/agent.sock");
        std::fs::remove_file(&socket).unwrap();
        drop(UnixListener::bind(&socket).unwrap());
        let findings = check(&node).await.findings;
        assert_eq!(findings[0].state, State::Error);
        assert!(findings[0].what.contains("left over"), "{findings:?}");
    }

    #[tokio::test]
    async fn an_agent_that_does_not_answer_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let mut node = node(directory.path());
        std::fs::create_dir(directory.path().join("run")).unwrap();
        let _listener = UnixListener::bind(directory.path().join("run/agent.sock")).unwrap();
        node.patience = Duration::from_millis(50);
        let findings = check(&node).await.findings;
        assert!(findings[0].what.contains("did not answer"), "{findings:?}");
    }

    #[tokio::test]
    async fn an_agent_that_answers_is_well() {
        let directory = tempfile::tempdir().unwrap();
        let node = node(directory.path());
        std::fs::create_dir(directory.path().join("run")).unwrap();
        let listener =
            tokio::net::UnixListener::bind(directory.path().join("run/agent.sock")).unwrap();
        let _data = UnixListener::bind(directory.path().join("run/creel.sock")).unwrap();
        let answer = tokio::spawn(async move {
            let version = r#"{"schema":1,"version":"7"}"#;
            let status = r#"{"schema":1,"agent":{"version":"7","pid":42,"uptime_s":1,"ready":true,
                "gpu_error":null},"gpus":0,"executors":0,"attachments":0,"leases":0,"queries":0}"#;
            for body in [version, status, "hello"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            }
        });
        let Sockets { agent, findings } = check(&node).await;
        assert_eq!(agent, Some(42));
        assert_eq!(findings.len(), 2);
        assert!(findings.iter().all(|finding| finding.state == State::Ok), "{findings:?}");
        let findings = check(&node).await.findings;
        assert!(findings[0].what.contains("does not speak as an agent"), "{findings:?}");
        answer.await.unwrap();
    }
}
