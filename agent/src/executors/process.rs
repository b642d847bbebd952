//! The process of an executor: how it starts, and why it ended.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use creel_settings::{PoolDebug, Settings};
use creel_wire::{FromExecutor, Receiver, Start, ToExecutor};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::account::Account;
use super::device::Device;
use super::spill::{self, SpillDir};
use super::stderr::Stderr;
use crate::gpus::Surroundings;
use crate::programs;

/// Variables of the agent's environment that an executor gets too.
const INHERITED: [&str; 7] =
    ["PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "RUST_BACKTRACE", "TMPDIR"];
/// And those that begin like this: the driver's own.
const INHERITED_PREFIXES: [&str; 2] = ["CUDA_", "NVIDIA_"];

/// How long an executor's allocator keeps freed memory before the kernel gets it back. At once
/// would cost 2 % of the time of TPC-H; what a query leaves is to be gone within a second.
const PURGE_DELAY: (&str, &str) = ("MIMALLOC_PURGE_DELAY", "500");

/// How long the messages of an executor that has exited may take to be read.
const LAST_MESSAGES: Duration = Duration::from_millis(200);

/// A message for an executor, and the connection that goes with it.
type Outgoing = (ToExecutor, Option<Arc<OwnedFd>>);

/// A running executor.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    receiver: Receiver,
    outbox: mpsc::UnboundedSender<Outgoing>,
    writing: JoinHandle<()>,
    stderr: Stderr,
    spill: SpillDir,
    failure: Option<String>,
}

impl Process {
    /// Starts the executor of a user on a device; it is not ready yet.
    pub(super) async fn spawn(
        id: &str,
        device: &Device,
        account: Account,
        settings: &Settings,
        surroundings: Surroundings,
    ) -> io::Result<Self> {
        let base = spill::base(settings);
        let (spill, account) = {
            let id = id.to_owned();
            blocking(move || {
                let spill = SpillDir::create(&base, &id, &account).map_err(|error| {
                    let path = base.display();
                    io::Error::new(
                        error.kind(),
                        format!("no spill directory in {path} (executor.spill_dir): {error}"),
                    )
                })?;
                Ok((spill, account))
            })
            .await?
        };

        let program = programs::find("creel-executor", "CREEL_EXECUTOR");
        let (ours, theirs) = creel_wire::pair()?;
        let mut command = Command::new(&program);
        command
            .args(identity(&account))
            .env_clear()
            .envs(environment(account.home, device))
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(stdout(settings))
            .stderr(Stdio::piped())
            // A Ctrl-C at the agent's terminal is the agent's; it lets queries end first.
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {}: {error}", program.display()))
        })?;
        // The command holds the executor's end of the channel.
        drop(command);
        let stderr = child.stderr.take().ok_or_else(|| io::Error::other("no standard error"))?;
        let stderr = Stderr::read(id.to_owned(), stderr);

        let (sender, receiver) = creel_wire::channel::open(ours)?;
        let (outbox, mut outgoing) = mpsc::unbounded_channel::<Outgoing>();
        let writing = tokio::spawn(async move {
            while let Some((message, connection)) = outgoing.recv().await {
                let descriptor = connection.as_ref().map(|connection| connection.as_fd());
                // It fails when the executor is gone, which the receiver notices.
                if sender.send(&message, descriptor).await.is_err() {
                    return;
                }
            }
        });
        let process = Self { child, receiver, outbox, writing, stderr, spill, failure: None };
        process.send(ToExecutor::Start(Start {
            id: id.to_owned(),
            device: device.name().to_owned(),
            spill_dir: process.spill.path().to_owned(),
            settings: settings.to_map(),
            gpus: surroundings.gpus,
            holders: surroundings.holders,
        }));
        Ok(process)
    }

    /// Its process number, while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends a message, in order, without waiting for an executor that doesn't read.
    pub(super) fn send(&self, message: ToExecutor) {
        let _ = self.outbox.send((message, None));
    }

    /// Sends a message with a connection.
    pub(super) fn hand_over(&self, message: ToExecutor, connection: Arc<OwnedFd>) {
        let _ = self.outbox.send((message, Some(connection)));
    }

    /// The next message; `None` when the executor has ended or speaks another language. Safe to
    /// cancel.
    pub(super) async fn receive(&mut self) -> Option<FromExecutor> {
        let received = tokio::select! {
            biased;
            received = self.receiver.receive() => received,
            // What it said last may still be on its way here.
            _ = self.child.wait() => timeout(LAST_MESSAGES, self.receiver.receive())
                .await
                .unwrap_or(Ok(None)),
        };
        match received {
            Ok(Some(FromExecutor::Failed { reason })) => {
                self.failure = Some(reason);
                None
            }
            Ok(message) => message,
            Err(error) => {
                self.failure = Some(error.to_string());
                None
            }
        }
    }

    /// Waits for its end, which [`Process::receive`] announced, and says why it came. An executor
    /// that lingers is killed.
    pub(super) async fn end(mut self, patience: Duration) -> String {
        let status = timeout(patience, self.child.wait()).await.ok().and_then(Result::ok);
        if status.is_none() {
            let _ = self.child.kill().await;
            self.failure.get_or_insert_with(|| {
                "it closed its channel to the agent and did not exit".to_owned()
            });
        }
        self.writing.abort();
        let last_words = self.stderr.last_words().await;
        let spill = self.spill;
        // Large files take a while to go.
        let _ = tokio::task::spawn_blocking(move || drop(spill)).await;
        match (self.failure, status) {
            (Some(failure), _) => failure,
            (None, status) => ended(status, last_words.as_deref()),
        }
    }

    /// Ends it at once.
    pub(super) fn kill(&mut self) {
        let _ = self.child.start_kill();
    }
}

