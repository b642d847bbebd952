//! One look at the GPUs, by a child process with a deadline.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use creel_discovery::Inventory;
use rustix::process::Pid;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;
use tracing::debug;

use crate::error::Error;

/// With more processes that hang in the kernel, where SIGKILL doesn't reach them, none is started
/// any more.
const MAX_HANGING: usize = 2;
/// The child keeps its deadline itself; this much later it is given up.
const GRACE: Duration = Duration::from_secs(1);
/// What killed processes may take to end before they are taken to hang.
const KILLED: Duration = Duration::from_millis(200);
/// More than this no inventory has.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;

/// Starts children, one after another, and keeps count of those that hang.
#[derive(Debug)]
pub(super) struct Discovery {
    program: PathBuf,
    /// Groups of processes: the child has a child of its own, which is the one that may hang.
    hanging: Vec<Pid>,
}

impl Discovery {
    /// By that program.
    pub(super) fn new(program: PathBuf) -> Self {
        Self { program, hanging: Vec::new() }
    }

    /// Looks once. The error is the driver's own words, or says that it hangs.
    pub(super) async fn look(&mut self, deadline: Duration) -> Result<Inventory, Error> {
        self.hanging.retain(|group| exists(*group));
        if self.hanging.len() >= MAX_HANGING {
            return Err(Error::Refused(format!(
                "{} earlier looks hang in the driver and can't be killed: see dmesg for NVRM and \
                 Xid; the node needs a restart",
                self.hanging.len()
            )));
        }
        let mut child = command(&self.program)
            .args(["--format", "json", "--deadline"])
            .arg(format!("{}ms", deadline.as_millis()))
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| cannot_start(&self.program, &error))?;
        let group = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let looked = match timeout(deadline + GRACE, output(&mut child)).await {
            Ok(Ok((status, stdout, stderr))) => understand(status, &stdout, &stderr),
            Ok(Err(error)) => Err(Error::Failed(format!("creel-discovery: {error}"))),
            Err(_) => Err(Error::Failed(format!(
                "creel-discovery did not answer within {deadline:?} (discovery.deadline)"
            ))),
        };
        if looked.is_err() {
            let _ = child.start_kill();
            if let Some(group) = group
                && !ended(group).await
            {
                self.hanging.push(group);
            }
        }
        looked
    }
}

/// `creel-discovery`, without arguments yet.
pub(super) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
    command
}

pub(super) fn cannot_start(program: &Path, error: &io::Error) -> Error {
    Error::Failed(format!("cannot start {}: {error}", program.display()))
}

fn exists(group: Pid) -> bool {
    rustix::process::test_kill_process_group(group).is_ok()
}

async fn ended(group: Pid) -> bool {
    let gone = async {
        while exists(group) {
            tokio::time::sleep(KILLED / 10).await;
        }
    };
    timeout(KILLED, gone).await.is_ok()
}

async fn output(child: &mut Child) -> io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    tokio::try_join!(child.wait(), read(stdout), read(stderr))
}

async fn read(from: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

fn understand(status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> Result<Inventory, Error> {
    let said = String::from_utf8_lossy(stderr);
    let said = said.trim();
    if !status.success() {
        return Err(Error::Failed(if said.is_empty() {
            format!("creel-discovery: {status}")
        } else {
            said.to_owned()
        }));
    }
    if !said.is_empty() {
        debug!("{said}");
    }
    Inventory::from_json(&String::from_utf8_lossy(stdout)).map_err(|error| {
        Error::Failed(format!("creel-discovery and creeld don't belong together: {error}"))
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    use super::*;

    /// A program that stands in for `creel-discovery`.
    pub(in super::super) fn script(dir: &Path, text: &str) -> PathBuf {
        let path = dir.join("discovery");
        // Written by another process: one that is forked meanwhile by another test would hold it
        // open for writing, and then it can't be started.
        let status = std::process::Command::new("sh")
            .args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\"", "sh"])
            .arg(&path)
            .arg(text)
            .status();
        assert!(status.unwrap().success());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    async fn look(text: &str, deadline: Duration) -> Result<Inventory, Error> {
        let dir = tempfile::tempdir().unwrap();
        Discovery::new(script(dir.path(), text)).look(deadline).await
    }

    const LONG: Duration = Duration::from_mins(1);

    #[tokio::test]
    async fn an_answer_is_understood() {
        let empty = r#"echo '{"schema":1,"driver":null,"gpus":[]}'; echo no driver >&2"#;
        assert_eq!(look(empty, LONG).await.unwrap(), Inventory::empty());
    }

    #[tokio::test]
    async fn an_error_is_the_drivers_own() {
        let error = look("echo Driver/library version mismatch >&2; exit 1", LONG).await;
        assert_eq!(error.unwrap_err().to_string(), "Driver/library version mismatch");
        let error = look("kill -9 $$", LONG).await.unwrap_err().to_string();
        assert!(error.contains("signal: 9"), "{error}");
        let error = look("echo '{\"schema\":99}'", LONG).await.unwrap_err().to_string();
        assert!(error.contains("99"), "{error}");
        let gone =
            Discovery::new("/no/such/program".into()).look(LONG).await.unwrap_err().to_string();
        assert!(gone.contains("/no/such/program"), "{gone}");
    }

    #[tokio::test]
    async fn looks_that_hang_are_few() {
        let dir = tempfile::tempdir().unwrap();
        // Two processes that outlive the child, as ones in the kernel outlive SIGKILL.
        let hang = "sleep 600 >/dev/null 2>&1 & exec sleep 600";
        let mut discovery = Discovery::new(script(dir.path(), hang));
        let started = Instant::now();
        for _ in 0..MAX_HANGING {
            let error = discovery.look(Duration::from_millis(50)).await.unwrap_err().to_string();
            assert!(error.contains("50ms"), "{error}");
        }
        assert_eq!(discovery.hanging.len(), MAX_HANGING);
        let error = discovery.look(LONG).await.unwrap_err().to_string();
        assert!(error.contains("hang in the driver"), "{error}");
        assert!(started.elapsed() < LONG);
        for group in &discovery.hanging {
            let _ = rustix::process::kill_process_group(*group, rustix::process::Signal::KILL);
        }
    }
}
