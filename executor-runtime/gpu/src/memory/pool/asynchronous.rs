//! ASYNC: the driver's own stream-ordered pool, under our limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::heap::Traffic;
use super::{Place, Suballocator, Usage};
use crate::memory::upstream::{DriverPool, Stream, Upstream, UpstreamError};

pub(super) struct Asynchronous<U: Upstream> {
    upstream: Arc<U>,
    pool: DriverPool,
    maximum: u64,
    live: AtomicU64,
}

impl<U: Upstream> Asynchronous<U> {
    pub(super) fn new(initial: u64, maximum: u64, upstream: Arc<U>) -> Result<Self, UpstreamError> {
        let pool = upstream.create_pool(maximum)?;
        let created = Self { upstream, pool, maximum, live: AtomicU64::new(0) };
        // Freed memory stays with the pool, so this is what it has from now on.
        if initial > 0 {
            let stream = Stream::default();
            let address = created.upstream.alloc_async(pool, initial, stream)?;
            created.upstream.free_async(address, stream)?;
        }
        Ok(created)
    }
}

impl<U: Upstream> Suballocator for Asynchronous<U> {
    fn allocate(&self, bytes: u64, stream: Stream) -> Result<Option<Place>, UpstreamError> {
        let fits = |live: u64| live.checked_add(bytes).filter(|live| *live <= self.maximum);
        if self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            return Ok(None);
        }
        match self.upstream.alloc_async(self.pool, bytes, stream) {
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
        // First to the driver: what is counted free must be there.
        let freed = self.upstream.free_async(place.address, stream);
        self.live.fetch_sub(bytes, Ordering::Relaxed);
        freed
    }

    fn retire(&self, _: Stream) -> Result<(), UpstreamError> {
        Ok(())
    }

    fn usage(&self) -> Usage {
        let live = self.live.load(Ordering::Relaxed);
        Usage {
            taken: live,
            limit: self.maximum,
            largest_free: self.maximum - live,
            traffic: Traffic::default(),
        }
    }
}

impl<U: Upstream> Drop for Asynchronous<U> {
    fn drop(&mut self) {
        // Best effort: a driver that fails here gives all back when the context ends.
        let _ = self.upstream.destroy_pool(self.pool);
    }
}
