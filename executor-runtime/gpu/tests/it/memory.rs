//! A pool, slabs and a ledger on a test's device.

use std::sync::Arc;
use std::time::Duration;

use creel_gpu::device::{Context, DeviceUpstream};
use creel_gpu::memory::ledger::{Bytes, Ledger, Limits};
use creel_gpu::memory::pinned::{PinnedPool, SLAB};
use creel_gpu::memory::pool::DevicePool;
use creel_gpu::memory::semaphore::Permits;
use creel_gpu::memory::sizing::PoolSize;
use creel_settings::{PoolKind, PoolSizing};

/// The pools that tests of memory run with: pieces of one allocation, and an allocation for each
/// piece, beyond whose end is none of ours.
pub(crate) const KINDS: [PoolKind; 2] = [PoolKind::Arena, PoolKind::None];

/// Bytes of the device in a [`Memory`].
pub(crate) const DEVICE: u64 = 96 << 20;

pub(crate) struct Memory {
    pub(crate) pool: Arc<DevicePool>,
    pub(crate) slabs: Arc<PinnedPool<DeviceUpstream>>,
    pub(crate) ledger: Ledger,
}

impl Memory {
    pub(crate) fn new(context: &Arc<Context>, kind: PoolKind, slabs: u64) -> Self {
        let upstream = Arc::new(DeviceUpstream::new(context));
        let pinned = slabs * SLAB;
        let limits = Limits {
            bytes: Bytes::new(DEVICE, pinned, 1 << 30),
            attachment_quota: DEVICE,
            wait_timeout: Duration::from_mins(1),
        };
        Memory {
            // Larger than what the ledger gives, so that fragments are no matter.
            pool: pool(&upstream, kind, 2 * DEVICE),
            slabs: PinnedPool::new(pinned, &*upstream),
            ledger: Ledger::new(limits, Permits::fixed(4)),
        }
    }
}

/// A pool of so many bytes.
pub(crate) fn pool(upstream: &Arc<DeviceUpstream>, kind: PoolKind, bytes: u64) -> Arc<DevicePool> {
    let size = PoolSize {
        sizing: PoolSizing::Classic,
        pool: kind,
        initial: bytes,
        maximum: bytes,
        warnings: vec![],
    };
    DevicePool::new(&size, upstream, None).expect("a pool")
}
