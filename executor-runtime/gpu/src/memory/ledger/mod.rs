//! Who may have how much.
//!
//! ```text
//!   Ledger ─ device, pinned and host bytes of an executor
//!     └── Attachment ─ a client's connection, with its quota of device bytes
//!           └── Query
//!                 └── Task ─ a thread of its work, with its age
//!                       └── Reservation ─ bytes, what they are for, and who asked
//! ```
//!
//! Bytes are reserved before they are used. A task that asks for more than is free
//!
//! 1. **tries**, after those that are older and wait;
//! 2. **spills its own** query's batches at rest ([`Spiller`]);
//! 3. **spills others**, the lowest priority first;
//! 4. **waits** until others give back;
//! 5. is told to **retry**: give back what its step holds, and take the step again;
//! 6. is told to **split** the step;
//! 7. **fails**, with the names of those who hold the memory.
//!
//! Nobody waits for ever. When no task can go on, because all wait, one of them is told to do
//! something about it: whoever fits is let through first, then the youngest that was not told
//! yet is to retry, and when all were, one is to split: of those that were told so least often,
//! the youngest. So one that split and still waits, for memory that an older one holds, is not
//! told again before that one was. Who can't split any more ([`Task::on_last_try`]) is told last,
//! and its query fails: only when all who wait can't, and then the youngest's.
//!
//! Both are counted for a step, until it is done ([`Task::progressed`]), whatever it is granted on
//! the way: a task retries a step once, and splits it until that can't be, so tasks don't send
//! each other round in circles. Each time somebody gives memory back or ends, so somebody goes
//! on. That only works if the ledger knows who can't go on: a task that waits for anything but
//! memory says so ([`Task::idle`]), as [`super::semaphore`] does by itself.
//!
//! - [`account`]: attachments, queries, tasks.
//! - [`reservation`]: asking, waiting, giving back.
//! - `stall`: what happens when all wait.

pub mod account;
pub mod reservation;
mod stall;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};

pub use self::account::{Attachment, Query, Task};
pub use self::reservation::{DeviceBuffer, Injection, Reservation};
use super::semaphore::Permits;

/// Kinds of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The GPU's pool.
    Device,
    /// Page-locked memory of the host.
    Pinned,
    /// Other memory of the host.
    Host,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Device, Self::Pinned, Self::Host];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Pinned => "pinned",
            Self::Host => "host",
        })
    }
}

/// Bytes of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes([u64; 3]);

impl Bytes {
    /// So many of each.
    pub fn new(device: u64, pinned: u64, host: u64) -> Self {
        Self([device, pinned, host])
    }

    /// Those of a kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.0[kind as usize]
    }

    fn add(&mut self, kind: Kind, bytes: u64) {
        self.0[kind as usize] += bytes;
    }

    fn subtract(&mut self, kind: Kind, bytes: u64) {
        self.0[kind as usize] -= bytes;
    }

    fn raise(&mut self, to: &Self) {
        for (mine, other) in self.0.iter_mut().zip(to.0) {
            *mine = (*mine).max(other);
        }
    }
}

/// What there is to share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of each kind, in bytes.
    pub bytes: Bytes,
    /// Device bytes that one attachment may hold (`gpu.memory.attachment_quota`).
    pub attachment_quota: u64,
    /// How long a task may wait for memory (`gpu.memory.wait_timeout`).
    pub wait_timeout: Duration,
}

/// Who holds memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its attachment.
    pub attachment: String,
    /// Its query.
    pub query: String,
    /// How much, in bytes.
    pub bytes: u64,
    /// What most of it is for.
    pub purpose: &'static str,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attachment, query, bytes, purpose } = self;
        write!(f, "query {query} of {attachment} ({bytes} bytes, most for {purpose})")
    }
}

