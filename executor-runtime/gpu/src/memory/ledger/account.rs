//! Attachments, queries and tasks.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Condvar;

use super::{
    AttachmentState, Bytes, Doing, Kind, Ledger, QueryState, Reservation, Shared, TaskState,
    Unreturned, Verdict,
};
use crate::memory::error::MemoryError;

/// A client's connection. Its last clone ends it.
#[derive(Clone)]
pub struct Attachment {
    inner: Arc<AttachmentInner>,
}

struct AttachmentInner {
    shared: Arc<Shared>,
    number: u64,
}

/// A query. Its last clone ends it; [`Query::finish`] says whether all was given back.
#[derive(Clone)]
pub struct Query {
    pub(super) inner: Arc<QueryInner>,
}

pub(super) struct QueryInner {
    pub(super) shared: Arc<Shared>,
    pub(super) number: u64,
    pub(super) attachment: Attachment,
    pub(super) pooled: Arc<AtomicU64>,
}

/// A thread of a query's work. It is as old as it was made early, and the older go first.
pub struct Task {
    pub(in crate::memory) shared: Arc<Shared>,
    pub(in crate::memory) number: u64,
    pub(super) query: Query,
    /// What kind of work it is, for [`crate::memory::semaphore`] to learn what it needs.
    pub(in crate::memory) stage: u64,
}

impl Ledger {
    /// Opens an account; `name` is for messages, as `attachment 3 (pid 4711)`.
    pub fn attach(&self, name: impl Into<String>) -> Attachment {
        let mut state = self.shared.state.lock();
        let number = state.number();
        let account = AttachmentState { name: name.into(), used: Bytes::default() };
        state.attachments.insert(number, account);
        drop(state);
        let inner = AttachmentInner { shared: Arc::clone(&self.shared), number };
        Attachment { inner: Arc::new(inner) }
    }
}

impl Attachment {
    /// Its number, for [`super::Whose::Attachment`].
    pub fn number(&self) -> u64 {
        self.inner.number
    }

    /// What it holds.
    pub fn used(&self) -> Bytes {
        self.inner.shared.state.lock().attachments[&self.inner.number].used
    }

    /// Begins a query; `name` is for messages.
    pub fn query(&self, name: impl Into<String>) -> Query {
        let mut state = self.inner.shared.state.lock();
        let number = state.number();
        let pooled = Arc::new(AtomicU64::new(0));
        let account = QueryState {
            attachment: self.inner.number,
            name: name.into(),
            used: Bytes::default(),
            pooled: Arc::clone(&pooled),
            cancelled: false,
            ended: false,
        };
        state.queries.insert(number, account);
        drop(state);
        let shared = Arc::clone(&self.inner.shared);
        Query { inner: Arc::new(QueryInner { shared, number, attachment: self.clone(), pooled }) }
    }
}

impl Drop for AttachmentInner {
    fn drop(&mut self) {
        // Its queries hold it, and reservations hold their queries: nothing is left.
        self.shared.state.lock().attachments.remove(&self.number);
    }
}

impl Query {
    /// Its number, for [`super::Whose::Query`].
    pub fn number(&self) -> u64 {
        self.inner.number
    }

    /// Its attachment.
    pub fn attachment(&self) -> &Attachment {
        &self.inner.attachment
    }

    /// What it holds.
    pub fn used(&self) -> Bytes {
        self.inner.shared.state.lock().queries[&self.inner.number].used
    }

    /// Begins a thread of its work. `stage` names the kind of work: tasks of the same stage need
    /// about the same memory.
    pub fn task(&self, stage: u64) -> Task {
        let shared = Arc::clone(&self.inner.shared);
        let mut accounts = shared.state.lock();
        let number = accounts.number();
        let task = TaskState {
            query: self.inner.number,
            doing: Doing::Runs,
            told: false,
            splits: 0,
            used: Bytes::default(),
            peak: Bytes::default(),
            wake: Arc::new(Condvar::new()),
        };
        accounts.tasks.insert(number, task);
        drop(accounts);
        Task { shared, number, query: self.clone(), stage }
    }

