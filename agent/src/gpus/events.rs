//! Errors that the driver reports as they happen (Xid), by a child process that listens.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::PoisonError;
use std::time::Duration;

use creel_discovery::event::XidEvent;
use creel_discovery::health::{Severity, xid};
use creel_discovery::{Gpu, Inventory};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::time::{Instant, sleep};
use tracing::{debug, error, info, warn};

use super::{Gpus, discovery};
use crate::error::Error;

/// The first wait before the child is started again; it doubles.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait.
const MAX_WAIT: Duration = Duration::from_mins(5);
/// A line is no longer.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// Errors that make GPUs unfit for use, by GPU. They stay while the agent runs: a GPU can be
/// reset only when nothing uses it, the agent's own child included.
#[derive(Debug, Default)]
pub(super) struct Faults {
    by_gpu: BTreeMap<String, Vec<String>>,
}

impl Faults {
    /// Takes note of an event, if it makes its GPU unfit, and logs it.
    fn note(&mut self, event: &XidEvent) {
        let gpu = event.uuid.as_ref().or(event.pci_bus_id.as_ref());
        let name = gpu.map_or("a GPU that the driver doesn't name", String::as_str);
        let (severity, reason) = match event.xid {
            Some(number) => {
                let meaning = xid(number);
                (meaning.severity, format!("Xid {number}: {}", meaning.meaning))
            }
            None => (Severity::Fatal, "an error (Xid) that the driver doesn't number".to_owned()),
        };
        match severity {
            Severity::Application => info!(gpu = name, "{reason}"),
            Severity::Contained => warn!(gpu = name, "{reason}; reset it when it is idle"),
            Severity::Fatal => error!(gpu = name, "{reason}; the GPU is not used any more"),
        }
        if let (Severity::Fatal, Some(gpu)) = (severity, gpu) {
            let reasons = self.by_gpu.entry(gpu.clone()).or_default();
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
    }

    /// Why that GPU is unfit.
    pub(super) fn of(&self, gpu: &Gpu) -> impl Iterator<Item = &String> {
        let names = [&gpu.uuid, &gpu.pci_bus_id];
        names.into_iter().flatten().filter_map(|name| self.by_gpu.get(name)).flatten()
    }
}

/// Why listening ended.
enum End {
    /// The child has nothing to listen to.
    Nothing,
    /// It failed.
    Failed(Error),
}

/// Listens for ever, while there are GPUs.
pub(super) async fn listen(gpus: Gpus) {
    let mut seen = gpus.shared.seen.subscribe();
    let mut wait = FIRST_WAIT;
    // The GPUs that have nothing to say.
    let mut silent = Vec::new();
    loop {
        let names = |inventory: &Inventory| -> Vec<_> {
            inventory.gpus.iter().map(|gpu| gpu.uuid.clone()).collect()
        };
        let listening = seen
            .wait_for(|seen| {
                let inventory = seen.as_ref().and_then(|seen| seen.inventory.as_ref());
                inventory.is_some_and(|inventory| names(inventory) != silent)
            })
            .await
            .map(|seen| {
                let inventory = seen.as_ref().and_then(|seen| seen.inventory.as_ref());
                inventory.map_or_else(Vec::new, |inventory| names(inventory))
            });
        let Ok(listening) = listening else { return };

        let started = Instant::now();
        match listen_once(&gpus).await {
            End::Nothing => silent = listening,
            End::Failed(error) => {
                if started.elapsed() > MAX_WAIT {
                    wait = FIRST_WAIT;
                }
                warn!("nobody listens for errors of the GPUs: {error}; again in {wait:?}");
                sleep(wait).await;
                wait = (wait * 2).min(MAX_WAIT);
            }
        }
    }
}

async fn listen_once(gpus: &Gpus) -> End {
    match run(&gpus.shared.program, |event| {
        gpus.shared.faults.lock().unwrap_or_else(PoisonError::into_inner).note(event);
    })
    .await
    {
        Ok(end) => end,
        Err(error) => End::Failed(error),
    }
}

async fn run(program: &Path, mut note: impl FnMut(&XidEvent)) -> Result<End, Error> {
    let failed = |error: io::Error| Error::Failed(format!("creel-discovery --watch: {error}"));
    // The child ends when its standard input does: with this process, however that ends.
    let mut child = discovery::command(program)
        .arg("--watch")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| discovery::cannot_start(program, &error))?;
    let _stdin = child.stdin.take();
    let stderr = child.stderr.take();
    let said = tokio::spawn(async move {
        let mut said = String::new();
        if let Some(stderr) = stderr {
            let _ = stderr.take(MAX_LINE_BYTES).read_to_string(&mut said).await;
        }
        said
    });
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        loop {
            let mut line = Vec::new();
            let read = (&mut stdout).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await;
            if read.map_err(failed)? == 0 {
                break;
            }
            match serde_json::from_slice(&line) {
                Ok(event) => note(&event),
                Err(error) => {
                    let reason = format!("creel-discovery said no event: {error}");
                    return Err(Error::Failed(reason));
                }
            }
        }
    }
    let status = child.wait().await.map_err(failed)?;
    let said = said.await.unwrap_or_default();
    let said = said.trim();
    if status.success() {
        debug!("no errors of GPUs to listen for: {said}");
        Ok(End::Nothing)
    } else {
        Err(Error::Failed(format!("creel-discovery --watch ended ({status}): {said}")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::discovery::tests::script;
    use super::*;

    fn event(uuid: Option<&str>, xid: Option<u64>) -> XidEvent {
        XidEvent { uuid: uuid.map(str::to_owned), pci_bus_id: None, xid, time: 0 }
    }

    #[test]
    fn an_error_of_the_gpu_counts_once_and_one_of_a_program_does_not() {
        let gpu = Gpu { uuid: Some("GPU-1".to_owned()), ..Gpu::default() };
        let mut faults = Faults::default();
        faults.note(&event(Some("GPU-1"), Some(31)));
        faults.note(&event(Some("GPU-2"), Some(79)));
        faults.note(&event(None, Some(79)));
        assert_eq!(faults.of(&gpu).count(), 0);
        faults.note(&event(Some("GPU-1"), Some(79)));
        faults.note(&event(Some("GPU-1"), Some(79)));
        let reasons: Vec<_> = faults.of(&gpu).collect();
        assert_eq!(reasons, ["Xid 79: the GPU has fallen off the bus"]);
    }

    #[tokio::test]
    async fn events_are_read_and_the_end_is_understood() {
        let dir = tempfile::tempdir().unwrap();
        let mut events = Vec::new();
        let line = serde_json::to_string(&event(Some("GPU-1"), Some(79))).unwrap();
        let program =
            script(dir.path(), &format!("echo '{line}'; echo '{line}'; echo gone >&2; exit 1"));
        let end = run(&program, |event| events.push(event.clone())).await;
        assert!(matches!(end, Err(error) if error.to_string().ends_with("gone")));
        assert_eq!(events.len(), 2);
        let program = script(dir.path(), "echo 'no driver' >&2");
        let end = run(&program, |_| panic!("no event")).await;
        assert!(matches!(end, Ok(End::Nothing)));
        let program = script(dir.path(), "echo hello");
        assert!(run(&program, |_| panic!("no event")).await.is_err());
    }
}