/// Something that a query did not give back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreturned {
    /// A reservation.
    Reservation {
        /// Which memory.
        kind: Kind,
        /// How much, in bytes.
        bytes: u64,
        /// What it is for.
        purpose: &'static str,
        /// The line of code that asked for it.
        origin: &'static Location<'static>,
        /// The calls that led there, in debug builds with `RUST_BACKTRACE` set.
        trace: Option<String>,
    },
    /// Memory of the pool that no reservation accounts for.
    Pool {
        /// How much, in bytes.
        bytes: u64,
    },
}

impl fmt::Display for Unreturned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reservation { kind, bytes, purpose, origin, trace } => {
                write!(f, "{bytes} bytes of {kind} memory for {purpose}, taken at {origin}")?;
                trace.as_ref().map_or(Ok(()), |trace| write!(f, "\n{trace}\n"))
            }
            Self::Pool { bytes } => {
                write!(f, "{bytes} bytes of the pool that no reservation accounts for")
            }
        }
    }
}

/// Whose batches to spill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A query's, by its number.
    Query(u64),
    /// An attachment's, by its number.
    Attachment(u64),
    /// Everybody's.
    All,
}

/// What can make memory free by moving batches at rest elsewhere.
pub trait Spiller: Send + Sync {
    /// Moves batches until that many bytes are free, the lowest priority first. Those of its own
    /// errors that it can't solve it tells when the batch is asked for. Returns the bytes that
    /// became free.
    ///
    /// Called without any lock of the ledger: it gives reservations back, and may take others
    /// with [`Query::try_reserve`].
    fn spill(&self, kind: Kind, bytes: u64, whose: Whose) -> u64;
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Reservations given.
    pub grants: u64,
    /// Times that a task had to wait.
    pub waits: u64,
    /// Times that a task was told to retry.
    pub retries: u64,
    /// Times that a task was told to split.
    pub splits: u64,
    /// Requests that failed.
    pub refusals: u64,
    /// Tasks let through beyond `gpu.concurrent_tasks`, since no other could go on.
    pub permits_beyond: u64,
}

/// The ledger's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What there is.
    pub limits: Bytes,
    /// What is reserved.
    pub used: Bytes,
    /// The most that was reserved at one time.
    pub peak: Bytes,
    /// Tasks that wait for memory.
    pub waiting: usize,
    /// Tasks that wait for a permit.
    pub waiting_for_permit: usize,
    /// Tasks that have a permit.
    pub permits: usize,
    /// What happened since the start.
    pub events: Events,
}

/// An executor's ledger.
#[derive(Clone)]
pub struct Ledger {
    shared: Arc<Shared>,
}

pub(in crate::memory) struct Shared {
    limits: Limits,
    pub(in crate::memory) state: Mutex<State>,
    spiller: RwLock<Option<Arc<dyn Spiller>>>,
}

pub(in crate::memory) struct State {
    limits: Limits,
    used: Bytes,
    peak: Bytes,
    attachments: BTreeMap<u64, AttachmentState>,
    queries: BTreeMap<u64, QueryState>,
    /// By age, the oldest first.
    tasks: BTreeMap<u64, TaskState>,
    reservations: BTreeMap<u64, Entry>,
    pub(in crate::memory) permits: Permits,
    /// The next number of anything.
    next: u64,
    injection: Option<Injection>,
    events: Events,
}

struct AttachmentState {
    name: String,
    used: Bytes,
}

struct QueryState {
    attachment: u64,
    name: String,
    used: Bytes,
    /// What the pool handed out for it, in bytes.
    pooled: Arc<AtomicU64>,
    cancelled: bool,
    ended: bool,
}

pub(in crate::memory) struct TaskState {
    query: u64,
    pub(in crate::memory) doing: Doing,
    /// Whether it was told to retry since it last finished a step.
    told: bool,
    /// How often it was told to split since then; `u32::MAX` where it can't.
    splits: u32,
    used: Bytes,
    peak: Bytes,
    pub(in crate::memory) wake: Arc<Condvar>,
}

