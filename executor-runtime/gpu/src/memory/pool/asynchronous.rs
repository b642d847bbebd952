//! ASYNC: the driver's own stream-ordered pool, under our limit.
//!
//! What is freed is the driver's again when its stream comes to that point. Until then it may
//! have no room where our count has: then the streams with frees since the last such time are
//! waited for, and the driver is asked again. Where there are none, other processes have the
//! memory, and nobody waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::heap::Traffic;
use super::{Place, Suballocator, Usage};
use crate::memory::upstream::{DevicePtr, DriverPool, Stream, Upstream, UpstreamError};

/// How often frees are waited for in one request, where other threads take what they made free.
const WAITS: usize = 16;

pub(super) struct Asynchronous<U: Upstream> {
    upstream: Arc<U>,
    pool: DriverPool,
    maximum: u64,
    live: AtomicU64,
    /// Streams with frees since they were last waited for.
    freed: Mutex<Vec<Stream>>,
    /// Held while streams are waited for.
    waits: Mutex<()>,
    /// Events that were waited for.
    events: AtomicU64,
}

impl<U: Upstream> Asynchronous<U> {
    pub(super) fn new(initial: u64, maximum: u64, upstream: Arc<U>) -> Result<Self, UpstreamError> {
        let pool = upstream.create_pool(maximum)?;
        let (live, freed, waits, events) = Default::default();
        let created = Self { upstream, pool, maximum, live, freed, waits, events };
        // Freed memory stays with the pool, so this is what it has from now on.
        if initial > 0 {
            let stream = Stream::default();
            let address = created.upstream.alloc_async(pool, initial, stream)?;
            created.free_async(address, stream)?;
        }
        Ok(created)
    }

    fn free_async(&self, address: DevicePtr, stream: Stream) -> Result<(), UpstreamError> {
        self.upstream.free_async(address, stream)?;
        let mut freed = self.freed.lock();
        if !freed.contains(&stream) {
            freed.push(stream);
        }
        Ok(())
    }

    fn alloc_async(&self, bytes: u64, stream: Stream) -> Result<DevicePtr, UpstreamError> {
        for _ in 0..WAITS {
            let events = self.events.load(Ordering::Acquire);
            let taken = self.upstream.alloc_async(self.pool, bytes, stream);
            if !matches!(taken, Err(UpstreamError::OutOfMemory { .. })) {
                return taken;
            }
            self.wait_for_frees(|_| true)?;
            // Another thread may have done the waiting.
            if self.events.load(Ordering::Acquire) == events {
                return taken;
            }
        }
        self.upstream.alloc_async(self.pool, bytes, stream)
    }

    /// Blocks until the device is done with all that was freed on these streams.
    fn wait_for_frees(&self, on: impl Fn(Stream) -> bool) -> Result<(), UpstreamError> {
        let _waits = self.waits.lock();
        let streams: Vec<_> = self.freed.lock().extract_if(.., |stream| on(*stream)).collect();
        let events: Vec<_> = streams
            .into_iter()
            .map(|stream| self.upstream.record(stream))
            .collect::<Result<_, _>>()?;
        events.iter().try_for_each(|event| self.upstream.synchronize(event))?;
        self.events.fetch_add(events.len() as u64, Ordering::Release);
        Ok(())
    }
}

impl<U: Upstream> Suballocator for Asynchronous<U> {
    fn allocate(&self, bytes: u64, stream: Stream) -> Result<Option<Place>, UpstreamError> {
        let fits = |live: u64| live.checked_add(bytes).filter(|live| *live <= self.maximum);
        if self.live.fetch_update(Ordering::Acquire, Ordering::Relaxed, fits).is_err() {
            return Ok(None);
        }
        match self.alloc_async(bytes, stream) {
            Ok(address) => Ok(Some(Place { address, home: 0, chunk: 0 })),
            Err(error) => {
                self.live.fetch_sub(bytes, Ordering::Relaxed);
                match error {
                    UpstreamError::OutOfMemory { .. } => Ok(None),
                    error => Err(error),
                }
            }
        }
    }

    fn free(&self, place: Place, bytes: u64, stream: Stream) -> Result<(), UpstreamError> {
        // First to the driver: what is counted free must be there, or be waited for.
        let freed = self.free_async(place.address, stream);
        self.live.fetch_sub(bytes, Ordering::Release);
        freed
    }

    fn retire(&self, stream: Stream) -> Result<(), UpstreamError> {
        self.wait_for_frees(|freed| freed == stream)
    }

    fn usage(&self) -> Usage {
        let live = self.live.load(Ordering::Relaxed);
        Usage {
            taken: live,
            limit: self.maximum,
            largest_free: self.maximum - live,
            traffic: Traffic { events: self.events.load(Ordering::Relaxed), waits: 0 },
        }
    }
}

impl<U: Upstream> Drop for Asynchronous<U> {
    fn drop(&mut self) {
        // Best effort: a driver that fails here gives all back when the context ends.
        let _ = self.upstream.destroy_pool(self.pool);
    }
}
