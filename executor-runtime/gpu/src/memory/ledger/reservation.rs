//! Asking for memory, waiting for it, giving it back.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use super::{Doing, Entry, Kind, Query, State, Task, Verdict, Whose};
use crate::memory::error::{Cause, MemoryError, Recovery, Refusal};
use crate::memory::pool::{ALIGNMENT, DeviceMemory, DevicePool};
use crate::memory::upstream::{DevicePtr, Stream};

/// Reservations of tasks that fail on purpose, counted from when it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// How many pass before.
    pub skip: u64,
    /// How many fail then.
    pub count: u64,
    /// After that, whether it begins anew.
    pub again: bool,
    /// What the failing are told: [`Recovery::Retry`] or [`Recovery::Split`].
    pub recovery: Recovery,
    /// Reservations so far.
    pub seen: u64,
}

impl Injection {
    /// Fails each `k`th.
    pub fn every(k: u64, recovery: Recovery) -> Self {
        Self { skip: k - 1, count: 1, again: true, recovery, seen: 0 }
    }

    /// Fails the `k`th alone.
    pub fn at(k: u64, recovery: Recovery) -> Self {
        Self { again: false, ..Self::every(k, recovery) }
    }

    fn fails(&mut self) -> bool {
        let period = self.skip + self.count;
        let at = if self.again { self.seen % period } else { self.seen };
        self.seen += 1;
        (self.skip..period).contains(&at)
    }
}

/// Bytes that are reserved. Dropping gives them back.
pub struct Reservation {
    query: Query,
    number: u64,
    kind: Kind,
    bytes: u64,
}

impl Reservation {
    pub(super) fn new(query: Query, number: u64, kind: Kind, bytes: u64) -> Self {
        Self { query, number, kind, bytes }
    }

    /// How many.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Of which kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whose.
    pub fn query(&self) -> &Query {
        &self.query
    }

    /// Gives back all but that many; no more than there are.
    pub fn shrink_to(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        let mut state = self.query.inner.shared.state.lock();
        state.give_back(self.number, self.bytes - bytes);
        state.settle();
        self.bytes = bytes;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.query.inner.shared.state.lock();
        state.give_back(self.number, self.bytes);
        state.reservations.remove(&self.number);
        state.settle();
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reservation({} bytes of {} memory)", self.bytes, self.kind)
    }
}

/// Memory of the pool, and the reservation that covers it.
#[derive(Debug)]
pub struct DeviceBuffer {
    // In this order: what is free in the ledger must be free in the pool.
    memory: DeviceMemory,
    reservation: Reservation,
}

impl DeviceBuffer {
    /// Where it is.
    pub fn address(&self) -> DevicePtr {
        self.memory.address()
    }

    /// Its length in bytes, as it was asked for.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// What it counts for in the ledger, in bytes.
    pub fn reserved(&self) -> u64 {
        self.reservation.bytes()
    }

    /// Whose it is.
    pub fn query(&self) -> &Query {
        self.reservation.query()
    }

    /// The stream in whose order it goes back.
    pub fn stream(&self) -> Stream {
        self.memory.stream()
    }

    /// See [`DeviceMemory::used_on`].
    pub fn used_on(&mut self, stream: Stream) {
        self.memory.used_on(stream);
    }
}

impl Task {
    /// Reserves bytes, by the steps of the [module](super). `purpose` is for messages.
    ///
    /// What the error wants of the caller is its [`MemoryError::recovery`].
    #[track_caller]
    pub fn reserve(
        &self,
        kind: Kind,
        bytes: u64,
        purpose: &'static str,
    ) -> Result<Reservation, MemoryError> {
        let origin = Location::caller();
        let number = self.ask(kind, bytes, purpose, origin)?;
        Ok(Reservation::new(self.query.clone(), number, kind, bytes))
    }

    /// Takes memory of a pool for work on a stream, and reserves it first.
    ///
    /// Where the ledger has room and the pool has only smaller pieces, batches at rest are
    /// spilled before that is an error.
    #[track_caller]
    pub fn allocate(
        &self,
        pool: &Arc<DevicePool>,
        bytes: u64,
        stream: Stream,
        purpose: &'static str,
    ) -> Result<DeviceBuffer, MemoryError> {
        let origin = Location::caller();
        let rounded = bytes.max(1).checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        let number = self.ask(Kind::Device, rounded, purpose, origin)?;
        let reservation = Reservation::new(self.query.clone(), number, Kind::Device, rounded);
        let owner: &Arc<AtomicU64> = &self.query.inner.pooled;
        let mut allocated = pool.allocate_for(bytes, stream, owner);
        // What is moved need not be one piece: on until it is, or nothing is left to move.
        for whose in [Whose::Query(self.query.number()), Whose::All] {
            while matches!(allocated, Err(MemoryError::PoolExhausted { .. }))
                && self.spill(Kind::Device, rounded, whose) > 0
            {
                allocated = pool.allocate_for(bytes, stream, owner);
            }
        }
        Ok(DeviceBuffer { memory: allocated?, reservation })
    }