/// What a task does.
pub(in crate::memory) enum Doing {
    /// It goes on by itself.
    Runs,
    /// It waits for memory.
    WaitsForMemory { kind: Kind, bytes: u64 },
    /// It waits for a permit.
    WaitsForPermit,
    /// It waits for something that other tasks do.
    Idles,
    /// It waited, and this came of it.
    Told(Verdict),
}

/// What comes of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::memory) enum Verdict {
    /// It has what it asked for.
    Granted,
    Retry,
    Split,
    Cancelled,
}

struct Entry {
    kind: Kind,
    bytes: u64,
    query: u64,
    /// The task that asked, while it lives.
    task: Option<u64>,
    purpose: &'static str,
    origin: &'static Location<'static>,
    trace: Option<String>,
}

impl Ledger {
    /// A ledger of which nothing is taken. `permits` is [`super::semaphore`]'s part of it.
    pub fn new(limits: Limits, permits: Permits) -> Self {
        let state = State {
            limits,
            used: Bytes::default(),
            peak: Bytes::default(),
            attachments: BTreeMap::new(),
            queries: BTreeMap::new(),
            tasks: BTreeMap::new(),
            reservations: BTreeMap::new(),
            permits,
            next: 0,
            injection: None,
            events: Events::default(),
        };
        let shared = Shared { limits, state: Mutex::new(state), spiller: RwLock::default() };
        Self { shared: Arc::new(shared) }
    }

    /// What there is to share.
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Says who spills.
    pub fn set_spiller(&self, spiller: Arc<dyn Spiller>) {
        *self.shared.spiller.write() = Some(spiller);
    }

    /// Fails reservations on purpose, for tests of those who ask; `None` ends that.
    pub fn inject(&self, injection: Option<Injection>) {
        self.shared.state.lock().injection = injection;
    }

    /// The ledger's numbers now.
    pub fn report(&self) -> Report {
        let state = self.shared.state.lock();
        let count =
            |is: fn(&Doing) -> bool| state.tasks.values().filter(|task| is(&task.doing)).count();
        Report {
            limits: state.limits.bytes,
            used: state.used,
            peak: state.peak,
            waiting: count(|doing| matches!(doing, Doing::WaitsForMemory { .. })),
            waiting_for_permit: count(|doing| matches!(doing, Doing::WaitsForPermit)),
            permits: state.permits.held(),
            events: state.events,
        }
    }

    /// Who holds memory of a kind, the largest first.
    pub fn holders(&self, kind: Kind) -> Vec<Holder> {
        self.shared.state.lock().holders(kind, None)
    }
}

impl State {
    /// Whether the query of a task was cancelled.
    pub(in crate::memory) fn cancelled(&self, task: &Task) -> bool {
        self.queries[&task.query().number()].cancelled
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Who holds memory of a kind, the largest first; of one attachment, or of all.
    fn holders(&self, kind: Kind, attachment: Option<u64>) -> Vec<Holder> {
        let mut holders: Vec<_> = self
            .queries
            .iter()
            .filter(|(_, query)| attachment.is_none_or(|only| query.attachment == only))
            .filter(|(_, query)| query.used.of(kind) > 0)
            .map(|(number, query)| Holder {
                attachment: self.attachments[&query.attachment].name.clone(),
                query: query.name.clone(),
                bytes: query.used.of(kind),
                purpose: self.main_purpose(*number, kind),
            })
            .collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        holders
    }

    fn main_purpose(&self, query: u64, kind: Kind) -> &'static str {
        let mut purposes: BTreeMap<&'static str, u64> = BTreeMap::new();
        for entry in self.reservations.values() {
            if entry.query == query && entry.kind == kind {
                *purposes.entry(entry.purpose).or_default() += entry.bytes;
            }
        }
        purposes.into_iter().max_by_key(|(_, bytes)| *bytes).map_or("nothing", |(name, _)| name)
    }
}

#[cfg(test)]
mod tests;
