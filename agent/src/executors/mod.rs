//! The executors: which one serves a connection, and what becomes of both.
//!
//! ```text
//!  Executors ── cpu-1000, GPU-…-1000 ─▶ Supervisor ◀─ Record: state, attachments
//!      │                                  │  ▲
//!   attach, report,            Process: creel-executor, its channel, standard error, spill
//!   cancel, end_on
//! ```
//!
//! - `device`: what an executor computes on.
//! - `supervisor`: starts, watches, restarts and ends one executor.
//! - `process`: its process; `stderr` is what it writes, `spill` where it spills, and
//!   `account` whom it becomes.
//! - `backoff`: when it may start again.
//! - `goaway`: what its clients are told when it is gone.

mod account;
mod backoff;
mod device;
mod goaway;
mod process;
mod record;
mod spill;
mod stderr;
mod supervisor;

pub use self::device::Device;
pub(crate) use self::spill::base as spill_base;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use creel_settings::Settings;
use creel_wire::{PoolReport, Report};
use futures::future::join_all;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tonic::Code;
use tracing::{error, info};

use self::backoff::Backoff;
use self::record::Record;
use self::supervisor::{Command, Connection, Stop, Supervisor};
use crate::api;
use crate::connections::{Connections, Place};
use crate::gpus::Gpus;
use crate::peer::{Ends, Peer};
use crate::refusal::Refusals;

/// What an executor may take to answer a question before it is left out.
const ANSWER: Duration = Duration::from_secs(1);

/// The node's executors.
#[derive(Debug)]
pub struct Executors {
    own_uid: u32,
    settings: watch::Receiver<Arc<Settings>>,
    gpus: Gpus,
    ends: Ends,
    attachments: Connections,
    refusals: Refusals,
    stop: watch::Sender<Option<Stop>>,
    by_id: Mutex<BTreeMap<String, Handle>>,
}

#[derive(Debug)]
struct Handle {
    device: Device,
    uid: u32,
    record: Arc<Mutex<Record>>,
    commands: mpsc::UnboundedSender<Command>,
}

/// An executor, as [`Executors::list`] gives it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// What is known of it, its memory included if it answered.
    pub executor: api::Executor,
    /// Its connections, with what it said of them.
    pub attachments: Vec<api::Attachment>,
    /// Its queries; none if it did not answer.
    pub queries: Vec<api::Query>,
}

impl Executors {
    /// No executor yet. First takes away what earlier agents left where executors spill. They are
    /// told how it looks on `gpus`, note what they lose of them, and don't start on one that is
    /// unfit by that.
    pub fn new(settings: watch::Receiver<Arc<Settings>>, gpus: Gpus) -> io::Result<Self> {
        spill::sweep(&spill::base(&settings.borrow()));
        Ok(Self {
            ends: Ends::start()?,
            own_uid: rustix::process::geteuid().as_raw(),
            settings,
            gpus,
            attachments: Connections::default(),
            refusals: Refusals::default(),
            stop: watch::Sender::new(None),
            by_id: Mutex::default(),
        })
    }

    /// Counts a connection of that user before anything is done with it; `None`, and it is
    /// refused, if there are too many.
    pub fn enter(
        &self,
        stream: tokio::net::UnixStream,
        uid: u32,
    ) -> Option<(tokio::net::UnixStream, Place)> {
        let limit = self.settings.borrow().agent_max_attachments;
        // So that nobody can take every place.
        let of_one = limit - limit / 4;
        if let Some(place) = self.attachments.enter(uid, of_one, limit) {
            return Some((stream, place));
        }
        let reason = format!(
            "the agent takes {limit} connections (agent.max_attachments), {of_one} of one user: \
             close some, or raise it"
        );
        self.refusals.answer(stream, uid, Code::ResourceExhausted, reason);
        None
    }

    /// Refuses a connection whose peer can't be looked at.
    pub fn refuse_unknown(&self, stream: tokio::net::UnixStream, uid: u32, error: &io::Error) {
        let reason = format!("the agent can't see which process this connection is from: {error}");
        self.refusals.answer(stream, uid, Code::Unavailable, reason);
    }