    fn spill(&self, kind: Kind, bytes: u64, whose: Whose) -> u64 {
        let spiller = self.shared.spiller.read().clone();
        spiller.map_or(0, |spiller| spiller.spill(kind, bytes, whose))
    }

    fn ask(
        &self,
        kind: Kind,
        bytes: u64,
        purpose: &'static str,
        origin: &'static Location<'static>,
    ) -> Result<u64, MemoryError> {
        let attachment = self.query.attachment().number();
        let query = self.query.number();
        {
            let mut state = self.shared.state.lock();
            if state.injection.as_mut().is_some_and(Injection::fails) {
                return Err(state.injected(kind, bytes));
            }
            if let Some(cause) = state.never_fits(kind, bytes) {
                state.events.refusals += 1;
                let refusal = state.refusal(kind, bytes, cause, attachment);
                return Err(MemoryError::Split(refusal.into()));
            }
            if let Some(booked) = self.try_ask(&mut state, kind, bytes, purpose, origin)? {
                return Ok(booked);
            }
        }
        for whose in [Whose::Query(query), Whose::Attachment(attachment), Whose::All] {
            let missing = self.shared.state.lock().missing(kind, bytes, attachment, whose);
            if missing == 0 || self.spill(kind, missing, whose) == 0 {
                continue;
            }
            let mut state = self.shared.state.lock();
            if let Some(booked) = self.try_ask(&mut state, kind, bytes, purpose, origin)? {
                return Ok(booked);
            }
        }

        let mut state = self.shared.state.lock();
        if let Some(booked) = self.try_ask(&mut state, kind, bytes, purpose, origin)? {
            return Ok(booked);
        }
        state.events.waits += 1;
        let timeout = state.limits.wait_timeout;
        let deadline = Instant::now() + timeout;
        let wake = {
            let task = state.task(self.number);
            task.doing = Doing::WaitsForMemory { kind, bytes };
            Arc::clone(&task.wake)
        };
        state.settle();
        loop {
            if let Doing::Told(verdict) = state.task(self.number).doing {
                state.task(self.number).doing = Doing::Runs;
                return match verdict {
                    Verdict::Granted => {
                        Ok(state.label(query, self.number, kind, bytes, purpose, origin))
                    }
                    Verdict::Retry => Err(MemoryError::Retry),
                    Verdict::Split => Err(MemoryError::Split(
                        state.refusal(kind, bytes, Cause::AllWait, attachment).into(),
                    )),
                    Verdict::Cancelled => Err(MemoryError::Cancelled),
                };
            }
            let timed_out = wake.wait_until(&mut state, deadline).timed_out();
            if timed_out && matches!(state.task(self.number).doing, Doing::WaitsForMemory { .. }) {
                state.task(self.number).doing = Doing::Runs;
                state.events.refusals += 1;
                let refusal = state.refusal(kind, bytes, Cause::TimedOut(timeout), attachment);
                // Who waited behind this one may fit.
                state.settle();
                return Err(MemoryError::Refused(refusal.into()));
            }
        }
    }

    fn try_ask(
        &self,
        state: &mut State,
        kind: Kind,
        bytes: u64,
        purpose: &'static str,
        origin: &'static Location<'static>,
    ) -> Result<Option<u64>, MemoryError> {
        let query = self.query.number();
        if state.cancelled(self) {
            return Err(MemoryError::Cancelled);
        }
        let attachment = self.query.attachment().number();
        if !state.fits(kind, bytes, attachment) || state.older_waits(self.number, kind, attachment)
        {
            return Ok(None);
        }
        Ok(Some(state.book(query, Some(self.number), kind, bytes, purpose, origin)))
    }
}

impl State {
    /// Whether that many are free, for this attachment.
    pub(super) fn fits(&self, kind: Kind, bytes: u64, attachment: u64) -> bool {
        self.fits_limit(kind, bytes) && self.fits_quota(kind, bytes, attachment)
    }

    fn fits_limit(&self, kind: Kind, bytes: u64) -> bool {
        bytes <= self.limits.bytes.of(kind).saturating_sub(self.used.of(kind))
    }

    /// The quota is of device memory alone: the other kinds serve it.
    pub(super) fn fits_quota(&self, kind: Kind, bytes: u64, attachment: u64) -> bool {
        let used = self.attachments[&attachment].used.of(kind);
        kind != Kind::Device || bytes <= self.limits.attachment_quota.saturating_sub(used)
    }

    fn never_fits(&self, kind: Kind, bytes: u64) -> Option<Cause> {
        if bytes > self.limits.bytes.of(kind) {
            return Some(Cause::MoreThanThereIs);
        }
        (kind == Kind::Device && bytes > self.limits.attachment_quota)
            .then_some(Cause::MoreThanTheQuota)
    }

