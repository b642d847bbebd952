//! A driver for tests: it hands out addresses, writes down what it was asked, and knows by vector
//! clocks who may use what.
//!
//! Each stream has a position, the number of its pieces of work. A stream *knows* a position of
//! another when its queue waits for it. The host knows those that an event told it of. Memory
//! that a stream gave back at some position may be used by another stream that knows that
//! position, or when the host knows it; anything else is a use before the event.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use super::upstream::{DevicePtr, DriverPool, Stream, Upstream, UpstreamError};

/// Positions by stream.
type Clock = HashMap<Stream, u64>;

fn join(clock: &mut Clock, other: &Clock) {
    for (stream, position) in other {
        let known = clock.entry(*stream).or_default();
        *known = (*known).max(*position);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Alloc(u64),
    Free,
    CreatePool(u64),
    DestroyPool,
    AllocAsync(u64, Stream),
    FreeAsync(Stream),
    Record(Stream),
    Wait(Stream, Stream),
    Synchronize(Stream),
}

#[derive(Debug)]
pub(crate) struct Event {
    stream: Stream,
    position: u64,
    knows: Clock,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    next: DevicePtr,
    used: u64,
    allocated: BTreeMap<DevicePtr, u64>,
    position: Clock,
    streams: HashMap<Stream, Clock>,
    completed: Clock,
    host: Clock,
    /// Ranges that were given back: end, stream, position.
    freed: BTreeMap<DevicePtr, (DevicePtr, Stream, u64)>,
    /// What goes back to its pool when the device is there: stream, position, bytes.
    pending: Vec<(Stream, u64, u64)>,
    /// Ranges in use.
    live: BTreeMap<DevicePtr, DevicePtr>,
    fault: Option<UpstreamError>,
}

pub(crate) struct Double {
    total: u64,
    /// Whether it has pools of its own.
    pools: bool,
    state: Mutex<State>,
}

impl Double {
    pub(crate) fn new(total: u64) -> Self {
        let state = State { next: 0x7f00_0000_0000, ..State::default() };
        Self { total, pools: true, state: Mutex::new(state) }
    }

    pub(crate) fn without_pools(total: u64) -> Self {
        Self { pools: false, ..Self::new(total) }
    }

    /// What it was asked since the last time.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.state.lock().calls)
    }

    /// What is allocated of it, in bytes.
    pub(crate) fn used(&self) -> u64 {
        self.state.lock().used
    }

    /// Takes this much away, as another process does.
    pub(crate) fn occupy(&self, bytes: u64) {
        self.state.lock().used += bytes;
    }

    /// Fails all calls from now on.
    pub(crate) fn break_down(&self) {
        self.state.lock().fault =
            Some(UpstreamError::Failed { call: "any", reason: "lost".into(), sticky: true });
    }

    /// The device finishes all work of a stream.
    pub(crate) fn progress(&self, stream: Stream) {
        let mut state = self.state.lock();
        let position = state.position.get(&stream).copied().unwrap_or_default();
        state.completed.insert(stream, position);
    }

    /// The test lets a stream wait for all that another was given until now.
    pub(crate) fn order(&self, before: Stream, after: Stream) {
        let mut state = self.state.lock();
        let mut knows = state.streams.get(&before).cloned().unwrap_or_default();
        knows.insert(before, state.position.get(&before).copied().unwrap_or_default());
        join(state.streams.entry(after).or_default(), &knows);
    }

    /// The test begins to use a piece on a stream. Panics where it must not.
    pub(crate) fn begin_use(&self, address: DevicePtr, bytes: u64, stream: Stream) {
        let mut state = self.state.lock();
        let end = address + bytes;
        let before = state.live.range(..end).next_back();
        assert!(before.is_none_or(|(_, other)| *other <= address), "two pieces overlap");
        state.live.insert(address, end);
        let State { freed, streams, host, .. } = &mut *state;
        let overlapping: Vec<_> = freed
            .range(..end)
            .rev()
            .take_while(|(_, (other, ..))| *other > address)
            .map(|(start, rest)| (*start, *rest))
            .collect();
        for (start, (other, by, position)) in overlapping {
            let knows = |clock: &Clock| clock.get(&by).is_some_and(|known| *known >= position);
            assert!(
                by == stream || knows(host) || streams.get(&stream).is_some_and(knows),
                "{stream:?} uses {address:#x} before {by:?} is done with it"
            );
            freed.remove(&start);
            if start < address {
                freed.insert(start, (address, by, position));
            }
            if other > end {
                freed.insert(end, (other, by, position));
            }
        }
    }

    /// The test's last use of a piece is on a stream. To be told before the pool is.
    pub(crate) fn end_use(&self, address: DevicePtr, stream: Stream) {
        let mut state = self.state.lock();
        let end = state.live.remove(&address).expect("a piece in use");
        let position = state.position.entry(stream).or_default();
        *position += 1;
        let position = *position;
        state.freed.insert(address, (end, stream, position));
    }

    fn enter(&self, call: Call) -> Result<parking_lot::MutexGuard<'_, State>, UpstreamError> {
        let mut state = self.state.lock();
        if let Some(fault) = &state.fault {
            return Err(fault.clone());
        }
        state.calls.push(call);
        Ok(state)
    }

    fn take(
        &self,
        mut state: parking_lot::MutexGuard<'_, State>,
        bytes: u64,
    ) -> Result<DevicePtr, UpstreamError> {
        if state.used + bytes > self.total {
            return Err(UpstreamError::OutOfMemory { bytes });
        }
        state.used += bytes;
        let address = state.next;
        state.next += bytes.next_multiple_of(1 << 20);
        state.allocated.insert(address, bytes);
        Ok(address)
    }
}