    /// Reserves if there is room, without waiting or spilling.
    #[track_caller]
    pub fn try_reserve(
        &self,
        kind: Kind,
        bytes: u64,
        purpose: &'static str,
    ) -> Option<Reservation> {
        let origin = Location::caller();
        let mut state = self.inner.shared.state.lock();
        if !state.fits(kind, bytes, self.inner.attachment.number()) {
            return None;
        }
        let number = state.book(self.inner.number, None, kind, bytes, purpose, origin);
        drop(state);
        Some(Reservation::new(self.clone(), number, kind, bytes))
    }

    /// Ends all waiting of its tasks, and refuses what they ask for from now on.
    pub fn cancel(&self) {
        let mut state = self.inner.shared.state.lock();
        state.queries.get_mut(&self.inner.number).expect("a query that lives").cancelled = true;
        let waiting: Vec<_> = state
            .tasks
            .iter()
            .filter(|(_, task)| task.query == self.inner.number)
            .filter(|(_, task)| {
                matches!(task.doing, Doing::WaitsForMemory { .. } | Doing::WaitsForPermit)
            })
            .map(|(number, _)| *number)
            .collect();
        for task in waiting {
            state.tell(task, Verdict::Cancelled);
        }
    }

    /// Ends it: ledger and pool must agree that nothing of it is left. The error says what is.
    pub fn finish(self) -> Result<(), MemoryError> {
        let mut state = self.inner.shared.state.lock();
        let number = self.inner.number;
        let mut left: Vec<_> = state
            .reservations
            .values()
            .filter(|entry| entry.query == number)
            .map(|entry| Unreturned::Reservation {
                kind: entry.kind,
                bytes: entry.bytes,
                purpose: entry.purpose,
                origin: entry.origin,
                trace: entry.trace.clone(),
            })
            .collect();
        let query = state.queries.get_mut(&number).expect("a query that lives");
        query.ended = true;
        let (pooled, reserved) =
            (query.pooled.load(Ordering::Relaxed), query.used.of(Kind::Device));
        if pooled > reserved {
            left.push(Unreturned::Pool { bytes: pooled - reserved });
        }
        if left.is_empty() {
            return Ok(());
        }
        left.sort_by_key(|left| {
            std::cmp::Reverse(match left {
                Unreturned::Reservation { bytes, .. } | Unreturned::Pool { bytes } => *bytes,
            })
        });
        Err(MemoryError::Leak { query: query.name.clone(), left })
    }
}

impl Drop for QueryInner {
    fn drop(&mut self) {
        self.shared.state.lock().queries.remove(&self.number);
    }
}

impl Task {
    /// Its query.
    pub fn query(&self) -> &Query {
        &self.query
    }

    /// The most device bytes that it had reserved at one time.
    pub fn peak(&self) -> Bytes {
        self.shared.state.lock().tasks[&self.number].peak
    }

    /// Says that a step is done: the next one may be told to retry again, and to split.
    pub fn progressed(&self) {
        let mut state = self.shared.state.lock();
        let task = state.task(self.number);
        (task.told, task.splits) = (false, 0);
    }

    /// Says that the step can't be split, and fails if it is told to once more: it only is when
    /// nobody else can split either.
    pub fn on_last_try(&self) {
        self.shared.state.lock().task(self.number).splits = u32::MAX;
    }

    /// Does something that may have to wait for what other tasks do. Without this the ledger
    /// takes the task for one that goes on, and does nothing about others that wait for it.
    pub fn idle<R>(&self, wait: impl FnOnce() -> R) -> R {
        struct Idle<'a>(&'a Task);
        impl Drop for Idle<'_> {
            fn drop(&mut self) {
                let mut state = self.0.shared.state.lock();
                state.task(self.0.number).doing = Doing::Runs;
            }
        }
        let mut state = self.shared.state.lock();
        state.task(self.number).doing = Doing::Idles;
        state.settle();
        drop(state);
        // Also when it panics.
        let _idle = Idle(self);
        wait()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let task = state.tasks.remove(&self.number).expect("a task that lives");
        for entry in state.reservations.values_mut() {
            if entry.task == Some(self.number) {
                entry.task = None;
            }
        }
        state.permits.task_ended(self.number, self.stage, task.peak.of(Kind::Device));
        state.settle();
    }
}