    /// Hands a connection to the executor of its peer on that device, or refuses it.
    pub fn attach(
        &self,
        stream: tokio::net::UnixStream,
        peer: Peer,
        place: Place,
        device: &Device,
    ) {
        let uid = peer.uid;
        if self.own_uid != 0 && uid != self.own_uid {
            let reason = format!(
                "this agent runs as user {} and without root, so it serves that user alone, not \
                 user {uid}: start your own with `creeld --run-dir DIR`, or have creeld run as root",
                self.own_uid
            );
            self.refusals.answer(stream, uid, Code::PermissionDenied, reason);
            return;
        }
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => return error!("a connection could not be handed over: {error}"),
        };
        let attach = Command::Attach(Connection { stream, peer, place });
        let refused = self.commands_of(device, uid).send(attach).err();
        if let Some(mpsc::error::SendError(Command::Attach(connection))) = refused {
            let reason = "the agent stops; try again when it runs".to_owned();
            refuse(&self.refusals, connection.stream, uid, Code::Unavailable, reason);
        }
    }

    /// The way to the supervisor of a user's executor, which is made if there is none.
    fn commands_of(&self, device: &Device, uid: u32) -> mpsc::UnboundedSender<Command> {
        let id = device.executor(uid);
        let mut by_id = self.by_id();
        let handle = by_id.entry(id.clone()).or_insert_with(|| {
            let (commands, receiver) = mpsc::unbounded_channel();
            let record = Arc::new(Mutex::new(Record::default()));
            let supervisor = Supervisor {
                id,
                device: device.clone(),
                uid,
                settings: self.settings.clone(),
                gpus: self.gpus.clone(),
                refusals: self.refusals.clone(),
                stop: self.stop.subscribe(),
                record: Arc::clone(&record),
                commands: receiver,
                ends: self.ends.clone(),
                to_self: commands.clone(),
                waiting: VecDeque::new(),
                backoff: Backoff::default(),
            };
            tokio::spawn(supervisor.run());
            Handle { device: device.clone(), uid, record, commands }
        });
        handle.commands.clone()
    }

    /// Refuses a connection with that status and reason.
    pub fn refuse(&self, stream: tokio::net::UnixStream, uid: u32, code: Code, reason: String) {
        self.refusals.answer(stream, uid, code, reason);
    }

    /// Ends the executors on a device, but for those of the user that may keep theirs.
    pub fn end_on(&self, device: &Device, keep: Option<u32>, reason: &str) {
        for handle in self.by_id().values() {
            if handle.device == *device && keep != Some(handle.uid) {
                // One that has ended needs no telling.
                let _ = handle.commands.send(Command::End(reason.to_owned()));
            }
        }
    }

    /// The executors of the users that `seen` accepts, as they stand now.
    pub async fn list(&self, seen: impl Fn(u32) -> bool) -> Vec<Listed> {
        let asked: Vec<_> = {
            let by_id = self.by_id();
            let seen = by_id.iter().filter(|(_, handle)| seen(handle.uid));
            seen.map(|(id, handle)| {
                let (record, commands) = (Arc::clone(&handle.record), handle.commands.clone());
                (id.clone(), handle.device.clone(), handle.uid, record, commands)
            })
            .collect()
        };
        let listed = asked.into_iter().map(|(id, device, uid, record, commands)| async move {
            let runs = lock(&record).answers();
            let report = if runs { ask(&commands, Command::Report).await } else { None };
            listed(&id, &device, uid, &lock(&record), report)
        });
        join_all(listed).await.into_iter().flatten().collect()
    }

    /// What executors have of each device, by UUID. One that doesn't answer is left out.
    pub async fn pools(&self) -> BTreeMap<String, api::Pool> {
        let on_gpus: Vec<_> = {
            let by_id = self.by_id();
            let on_gpus = by_id.values().filter_map(|handle| match &handle.device {
                Device::Gpu(uuid) if lock(&handle.record).answers() => {
                    Some((uuid.clone(), handle.commands.clone()))
                }
                _ => None,
            });
            on_gpus.collect()
        };
        let asked = on_gpus.into_iter().map(|(uuid, commands)| async move {
            let report = ask(&commands, Command::Report).await?;
            Some((uuid, report.gpu?.pool))
        });
        together(join_all(asked).await.into_iter().flatten())
    }

    /// Tells a query to end; the answer is whether its executor had it.
    pub async fn cancel(&self, executor: &str, query: &str, reason: &str) -> bool {
        let commands = self.by_id().get(executor).map(|handle| handle.commands.clone());
        let Some(commands) = commands else { return false };
        let (query, reason) = (query.to_owned(), reason.to_owned());
        ask(&commands, |found| Command::Cancel { query, reason, found }).await.unwrap_or(false)
    }

    /// Lets running queries end for that long, then ends all executors and waits for their end.
    /// Connections that come from now on are refused.
    pub async fn drain(&self, reason: &str, patience: Duration) {
        info!("draining for {patience:?} at the most");
        self.stop.send_replace(Some(Stop { reason: reason.to_owned(), patience }));
        // Each supervisor has a receiver until it ends.
        self.stop.closed().await;
    }

    fn by_id(&self) -> MutexGuard<'_, BTreeMap<String, Handle>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock(record: &Mutex<Record>) -> MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks a supervisor something that its executor answers; `None` if it doesn't in time.