impl Upstream for Double {
    type Event = Event;

    fn alloc(&self, bytes: u64) -> Result<DevicePtr, UpstreamError> {
        self.take(self.enter(Call::Alloc(bytes))?, bytes)
    }

    fn free(&self, address: DevicePtr) -> Result<(), UpstreamError> {
        let mut state = self.enter(Call::Free)?;
        let bytes = state.allocated.remove(&address).expect("an address that was given out");
        state.used -= bytes;
        let unfinished = state
            .freed
            .range(address..address + bytes)
            .any(|(_, (_, by, position))| state.host.get(by).is_none_or(|known| known < position));
        assert!(!unfinished, "memory goes back to the driver before the work on it is done");
        Ok(())
    }

    fn create_pool(&self, keep: u64) -> Result<DriverPool, UpstreamError> {
        if !self.pools {
            return Err(UpstreamError::Unsupported { call: "cuMemPoolCreate" });
        }
        self.enter(Call::CreatePool(keep)).map(|_| DriverPool(1))
    }

    fn destroy_pool(&self, _: DriverPool) -> Result<(), UpstreamError> {
        let mut state = self.enter(Call::DestroyPool)?;
        let pending = std::mem::take(&mut state.pending);
        state.used -= pending.iter().map(|(.., bytes)| bytes).sum::<u64>();
        Ok(())
    }

    fn alloc_async(
        &self,
        _: DriverPool,
        bytes: u64,
        stream: Stream,
    ) -> Result<DevicePtr, UpstreamError> {
        let mut state = self.enter(Call::AllocAsync(bytes, stream))?;
        let State { pending, completed, used, .. } = &mut *state;
        let is_past = |by: &Stream, position: u64| {
            *by == stream || completed.get(by).copied().unwrap_or_default() >= position
        };
        for (.., bytes) in pending.extract_if(.., |(by, position, _)| is_past(by, *position)) {
            *used -= bytes;
        }
        self.take(state, bytes)
    }

    fn free_async(&self, address: DevicePtr, stream: Stream) -> Result<(), UpstreamError> {
        let mut state = self.enter(Call::FreeAsync(stream))?;
        let bytes = state.allocated.remove(&address).expect("an address that was given out");
        let position = state.position.get(&stream).copied().unwrap_or_default();
        state.pending.push((stream, position, bytes));
        Ok(())
    }

    fn record(&self, stream: Stream) -> Result<Event, UpstreamError> {
        let state = self.enter(Call::Record(stream))?;
        let position = state.position.get(&stream).copied().unwrap_or_default();
        let mut knows = state.streams.get(&stream).cloned().unwrap_or_default();
        knows.insert(stream, position);
        Ok(Event { stream, position, knows })
    }

    fn is_complete(&self, event: &Event) -> Result<bool, UpstreamError> {
        let mut state = self.state.lock();
        let complete = state.completed.get(&event.stream).copied().unwrap_or_default();
        let complete = complete >= event.position;
        if complete {
            join(&mut state.host, &event.knows);
        }
        Ok(complete)
    }

    fn wait(&self, stream: Stream, event: &Event) -> Result<(), UpstreamError> {
        let mut state = self.enter(Call::Wait(stream, event.stream))?;
        join(state.streams.entry(stream).or_default(), &event.knows);
        Ok(())
    }

    fn synchronize(&self, event: &Event) -> Result<(), UpstreamError> {
        let mut state = self.enter(Call::Synchronize(event.stream))?;
        let State { completed, host, .. } = &mut *state;
        join(completed, &event.knows);
        join(host, &event.knows);
        Ok(())
    }
}
