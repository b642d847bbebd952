//! The supervisor of one executor: starts it when a connection comes, hands connections over,
//! notices its end, and ends it when nobody needs it.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use creel_settings::Settings;
use creel_wire::{Attach, FromExecutor, Report, ToExecutor};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tonic::Code;
use tracing::{debug, info, warn};

use super::account::Account;
use super::backoff::Backoff;
use super::device::Device;
use super::goaway;
use super::process::{self, Process};
use super::record::{Attachment, Record};
use crate::api::ExecutorState;
use crate::connections::Place;
use crate::error::Error;
use crate::gpus::{Gpus, Surroundings};
use crate::peer::{Ends, Peer};
use crate::refusal::Refusals;

/// What an idle executor may take to end, and a draining one after its deadline, before it is
/// killed.
const LINGER: Duration = Duration::from_secs(5);
/// What an executor may take to exit after it closed its channel.
const EXIT: Duration = Duration::from_secs(1);

/// A connection that comes this much too early for the next start waits; others are refused.
const HOLD: Duration = Duration::from_secs(1);

/// A client's connection that wants an executor.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    pub(super) peer: Peer,
    pub(super) place: Place,
}

/// What a supervisor is told.
#[derive(Debug)]
pub(super) enum Command {
    /// A client has connected.
    Attach(Connection),
    /// The process of an attachment's peer has ended.
    PeerEnded(u64),
    /// Somebody asks how the executor stands.
    Report(oneshot::Sender<Report>),
    /// Somebody wants a query to end; the answer is whether there is such a query.
    Cancel { query: String, reason: String, found: oneshot::Sender<bool> },
    /// The device is somebody else's from now on: the executor ends, and says why.
    End(String),
}

/// The agent stops.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    pub(super) reason: String,
    pub(super) patience: Duration,
}

/// Why [`Supervisor::serve`] returned.
enum End {
    /// The agent wanted it, for that reason.
    Asked(String),
    /// It lost its GPU, for that reason.
    Lost(String),
    /// It was not to end.
    Unasked,
}

/// The supervisor of one executor, which it outlives.
pub(super) struct Supervisor {
    pub(super) id: String,
    pub(super) device: Device,
    pub(super) uid: u32,
    pub(super) settings: watch::Receiver<Arc<Settings>>,
    pub(super) gpus: Gpus,
    pub(super) refusals: Refusals,
    pub(super) stop: watch::Receiver<Option<Stop>>,
    pub(super) record: Arc<Mutex<Record>>,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    /// Tells it, through `to_self`, of peers that ended.
    pub(super) ends: Ends,
    pub(super) to_self: mpsc::UnboundedSender<Command>,
    pub(super) waiting: VecDeque<Connection>,
    pub(super) backoff: Backoff,
}

impl Supervisor {
    /// Supervises until the agent stops.
    pub(super) async fn run(mut self) {
        while let Some(connection) = self.next_connection().await {
            if let Some(reason) = self.unfit() {
                self.refuse(connection, Code::Unavailable, reason);
                continue;
            }
            let now = Instant::now();
            let until = self.backoff.until(now);
            if let Some(until) = until.filter(|until| *until > now + HOLD) {
                let seconds = (until - now).as_secs() + 1;
                let last = self.record().last_error.clone().unwrap_or_default();
                let reason = format!(
                    "executor {} ended several times in a row: {last}; try again in {seconds} s",
                    self.id
                );
                self.refuse(connection, Code::Unavailable, reason);
                continue;
            }
            tokio::time::sleep_until(until.unwrap_or(now)).await;
            let gid = connection.peer.gid;
            self.waiting.push_front(connection);
            self.live(gid).await;
        }
        let reason = self.stop.borrow().as_ref().map(|stop| stop.reason.clone());
        let reason = reason.unwrap_or_else(|| "the agent stops".to_owned());
        while let Some(connection) = self.waiting.pop_front() {
            self.refuse(connection, Code::Unavailable, reason.clone());
        }
        self.commands.close();
        while let Some(command) = self.commands.recv().await {
            if let Command::Attach(connection) = command {
                self.refuse(connection, Code::Unavailable, reason.clone());
            }
        }
    }