async fn ask<T>(
    commands: &mpsc::UnboundedSender<Command>,
    question: impl FnOnce(oneshot::Sender<T>) -> Command,
) -> Option<T> {
    let (asking, answer) = oneshot::channel();
    commands.send(question(asking)).ok()?;
    tokio::time::timeout(ANSWER, answer).await.ok()?.ok()
}

fn listed(
    id: &str,
    device: &Device,
    uid: u32,
    record: &Record,
    report: Option<Report>,
) -> Option<Listed> {
    let state = record.state(Instant::now())?;
    let has_answered = report.is_some();
    let Report { memory, attachments: connections, queries, gpu, gpu_unusable } =
        report.unwrap_or_default();
    let executor = api::Executor {
        id: id.to_owned(),
        device: device.name().to_owned(),
        uid,
        pid: record.pid,
        state,
        since: record.since,
        restarts: record.restarts,
        last_error: record.last_error.clone(),
        memory: has_answered.then_some(memory),
        gpu,
        gpu_unusable,
    };
    let attachments = record.attachments.iter().map(|(number, attachment)| {
        let said = connections.iter().find(|said| said.attachment == *number);
        api::Attachment {
            id: *number,
            uid: attachment.uid,
            pid: attachment.pid,
            container: attachment.container.clone(),
            executor: id.to_owned(),
            since: attachment.since,
            queries: said.map_or(0, |said| said.queries),
            bytes_sent: said.map_or(0, |said| said.bytes_sent),
        }
    });
    let queries =
        queries.into_iter().map(|report| api::Query { executor: id.to_owned(), uid, report });
    Some(Listed { executor, attachments: attachments.collect(), queries: queries.collect() })
}

/// The pools on each device together: users who borrow one have an executor each.
fn together(pools: impl IntoIterator<Item = (String, PoolReport)>) -> BTreeMap<String, api::Pool> {
    let mut by_device = BTreeMap::<String, api::Pool>::new();
    for (uuid, PoolReport { kind, limit, live, peak, taken, .. }) in pools {
        let pool = api::Pool { kind, limit, live, peak, taken };
        by_device
            .entry(uuid)
            .and_modify(|sum| {
                sum.limit = sum.limit.zip(pool.limit).map(|(one, other)| one + other);
                sum.live += pool.live;
                sum.peak += pool.peak;
                sum.taken += pool.taken;
            })
            .or_insert(pool);
    }
    by_device
}

/// Refuses a connection that the runtime no longer watches.
fn refuse(refusals: &Refusals, stream: UnixStream, uid: u32, code: Code, reason: String) {
    match tokio::net::UnixStream::from_std(stream) {
        Ok(stream) => refusals.answer(stream, uid, code, reason),
        Err(error) => error!("a connection could not be refused: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_on_one_device_are_counted_together() {
        let pool = |live, limit| PoolReport {
            kind: "ARENA".to_owned(),
            limit,
            live,
            peak: live + 1,
            taken: live + 2,
            ..PoolReport::default()
        };
        let pools =
            [("GPU-0", Some(50)), ("GPU-1", Some(60)), ("GPU-0", Some(70)), ("GPU-1", None)];
        let pools = together(pools.map(|(uuid, limit)| (uuid.to_owned(), pool(10, limit))));
        let of =
            |limit| api::Pool { kind: "ARENA".to_owned(), limit, live: 20, peak: 22, taken: 24 };
        assert_eq!(pools.into_values().collect::<Vec<_>>(), [of(Some(120)), of(None)]);
    }
}
