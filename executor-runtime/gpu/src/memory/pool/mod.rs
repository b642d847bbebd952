//! Device memory in pieces.
//!
//! ```text
//!   DevicePool ── rounds to 256 bytes, counts, logs, hands out what gives itself back
//!       │
//!   Suballocator
//!     ├── ARENA    small pieces from a stream's own superblocks, large ones from the whole
//!     │              alloc once, or in steps up to the maximum
//!     ├── DEFAULT  one heap for all streams
//!     │              alloc once, or half of what is left each time
//!     ├── ASYNC    the driver's pool under our limit
//!     │              create_pool, then alloc_async and free_async for each piece
//!     └── NONE     the driver
//!                    alloc and free for each piece
//!       │
//!   Upstream ── the driver
//! ```
//!
//! The kinds are told apart by the calls that reach the driver, which the tests check. The first
//! two place pieces by `heap`: best fit in logarithmic time, and reuse in the order of streams.
//!
//! - `heap`: best fit over regions.
//! - `arena`, `coalescing`, `asynchronous`, `direct`: the kinds.
//! - `log`: what is allocated and freed, as CSV.

mod arena;
mod asynchronous;
mod coalescing;
mod direct;
mod heap;
mod log;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use creel_settings::PoolKind;
use parking_lot::Mutex;

pub use self::log::AllocationLog;
use super::error::MemoryError;
use super::sizing::PoolSize;
use super::upstream::{DevicePtr, Stream, Upstream, UpstreamError};

/// Every piece begins at a multiple of it, and has a multiple of it.
pub const ALIGNMENT: u64 = 256;

/// Where a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    address: DevicePtr,
    /// Which of the suballocator's heaps it is from.
    home: u32,
    /// Its chunk there.
    chunk: heap::ChunkId,
}

/// What a suballocator has.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    /// What it took of the driver, in bytes.
    taken: u64,
    /// What it may take, in bytes; `u64::MAX` where nothing but the device limits it.
    limit: u64,
    /// Its largest free piece, in bytes.
    largest_free: u64,
    traffic: heap::Traffic,
}

/// One way to hand out device memory. Sizes are multiples of [`ALIGNMENT`].
trait Suballocator: Send + Sync {
    /// A piece for work on a stream; `None` if there is no room.
    fn allocate(&self, bytes: u64, stream: Stream) -> Result<Option<Place>, UpstreamError>;

    /// Takes a piece back whose last use is on a stream.
    fn free(&self, place: Place, bytes: u64, stream: Stream) -> Result<(), UpstreamError>;

    /// Forgets a stream that is about to end.
    fn retire(&self, stream: Stream) -> Result<(), UpstreamError>;

    fn usage(&self) -> Usage;
}

/// A pool's numbers. Bytes are as rounded to [`ALIGNMENT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// What it took of the driver, in bytes.
    pub taken: u64,
    /// What it may take, in bytes; `u64::MAX` where nothing but the device limits it.
    pub limit: u64,
    /// In use, in bytes.
    pub live: u64,
    /// The most that was in use at one time, in bytes.
    pub peak: u64,
    /// The largest free piece, in bytes; 0 where the driver keeps what is free.
    pub largest_free: u64,
    /// Pieces handed out.
    pub allocations: u64,
    /// Pieces that came back.
    pub frees: u64,
    /// Requests for which there was no room.
    pub failures: u64,
    /// Events recorded, to know when one stream's memory is another's.
    pub events: u64,
    /// Times that a stream was made to wait for another because of memory.
    pub stream_waits: u64,
}

#[derive(Default)]
struct Counters {
    live: AtomicU64,
    peak: AtomicU64,
    allocations: AtomicU64,
    frees: AtomicU64,
    failures: AtomicU64,
}

/// A device's pool.
pub struct DevicePool {
    kind: PoolKind,
    suballocator: Box<dyn Suballocator>,
    counters: Counters,
    log: Option<AllocationLog>,
    /// The driver's answer to a free that failed; the next allocation returns it.
    fault: Mutex<Option<UpstreamError>>,
}

impl DevicePool {
    /// Takes the pool's memory of the driver.
    ///
    /// A driver that has no pools of its own gives ARENA in place of ASYNC:
    /// [`DevicePool::kind`] says which it became.
    pub fn new<U: Upstream>(
        size: &PoolSize,
        upstream: &Arc<U>,
        log: Option<AllocationLog>,
    ) -> Result<Arc<Self>, MemoryError> {
        let arena = || arena::Arena::new(size.initial, size.maximum, Arc::clone(upstream));
        let (kind, suballocator): (_, Box<dyn Suballocator>) = match size.pool {
            PoolKind::Arena => (PoolKind::Arena, Box::new(arena()?)),
            PoolKind::Default => {
                let pool =
                    coalescing::Coalescing::new(size.initial, size.maximum, Arc::clone(upstream))?;
                (PoolKind::Default, Box::new(pool))
            }
            PoolKind::Async => {
                match asynchronous::Asynchronous::new(
                    size.initial,
                    size.maximum,
                    Arc::clone(upstream),
                ) {
                    Ok(pool) => (PoolKind::Async, Box::new(pool)),
                    Err(UpstreamError::Unsupported { .. }) => (PoolKind::Arena, Box::new(arena()?)),
                    Err(error) => return Err(error.into()),
                }
            }
            PoolKind::None => (PoolKind::None, Box::new(direct::Direct::new(Arc::clone(upstream)))),
        };
        let (counters, fault) = Default::default();
        Ok(Arc::new(Self { kind, suballocator, counters, log, fault }))
    }