/// Runs what may block, elsewhere.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// The arguments that tell an executor whom to become. Only root can become somebody.
fn identity(account: &Account) -> Vec<String> {
    if !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    let mut arguments = vec![
        "--uid".to_owned(),
        account.uid.to_string(),
        "--gid".to_owned(),
        account.gid.to_string(),
    ];
    if !account.groups.is_empty() {
        let groups: Vec<String> = account.groups.iter().map(u32::to_string).collect();
        arguments.extend(["--groups".to_owned(), groups.join(",")]);
    }
    arguments
}

/// The agent's own standard output where its operator wants to see allocations there. Else none: an
/// executor that hangs in the driver would keep it open for whoever reads to its end.
fn stdout(settings: &Settings) -> Stdio {
    match settings.gpu_memory_debug {
        PoolDebug::Stdout => Stdio::inherit(),
        PoolDebug::Stderr | PoolDebug::None => Stdio::null(),
    }
}

fn environment(home: PathBuf, device: &Device) -> Vec<(OsString, OsString)> {
    let inherited = std::env::vars_os().filter(|(name, _)| {
        name.to_str().is_some_and(|name| {
            INHERITED.contains(&name)
                || INHERITED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        })
    });
    let (purge, delay) = PURGE_DELAY;
    let own = [
        (OsString::from("HOME"), home.into_os_string()),
        (purge.into(), delay.into()),
        // Over what the agent itself was started with.
        ("CUDA_VISIBLE_DEVICES".into(), device.visible().into()),
    ];
    inherited.chain(own).collect()
}

/// Why an executor ended.
fn ended(status: Option<ExitStatus>, last_words: Option<&str>) -> String {
    let how = match status.map(|status| (status.signal(), status.code())) {
        Some((Some(9), _)) => {
            "killed by signal 9 (SIGKILL), perhaps by the kernel's OOM killer or by hand".to_owned()
        }
        Some((Some(signal), _)) => match signal_name(signal) {
            Some(name) => format!("killed by signal {signal} ({name})"),
            None => format!("killed by signal {signal}"),
        },
        Some((None, Some(code))) => format!("exit code {code}"),
        _ => "for an unknown reason".to_owned(),
    };
    match last_words {
        Some(line) => format!("{how}; its last words: {line}"),
        None => how,
    }
}

/// Names of signals that end processes (signal(7), x86 and ARM).
fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons() {
        let status = |raw| Some(ExitStatus::from_raw(raw));
        assert_eq!(
            ended(status(9), Some("querying")),
            "killed by signal 9 (SIGKILL), perhaps by the kernel's OOM killer or by hand; \
             its last words: querying"
        );
        assert_eq!(ended(status(11), None), "killed by signal 11 (SIGSEGV)");
        assert_eq!(ended(status(3 << 8), None), "exit code 3");
        assert_eq!(ended(None, None), "for an unknown reason");
    }

    #[test]
    fn little_of_the_environment_is_passed_on() {
        let gpu = Device::Gpu("GPU-1".to_owned());
        let environment = environment(PathBuf::from("/home/ann"), &gpu);
        assert!(environment.iter().any(|(name, value)| name == "HOME" && value == "/home/ann"));
        assert!(environment.iter().any(|(name, _)| name == "PATH"));
        assert!(!environment.iter().any(|(name, _)| name == "CARGO_MANIFEST_DIR"));
        let visible = environment.iter().rfind(|(name, _)| name == "CUDA_VISIBLE_DEVICES");
        assert_eq!(visible.map(|(_, value)| value), Some(&"GPU-1".into()));
    }
}