    /// The next connection, while no executor runs; `None` when the agent stops.
    async fn next_connection(&mut self) -> Option<Connection> {
        loop {
            if self.stop.borrow().is_some() {
                return None;
            }
            if let Some(connection) = self.waiting.pop_front() {
                return Some(connection);
            }
            tokio::select! {
                command = self.commands.recv() => match command? {
                    Command::Attach(connection) => return Some(connection),
                    // Without an executor there is nothing to report, cancel, detach or end.
                    Command::Report(_)
                    | Command::Cancel { .. }
                    | Command::PeerEnded(_)
                    | Command::End(_) => {}
                },
                _ = self.stop.changed() => {}
            }
        }
    }

    /// One life of the executor.
    async fn live(&mut self, gid: u32) {
        {
            let mut record = self.record();
            if record.state == Some(ExecutorState::Failed) {
                record.restarts += 1;
            }
            record.enter(ExecutorState::Starting);
        }
        let process = match self.start(gid).await {
            Ok(process) => process,
            Err(error) => return self.died(None, &error.to_string()),
        };
        let ready = Instant::now();
        {
            let mut record = self.record();
            record.pid = process.pid();
            record.enter(ExecutorState::Running);
        }
        info!(executor = self.id, pid = process.pid(), "the executor is ready");

        let (process, end) = self.serve(process).await;
        self.record().pid = None;
        let why = process.end(EXIT).await;
        match end {
            End::Asked(reason) => {
                info!(executor = self.id, "the executor has ended: {reason}");
                self.record().leave();
                self.say_goodbye(&reason);
            }
            End::Lost(reason) => self.lost(&reason),
            End::Unasked => self.died(Some(ready.elapsed()), &why),
        }
    }

    /// Why nobody is to compute on its device now, and what to do.
    fn unfit(&self) -> Option<String> {
        let Device::Gpu(uuid) = &self.device else { return None };
        let reason = self.gpus.losses().unfit(uuid)?;
        Some(format!("{uuid} is unfit for use: {reason}; `creel doctor` says what to do"))
    }

    /// The executor ended because it lost its GPU. Whether the GPU is to be tried again is for
    /// [`Gpus::losses`] to say, so this is no crash to wait after.
    fn lost(&self, why: &str) {
        let why = format!("its GPU failed: {why}");
        warn!(executor = self.id, "the executor has ended: {why}");
        {
            let mut record = self.record();
            record.enter(ExecutorState::Failed);
            record.last_error = Some(why.clone());
        }
        self.say_goodbye(&format!("executor {} has ended: {why}", self.id));
    }

    /// The executor ended unasked, or could not start (it ran not).
    fn died(&mut self, ran: Option<Duration>, why: &str) {
        let what = if ran.is_some() { "ended unasked" } else { "could not start" };
        warn!(executor = self.id, "the executor {what}: {why}");
        let now = Instant::now();
        self.backoff.ended(ran, now);
        let until = self.backoff.until(now);
        {
            let mut record = self.record();
            record.pid = None;
            record.enter(ExecutorState::Failed);
            record.held_until = until;
            record.last_error = Some(why.to_owned());
        }
        let reason = format!("executor {} {what}: {why}", self.id);
        self.say_goodbye(&reason);
        if ran.is_none() {
            while let Some(connection) = self.waiting.pop_front() {
                self.refuse(connection, Code::Unavailable, reason.clone());
            }
        }
    }

    /// Ends what attachments there still are.
    fn say_goodbye(&self, reason: &str) {
        let attachments = std::mem::take(&mut self.record().attachments);
        for attachment in attachments.values() {
            goaway::say(attachment.socket.as_fd(), reason);
        }
    }

    /// Starts the executor and waits until it is ready.
    async fn start(&mut self, gid: u32) -> Result<Process, Error> {
        let settings = self.settings.borrow().clone();
        let timeout = settings.executor_start_timeout;
        let starting = self.spawn_and_wait(gid, settings);
        let mut stop = self.stop.clone();
        tokio::select! {
            started = tokio::time::timeout(timeout, starting) => started.unwrap_or_else(|_| {
                let reason = format!("not ready within {timeout:?} (executor.start_timeout)");
                Err(Error::Failed(reason))
            }),
            Ok(stop) = stop.wait_for(Option::is_some) => {
                let reason = stop.as_ref().map(|stop| stop.reason.clone());
                Err(Error::Refused(reason.unwrap_or_default()))
            }
        }
    }