    /// Which kind it is.
    pub fn kind(&self) -> PoolKind {
        self.kind
    }

    /// Takes memory for work on a stream. No bytes are taken as one.
    pub fn allocate(
        self: &Arc<Self>,
        bytes: u64,
        stream: Stream,
    ) -> Result<DeviceMemory, MemoryError> {
        self.take(bytes, stream, None)
    }

    /// The same, and counts the bytes in `owner` for as long as they are out.
    pub(super) fn allocate_for(
        self: &Arc<Self>,
        bytes: u64,
        stream: Stream,
        owner: &Arc<AtomicU64>,
    ) -> Result<DeviceMemory, MemoryError> {
        self.take(bytes, stream, Some(Arc::clone(owner)))
    }

    fn take(
        self: &Arc<Self>,
        bytes: u64,
        stream: Stream,
        owner: Option<Arc<AtomicU64>>,
    ) -> Result<DeviceMemory, MemoryError> {
        if let Some(error) = self.fault.lock().take() {
            return Err(error.into());
        }
        let rounded = bytes.max(1).checked_next_multiple_of(ALIGNMENT);
        let place = match rounded {
            Some(rounded) => self.suballocator.allocate(rounded, stream)?,
            None => None,
        };
        let (Some(place), Some(rounded)) = (place, rounded) else {
            self.counters.failures.fetch_add(1, Ordering::Relaxed);
            if let Some(log) = &self.log {
                log.failure(bytes, stream);
            }
            let Usage { limit, largest_free: largest, .. } = self.suballocator.usage();
            let live = self.counters.live.load(Ordering::Relaxed);
            return Err(MemoryError::PoolExhausted { bytes, live, limit, largest });
        };
        let live = self.counters.live.fetch_add(rounded, Ordering::Relaxed) + rounded;
        if live > self.counters.peak.load(Ordering::Relaxed) {
            self.counters.peak.fetch_max(live, Ordering::Relaxed);
        }
        self.counters.allocations.fetch_add(1, Ordering::Relaxed);
        if let Some(log) = &self.log {
            log.allocate(place.address, bytes, stream);
        }
        if let Some(owner) = &owner {
            owner.fetch_add(rounded, Ordering::Relaxed);
        }
        Ok(DeviceMemory { place, bytes, rounded, stream, pool: Arc::clone(self), owner })
    }

    /// Forgets a stream that is about to end; blocks until the device is done with its work.
    pub fn retire(&self, stream: Stream) -> Result<(), MemoryError> {
        Ok(self.suballocator.retire(stream)?)
    }

    /// Its numbers now.
    pub fn statistics(&self) -> Statistics {
        let Usage { taken, limit, largest_free, traffic } = self.suballocator.usage();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            taken,
            limit,
            live: read(&self.counters.live),
            peak: read(&self.counters.peak),
            largest_free,
            allocations: read(&self.counters.allocations),
            frees: read(&self.counters.frees),
            failures: read(&self.counters.failures),
            events: traffic.events,
            stream_waits: traffic.waits,
        }
    }

    fn free(&self, memory: &DeviceMemory) {
        if let Some(log) = &self.log {
            log.free(memory.place.address, memory.bytes, memory.stream);
        }
        // Counted before it can be another's, so that never more seems live than there is.
        self.counters.live.fetch_sub(memory.rounded, Ordering::Relaxed);
        self.counters.frees.fetch_add(1, Ordering::Relaxed);
        if let Some(owner) = &memory.owner {
            owner.fetch_sub(memory.rounded, Ordering::Relaxed);
        }
        let freed = self.suballocator.free(memory.place, memory.rounded, memory.stream);
        if let Err(error) = freed {
            self.fault.lock().get_or_insert(error);
        }
    }
}

/// Memory of a device, which goes back to its pool when it is dropped.
pub struct DeviceMemory {
    place: Place,
    bytes: u64,
    rounded: u64,
    stream: Stream,
    pool: Arc<DevicePool>,
    /// Bytes that are out for the same owner.
    owner: Option<Arc<AtomicU64>>,
}

impl DeviceMemory {
    /// Where it is.
    pub fn address(&self) -> DevicePtr {
        self.place.address
    }

    /// Its length in bytes, as it was asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The stream in whose order it goes back.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Says on which stream the last work is that uses it; at first it is that which it was taken
    /// for. The caller orders the one after the other.
    pub fn used_on(&mut self, stream: Stream) {
        self.stream = stream;
    }
}

impl std::fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { place: Place { address, .. }, bytes, stream, .. } = self;
        write!(f, "DeviceMemory({address:#x}, {bytes} bytes, stream {stream:#x})")
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.pool.free(self);
    }
}

#[cfg(test)]
mod tests;
