//! The executor's process: its start, its talk with the agent, its end.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use creel_wire::{AttachmentReport, FromExecutor, Receiver, Sender, Start, ToExecutor};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::{self, AbortHandle, JoinError, JoinSet};
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

use crate::engine::Engine;
use crate::error::{ExecutorError, Result};
use crate::flight;
use crate::privileges::Identity;

/// Stack of the threads that hold plans. Long statements make deep trees, and what walks or
/// drops them recurses. Only what is touched takes memory.
pub(crate) const STACK_BYTES: usize = 512 << 20;

/// How long clients have to read why their queries ended, when the executor ends.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs the executor as that user until the agent goes or says to end.
pub fn run(identity: Option<Identity>) -> Result<()> {
    if let Some(identity) = identity {
        identity.assume()?;
    }
    let control = runtime(Builder::new_current_thread())?;
    let outcome = control.block_on(serve());
    // A query thread may be deep in a computation; nothing is worth waiting for.
    control.shutdown_background();
    outcome
}

fn runtime(mut builder: Builder) -> Result<Runtime> {
    builder.enable_all().build().map_err(|source| io_error("start threads", source))
}

fn io_error(what: &str, source: io::Error) -> ExecutorError {
    ExecutorError::Io { what: what.to_owned(), source }
}

/// The threads of an executor: see the crate's picture.
struct Threads {
    network: Runtime,
    queries: Runtime,
}

impl Threads {
    fn start(queries: usize) -> Result<Self> {
        let mut network = Builder::new_multi_thread();
        network
            .worker_threads(2.min(queries))
            .thread_name("network")
            .thread_stack_size(STACK_BYTES);
        let mut workers = Builder::new_multi_thread();
        workers.worker_threads(queries).thread_name("query").thread_stack_size(STACK_BYTES);
        Ok(Self { network: runtime(network)?, queries: runtime(workers)? })
    }
}

async fn serve() -> Result<()> {
    let end = io::stdin().as_fd().try_clone_to_owned();
    let end = end.map_err(|source| io_error("open standard input", source))?;
    let (agent, mut from_agent) = creel_wire::channel::open(end)
        .map_err(|source| io_error("talk over standard input", source))?;
    let Some(ToExecutor::Start(start)) = from_agent.receive().await? else {
        return Err(ExecutorError::NotStarted);
    };
    let (engine, threads) = match prepare(&start) {
        Ok(ready) => ready,
        Err(error) => {
            agent.send(&FromExecutor::Failed { reason: error.to_string() }, None).await?;
            return Err(error);
        }
    };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    agent.send(&FromExecutor::Ready { version }, None).await?;
    info!(id = start.id, memory = engine.memory_limit(), "ready");

    let control = Control {
        engine,
        agent,
        connections: JoinSet::new(),
        attachments: HashMap::new(),
        draining: false,
    };
    let outcome = control.follow(&mut from_agent, &threads).await;
    threads.network.shutdown_background();
    threads.queries.shutdown_background();
    outcome
}

fn prepare(start: &Start) -> Result<(Arc<Engine>, Threads)> {
    let settings = creel_settings::Settings::from_map(&start.settings)
        .map_err(|error| ExecutorError::Setting(error.to_string()))?;
    // The agent adds time and executor to each line.
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .without_time()
        .with_env_filter(EnvFilter::new(&settings.agent_log_level))
        .init();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let count = match settings.executor_threads {
        0 => cores,
        threads => threads,
    };
    let threads = Threads::start(count)?;
    let engine = Engine::new(start, settings, count, threads.queries.handle().clone())?;
    Ok((Arc::new(engine), threads))
}

/// Waits until the GPU fails for good, if there is one.
async fn gpu_failure(engine: &Engine) -> String {
    match engine.gpu() {
        Ok(gpu) => gpu.failed().await,
        Err(_) => std::future::pending().await,
    }
}

