//! NONE: the driver, for each piece, without a limit of ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::heap::Traffic;
use super::{Place, Suballocator, Usage};
use crate::memory::upstream::{Stream, Upstream, UpstreamError};

pub(super) struct Direct<U: Upstream> {
    upstream: Arc<U>,
    live: AtomicU64,
    events: AtomicU64,
}

impl<U: Upstream> Direct<U> {
    pub(super) fn new(upstream: Arc<U>) -> Self {
        Self { upstream, live: AtomicU64::new(0), events: AtomicU64::new(0) }
    }
}

impl<U: Upstream> Suballocator for Direct<U> {
    fn allocate(&self, bytes: u64, _: Stream) -> Result<Option<Place>, UpstreamError> {
        match self.upstream.alloc(bytes) {
            Ok(address) => {
                self.live.fetch_add(bytes, Ordering::Relaxed);
                Ok(Some(Place { address, home: 0, chunk: 0 }))
            }
            Err(UpstreamError::OutOfMemory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn free(&self, place: Place, bytes: u64, stream: Stream) -> Result<(), UpstreamError> {
        // The driver does not promise to wait for the work that uses it.
        self.events.fetch_add(1, Ordering::Relaxed);
        let event = self.upstream.record(stream)?;
        self.upstream.synchronize(&event)?;
        self.live.fetch_sub(bytes, Ordering::Relaxed);
        self.upstream.free(place.address)
    }

    fn retire(&self, _: Stream) -> Result<(), UpstreamError> {
        Ok(())
    }

    fn usage(&self) -> Usage {
        Usage {
            taken: self.live.load(Ordering::Relaxed),
            limit: u64::MAX,
            largest_free: 0,
            traffic: Traffic { events: self.events.load(Ordering::Relaxed), waits: 0 },
        }
    }
}
