//! Page-locked memory of the host: slabs of one size, taken of the driver once.
//!
//! Copies between host and device are fast and don't block from page-locked memory alone, and
//! taking it of the driver is slow and stops the device. So it is taken at the start, and slabs
//! of one size can't become fragments. When all are in use, a slab is of ordinary memory, which
//! is counted: copies are slower then, and no query fails for it.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::error::MemoryError;
use super::ledger::{Kind, Query, Reservation, Task};
use super::upstream::UpstreamError;

/// Length of a slab, in bytes.
pub const SLAB: u64 = 4 << 20;

/// What slabs are reserved for.
const PURPOSE: &str = "copies";

/// What gives page-locked memory.
pub trait PinnedUpstream: Send + Sync + 'static {
    /// A piece of it; dropping it gives it back (`cuMemFreeHost`).
    type Region: Deref<Target = [u8]> + DerefMut + Send + 'static;

    /// Takes so many bytes (`cuMemHostAlloc`).
    fn pin(&self, bytes: u64) -> Result<Self::Region, UpstreamError>;
}

/// The slabs of an executor.
pub struct PinnedPool<P: PinnedUpstream> {
    free: Mutex<VecDeque<P::Region>>,
    slabs: u64,
    /// Why there are fewer slabs than there were to be.
    shortfall: Option<UpstreamError>,
    pageable: AtomicU64,
}

/// The numbers of a pinned pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedStatistics {
    /// Slabs.
    pub slabs: u64,
    /// Slabs not in use.
    pub free: u64,
    /// Slabs' worth of ordinary memory that copies used, because no slab was free.
    pub pageable: u64,
}

impl<P: PinnedUpstream> PinnedPool<P> {
    /// Takes as many slabs as fit into so many bytes, or as many as the driver gives:
    /// [`PinnedPool::shortfall`] says why these are fewer.
    pub fn new(bytes: u64, upstream: &P) -> Arc<Self> {
        let mut shortfall = None;
        let mut free = VecDeque::new();
        for _ in 0..bytes / SLAB {
            match upstream.pin(SLAB) {
                Ok(region) => free.push_back(region),
                Err(error) => {
                    shortfall = Some(error);
                    break;
                }
            }
        }
        let slabs = free.len() as u64;
        Arc::new(Self { free: Mutex::new(free), slabs, shortfall, pageable: AtomicU64::new(0) })
    }

    /// Why the driver gave fewer slabs than it was asked for.
    pub fn shortfall(&self) -> Option<&UpstreamError> {
        self.shortfall.as_ref()
    }

    /// A slab; of ordinary memory of the host, for which the task may have to wait, if no other
    /// is free. What was in it before is still there.
    #[track_caller]
    pub fn take(self: &Arc<Self>, task: &Task) -> Result<Slab<P>, MemoryError> {
        if let Some(slab) = self.try_take(task.query()) {
            return Ok(slab);
        }
        self.count_pageable();
        let reservation = task.reserve(Kind::Host, SLAB, PURPOSE)?;
        let bytes = Bytes::Pageable(vec![0; SLAB as usize].into_boxed_slice());
        Ok(Slab { bytes, _reservation: reservation })
    }

    /// A slab of page-locked memory, if one is free.
    #[track_caller]
    pub fn try_take(self: &Arc<Self>, query: &Query) -> Option<Slab<P>> {
        // First the ledger, so that whoever has bytes of it finds a slab.
        let reservation = query.try_reserve(Kind::Pinned, SLAB, PURPOSE)?;
        let region = self.free.lock().pop_front()?;
        let bytes = Bytes::Pinned(Some(region), Arc::clone(self));
        Some(Slab { bytes, _reservation: reservation })
    }

    /// Notes that a copy does without a slab.
    pub(crate) fn count_pageable(&self) {
        self.pageable.fetch_add(1, Ordering::Relaxed);
    }

    /// Its numbers now.
    pub fn statistics(&self) -> PinnedStatistics {
        PinnedStatistics {
            slabs: self.slabs,
            free: self.free.lock().len() as u64,
            pageable: self.pageable.load(Ordering::Relaxed),
        }
    }
}