/// The talk with the agent.
struct Control {
    engine: Arc<Engine>,
    agent: Sender,
    connections: JoinSet<AttachmentReport>,
    attachments: HashMap<task::Id, (u64, AbortHandle)>,
    draining: bool,
}

impl Control {
    async fn follow(mut self, from_agent: &mut Receiver, threads: &Threads) -> Result<()> {
        let (overdue, mut late) = mpsc::channel(1);
        let mut gpu_failed = false;
        while !(self.draining && self.connections.is_empty()) {
            tokio::select! {
                message = from_agent.receive() => match message? {
                    // The agent is gone, and everything with it.
                    None => return Ok(()),
                    Some(message) => self.handle(message, from_agent, threads, &overdue).await?,
                },
                Some(ended) = self.connections.join_next_with_id() => self.ended(ended).await?,
                Some(()) = late.recv() => return Ok(()),
                reason = gpu_failure(&self.engine), if !gpu_failed => {
                    gpu_failed = true;
                    self.end_without_gpu(reason, &overdue).await?;
                }
            }
        }
        Ok(())
    }

    /// No call of the driver works any more: the clients are told, and another executor may try.
    async fn end_without_gpu(&mut self, reason: String, overdue: &mpsc::Sender<()>) -> Result<()> {
        self.agent.send(&FromExecutor::GpuFailed { reason: reason.clone() }, None).await?;
        self.drain(format!("its GPU failed: {reason}"), Duration::ZERO, overdue);
        Ok(())
    }

    fn drain(&mut self, reason: String, patience: Duration, overdue: &mpsc::Sender<()>) {
        info!(reason, "draining");
        self.draining = true;
        let (engine, overdue) = (Arc::clone(&self.engine), overdue.clone());
        tokio::spawn(async move {
            engine.queries().drain(&reason, patience).await;
            tokio::time::sleep(LAST_WORDS).await;
            let _ = overdue.send(()).await;
        });
    }

    async fn handle(
        &mut self,
        message: ToExecutor,
        from_agent: &mut Receiver,
        threads: &Threads,
        overdue: &mpsc::Sender<()>,
    ) -> Result<()> {
        match message {
            ToExecutor::Start(_) => warn!("the agent said to start twice"),
            ToExecutor::Attach(attach) => {
                let Some(descriptor) = from_agent.descriptor() else {
                    warn!(attachment = attach.attachment, "an attachment came without connection");
                    return Ok(());
                };
                let attachment = attach.attachment;
                let session = self.engine.open_session(attach);
                let connection = flight::serve(session, descriptor);
                let task = self.connections.spawn_on(connection, threads.network.handle());
                self.attachments.insert(task.id(), (attachment, task));
            }
            ToExecutor::Detach { attachment } => {
                for (_, task) in self.attachments.values().filter(|(id, _)| *id == attachment) {
                    task.abort();
                }
            }
            ToExecutor::Cancel { token, query, reason } => {
                let found = self.engine.queries().cancel(&query, &reason);
                self.agent.send(&FromExecutor::Cancelled { token, found }, None).await?;
            }
            ToExecutor::Report { token } => {
                let report = self.engine.report();
                self.agent.send(&FromExecutor::Report { token, report }, None).await?;
            }
            ToExecutor::Drain { reason, deadline_ms } => {
                self.drain(reason, Duration::from_millis(deadline_ms), overdue);
            }
        }
        Ok(())
    }

    async fn ended(
        &mut self,
        ended: Result<(task::Id, AttachmentReport), JoinError>,
    ) -> Result<()> {
        let (id, report) = match ended {
            Ok((id, report)) => (id, Some(report)),
            Err(error) => (error.id(), None),
        };
        let Some((attachment, _)) = self.attachments.remove(&id) else { return Ok(()) };
        self.engine.close_session(attachment);
        let attachment = report.unwrap_or(AttachmentReport { attachment, ..Default::default() });
        Ok(self.agent.send(&FromExecutor::Closed { attachment }, None).await?)
    }
}