    async fn spawn_and_wait(&self, gid: u32, settings: Arc<Settings>) -> Result<Process, Error> {
        let uid = self.uid;
        let account = process::blocking(move || Account::look_up(uid, gid));
        let (account, surroundings) = tokio::join!(account, self.surroundings());
        let account = account.map_err(|error| {
            Error::Failed(format!("cannot look up the groups of user {uid}: {error}"))
        })?;
        let mut process = Process::spawn(&self.id, &self.device, account, &settings, surroundings)
            .await
            .map_err(|error| Error::Failed(error.to_string()))?;
        self.record().pid = process.pid();
        match process.receive().await {
            Some(FromExecutor::Ready { version }) => {
                if version != env!("CARGO_PKG_VERSION") {
                    warn!(executor = self.id, "the executor is of another version: {version}");
                }
                Ok(process)
            }
            Some(FromExecutor::GpuFailed { reason }) => {
                self.note_loss(&reason);
                Err(Error::Failed(format!("its GPU failed: {reason}")))
            }
            Some(message) => Err(Error::Failed(format!("it said {message:?} before it was ready"))),
            None => Err(Error::Failed(process.end(EXIT).await)),
        }
    }

    async fn surroundings(&self) -> Surroundings {
        match &self.device {
            Device::Gpu(uuid) => self.gpus.surroundings(uuid).await,
            Device::Cpu => Surroundings::default(),
        }
    }

    /// Serves until the executor has ended, or is to be killed.
    async fn serve(&mut self, mut process: Process) -> (Process, End) {
        let mut asked = Asked::default();
        let mut idle_since = None;
        let mut ending: Option<(Instant, End)> = None;
        loop {
            if ending.is_none() {
                while let Some(connection) = self.waiting.pop_front() {
                    self.attach(&process, connection);
                }
            }
            if self.record().attachments.is_empty() {
                idle_since.get_or_insert_with(Instant::now);
            } else {
                idle_since = None;
            }
            let deadline = match &ending {
                Some((deadline, _)) => Some(*deadline),
                None => {
                    idle_since.map(|since| since + self.settings.borrow().executor_idle_timeout)
                }
            };
            tokio::select! {
                message = process.receive() => {
                    let Some(message) = message else {
                        return (process, ending.map_or(End::Unasked, |(_, end)| end));
                    };
                    if let FromExecutor::GpuFailed { reason } = message {
                        self.note_loss(&reason);
                        self.record().enter(ExecutorState::Draining);
                        ending.get_or_insert((Instant::now() + LINGER, End::Lost(reason)));
                        continue;
                    }
                    self.heard(&process, message, &mut asked);
                }
                Some(command) = self.commands.recv() => match command {
                    Command::Attach(connection) => self.waiting.push_back(connection),
                    Command::PeerEnded(attachment) => self.detach(&process, attachment),
                    Command::Report(answer) => asked.report(&process, answer),
                    Command::Cancel { query, reason, found } => {
                        asked.cancel(&process, query, reason, found);
                    }
                    Command::End(reason) if ending.is_none() => {
                        ending = Some(self.drain(&process, reason, Duration::ZERO));
                    }
                    Command::End(_) => {}
                },
                stop = stopped(&mut self.stop), if ending.is_none() => {
                    ending = Some(self.drain(&process, stop.reason, stop.patience));
                }
                () = until(deadline) => {
                    if let Some((_, end)) = ending {
                        process.kill();
                        return (process, end);
                    }
                    ending = Some(self.drain(&process, "it was idle".to_owned(), Duration::ZERO));
                }
            }
        }
    }

    /// Tells the executor to end, and when it is to be killed.
    fn drain(&self, process: &Process, reason: String, patience: Duration) -> (Instant, End) {
        self.record().enter(ExecutorState::Draining);
        let deadline_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        process.send(ToExecutor::Drain { reason: reason.clone(), deadline_ms });
        (Instant::now() + patience + LINGER, End::Asked(reason))
    }

    fn note_loss(&self, reason: &str) {
        warn!(executor = self.id, "the executor's GPU failed: {reason}");
        if let Device::Gpu(uuid) = &self.device {
            self.gpus.losses().note(uuid, reason);
        }
    }