/// [`SLAB`] bytes of the host, which go back when they are dropped.
pub struct Slab<P: PinnedUpstream> {
    // In this order: what is free in the ledger must be free in the pool.
    bytes: Bytes<P>,
    _reservation: Reservation,
}

enum Bytes<P: PinnedUpstream> {
    /// `None` only while it is dropped.
    Pinned(Option<P::Region>, Arc<PinnedPool<P>>),
    Pageable(Box<[u8]>),
}

impl<P: PinnedUpstream> Slab<P> {
    /// Whether copies from and to it are fast.
    pub fn is_pinned(&self) -> bool {
        matches!(self.bytes, Bytes::Pinned(..))
    }
}

impl<P: PinnedUpstream> Deref for Slab<P> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Pinned(region, _) => region.as_ref().expect("a slab that lives"),
            Bytes::Pageable(bytes) => bytes,
        }
    }
}

impl<P: PinnedUpstream> DerefMut for Slab<P> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.bytes {
            Bytes::Pinned(region, _) => region.as_mut().expect("a slab that lives"),
            Bytes::Pageable(bytes) => bytes,
        }
    }
}

impl<P: PinnedUpstream> Drop for Bytes<P> {
    fn drop(&mut self) {
        if let Self::Pinned(region, pool) = self {
            pool.free.lock().extend(region.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::memory::error::Recovery;
    use crate::memory::ledger::{self, Ledger, Limits};
    use crate::memory::semaphore::Permits;

    struct Driver {
        left: AtomicU64,
    }

    impl PinnedUpstream for Driver {
        type Region = Box<[u8]>;

        fn pin(&self, bytes: u64) -> Result<Box<[u8]>, UpstreamError> {
            let take = |left: u64| left.checked_sub(bytes);
            self.left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .map_err(|_| UpstreamError::OutOfMemory { bytes })?;
            Ok(vec![0; bytes as usize].into())
        }
    }

    fn ledger(pinned: u64, host: u64) -> Ledger {
        let bytes = ledger::Bytes::new(0, pinned, host);
        let wait_timeout = Duration::from_mins(10);
        Ledger::new(Limits { bytes, attachment_quota: 0, wait_timeout }, Permits::fixed(1))
    }

    #[test]
    fn slabs_come_back_and_ordinary_memory_stands_in() {
        let pool = PinnedPool::new(2 * SLAB + 1, &Driver { left: AtomicU64::new(u64::MAX) });
        assert!(pool.shortfall().is_none());
        let ledger = ledger(2 * SLAB, SLAB);
        let query = ledger.attach("a").query("q");
        let task = query.task(0);
        let mut slabs: Vec<_> = (0..3).map(|_| pool.take(&task).unwrap()).collect();
        assert_eq!(slabs.iter().map(Slab::is_pinned).collect::<Vec<_>>(), [true, true, false]);
        assert!(slabs.iter().all(|slab| slab.len() as u64 == SLAB));
        slabs[0][5] = 7;
        let statistics = PinnedStatistics { slabs: 2, free: 0, pageable: 1 };
        assert_eq!(pool.statistics(), statistics);
        // The host's limit holds for them.
        assert_eq!(pool.take(&task).err().map(|error| error.recovery()), Some(Recovery::Retry));
        slabs.clear();
        assert!(pool.take(&task).unwrap().is_pinned());
        assert_eq!(pool.statistics().free, 2);
        drop(task);
        query.finish().unwrap();
        assert_eq!(ledger.report().used, ledger::Bytes::default());
    }

    #[test]
    fn a_driver_that_has_less_gives_less() {
        let pool = PinnedPool::new(8 * SLAB, &Driver { left: AtomicU64::new(3 * SLAB) });
        assert_eq!(pool.statistics().slabs, 3);
        assert!(matches!(pool.shortfall(), Some(UpstreamError::OutOfMemory { .. })));
    }
}