    /// What is to be spilled for a request to fit; of everybody only if the limit wants it.
    fn missing(&self, kind: Kind, bytes: u64, attachment: u64, whose: Whose) -> u64 {
        let over_limit = (self.used.of(kind) + bytes).saturating_sub(self.limits.bytes.of(kind));
        let used = self.attachments[&attachment].used.of(kind);
        let over_quota = match kind {
            Kind::Device => (used + bytes).saturating_sub(self.limits.attachment_quota),
            Kind::Pinned | Kind::Host => 0,
        };
        match whose {
            Whose::Query(_) => over_limit.max(over_quota),
            Whose::Attachment(_) => over_quota,
            Whose::All => over_limit,
        }
    }

    /// Whether somebody older waits for the same: not for its quota, or of the same attachment.
    fn older_waits(&self, task: u64, kind: Kind, attachment: u64) -> bool {
        self.older(task, kind)
            .any(|(bytes, of)| of == attachment || self.fits_quota(kind, bytes, of))
    }

    /// Bytes and attachment of those older who wait for the same.
    pub(super) fn older(&self, task: u64, kind: Kind) -> impl Iterator<Item = (u64, u64)> {
        self.tasks.range(..task).filter_map(move |(_, older)| match older.doing {
            Doing::WaitsForMemory { kind: other, bytes } if other == kind => {
                Some((bytes, self.queries[&older.query].attachment))
            }
            _ => None,
        })
    }

    pub(super) fn book(
        &mut self,
        query: u64,
        task: Option<u64>,
        kind: Kind,
        bytes: u64,
        purpose: &'static str,
        origin: &'static Location<'static>,
    ) -> u64 {
        self.charge(query, task, kind, bytes);
        self.enter(query, task, kind, bytes, purpose, origin)
    }

    /// The entry of what a waiting task was charged when it was granted.
    fn label(
        &mut self,
        query: u64,
        task: u64,
        kind: Kind,
        bytes: u64,
        purpose: &'static str,
        origin: &'static Location<'static>,
    ) -> u64 {
        self.enter(query, Some(task), kind, bytes, purpose, origin)
    }

    fn enter(
        &mut self,
        query: u64,
        task: Option<u64>,
        kind: Kind,
        bytes: u64,
        purpose: &'static str,
        origin: &'static Location<'static>,
    ) -> u64 {
        let number = self.number();
        let trace = trace();
        let entry = Entry { kind, bytes, query, task, purpose, origin, trace };
        self.reservations.insert(number, entry);
        number
    }

    /// Adds to all accounts.
    pub(super) fn charge(&mut self, query: u64, task: Option<u64>, kind: Kind, bytes: u64) {
        self.events.grants += 1;
        self.used.add(kind, bytes);
        self.peak.raise(&self.used);
        let account = self.queries.get_mut(&query).expect("a query that lives");
        account.used.add(kind, bytes);
        let attachment = account.attachment;
        self.attachments.get_mut(&attachment).expect("queries hold theirs").used.add(kind, bytes);
        if let Some(task) = task {
            let task = self.task(task);
            task.used.add(kind, bytes);
            task.peak.raise(&task.used);
        }
    }

    fn give_back(&mut self, number: u64, bytes: u64) {
        let entry = self.reservations.get_mut(&number).expect("a reservation that lives");
        entry.bytes -= bytes;
        let (kind, query, task) = (entry.kind, entry.query, entry.task);
        self.used.subtract(kind, bytes);
        let account = self.queries.get_mut(&query).expect("reservations hold theirs");
        account.used.subtract(kind, bytes);
        let attachment = account.attachment;
        let account = self.attachments.get_mut(&attachment).expect("queries hold theirs");
        account.used.subtract(kind, bytes);
        if let Some(task) = task {
            self.task(task).used.subtract(kind, bytes);
        }
    }

    fn refusal(&self, kind: Kind, bytes: u64, cause: Cause, attachment: u64) -> Refusal {
        let own = match cause {
            Cause::MoreThanTheQuota => true,
            Cause::MoreThanThereIs => false,
            _ => !self.fits_quota(kind, bytes, attachment),
        };
        let own = own.then_some(attachment);
        let (used, limit) = match own {
            Some(_) => (self.attachments[&attachment].used.of(kind), self.limits.attachment_quota),
            None => (self.used.of(kind), self.limits.bytes.of(kind)),
        };
        Refusal { bytes, kind, used, limit, cause, holders: self.holders(kind, own) }
    }

    fn injected(&self, kind: Kind, bytes: u64) -> MemoryError {
        let limit = self.limits.bytes.of(kind);
        let used = self.used.of(kind);
        let refusal =
            Refusal { bytes, kind, used, limit, cause: Cause::Injected, holders: Vec::new() };
        match self.injection.expect("a test's").recovery {
            Recovery::Retry => MemoryError::Retry,
            Recovery::Split => MemoryError::Split(Box::new(refusal)),
            Recovery::Fail | Recovery::Restart => MemoryError::Refused(Box::new(refusal)),
        }
    }
}

/// The calls that led here, in debug builds where `RUST_BACKTRACE` wants them.
fn trace() -> Option<String> {
    if !cfg!(debug_assertions) {
        return None;
    }
    let trace = std::backtrace::Backtrace::capture();
    (trace.status() == std::backtrace::BacktraceStatus::Captured).then(|| trace.to_string())
}