    fn heard(&self, process: &Process, message: FromExecutor, asked: &mut Asked) {
        match message {
            FromExecutor::Closed { attachment } => {
                if self.record().attachments.remove(&attachment.attachment).is_some() {
                    debug!(
                        executor = self.id,
                        attachment = attachment.attachment,
                        queries = attachment.queries,
                        bytes_sent = attachment.bytes_sent,
                        "the connection has ended"
                    );
                }
            }
            FromExecutor::Report { token, report } => asked.reported(process, token, &report),
            FromExecutor::Cancelled { token, found } => asked.cancelled(token, found),
            FromExecutor::Ready { .. }
            | FromExecutor::Failed { .. }
            | FromExecutor::GpuFailed { .. } => {
                warn!(executor = self.id, "the executor said again that it is ready");
            }
        }
    }

    fn attach(&self, process: &Process, connection: Connection) {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let attachment = NUMBER.fetch_add(1, Ordering::Relaxed);
        let Connection { stream, peer, place } = connection;
        let container = peer.container_id().map(str::to_owned);
        let Peer { uid, pid, cwd, pidfd, .. } = peer;
        let to_self = self.to_self.clone();
        let ended = self.ends.when_ended(pidfd, move || {
            let _ = to_self.send(Command::PeerEnded(attachment));
        });
        let ended = match ended {
            Ok(ended) => ended,
            Err(error) => {
                warn!(executor = self.id, pid, "cannot watch the process of a client: {error}");
                return;
            }
        };
        debug!(executor = self.id, attachment, pid, container, "a connection is handed over");
        let socket = Arc::new(OwnedFd::from(stream));
        let message = Attach { attachment, pid, uid, cwd, container: container.clone() };
        process.hand_over(ToExecutor::Attach(message), Arc::clone(&socket));
        self.record().attachments.insert(
            attachment,
            Attachment {
                uid,
                pid,
                container,
                since: crate::clock::now(),
                socket,
                _ended: ended,
                _place: place,
            },
        );
    }

    /// The peer's process has ended. A child of it may still hold the connection: that ends too.
    fn detach(&self, process: &Process, attachment: u64) {
        let Some(ended) = self.record().attachments.remove(&attachment) else { return };
        debug!(executor = self.id, attachment, pid = ended.pid, "the client's process has ended");
        process.send(ToExecutor::Detach { attachment });
        goaway::end(ended.socket.as_fd());
    }

    fn refuse(&self, connection: Connection, code: Code, reason: String) {
        super::refuse(&self.refusals, connection.stream, connection.peer.uid, code, reason);
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the agent to stop.
async fn stopped(stop: &mut watch::Receiver<Option<Stop>>) -> Stop {
    match stop.wait_for(Option::is_some).await.map(|stop| stop.clone()) {
        Ok(Some(stop)) => stop,
        _ => pending().await,
    }
}

/// Waits for a time that may never come.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => pending().await,
    }
}

/// Questions that the executor has not answered yet.
///
/// One report is on its way at a time, so an executor that hangs is not asked more and more; who
/// asks meanwhile gets the next one, which is not older than the question.
#[derive(Default)]
struct Asked {
    last_token: u64,
    report: Option<u64>,
    reporting: Vec<oneshot::Sender<Report>>,
    next: Vec<oneshot::Sender<Report>>,
    cancels: HashMap<u64, oneshot::Sender<bool>>,
}

impl Asked {
    fn token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    fn report(&mut self, process: &Process, answer: oneshot::Sender<Report>) {
        self.next.retain(|asking| !asking.is_closed());
        self.next.push(answer);
        if self.report.is_none() {
            self.ask(process);
        }
    }

    fn ask(&mut self, process: &Process) {
        let token = self.token();
        self.report = Some(token);
        self.reporting = std::mem::take(&mut self.next);
        process.send(ToExecutor::Report { token });
    }

    fn reported(&mut self, process: &Process, token: u64, report: &Report) {
        if self.report != Some(token) {
            return;
        }
        self.report = None;
        for answer in self.reporting.drain(..) {
            let _ = answer.send(report.clone());
        }
        if !self.next.is_empty() {
            self.ask(process);
        }
    }

    fn cancel(
        &mut self,
        process: &Process,
        query: String,
        reason: String,
        found: oneshot::Sender<bool>,
    ) {
        self.cancels.retain(|_, asking| !asking.is_closed());
        let token = self.token();
        self.cancels.insert(token, found);
        process.send(ToExecutor::Cancel { token, query, reason });
    }

    fn cancelled(&mut self, token: u64, found: bool) {
        if let Some(answer) = self.cancels.remove(&token) {
            let _ = answer.send(found);
        }
    }
}
