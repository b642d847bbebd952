//! The executor's GPU.
//!
//! ```text
//!   Gpu ── context, pool, ledger, pinned slabs, batches at rest; from the executor's start to its end
//!     └── GpuQuery ── what a query has of it; at its end everything must have been given back
//!           └── Work ── a region of its plan: a thread, a stream, a turn on the GPU
//! ```
//!
//! An executor lives from the first attachment of its user to the last, and an idle time. So does
//! what it holds of the GPU: where nobody attaches, the GPU stays empty.
//!
//! - [`memory`]: how its memory is divided.
//! - [`query`]: a query's account.
//! - [`work`]: a region's work.
//! - [`mod@error`]: what can go wrong.

pub mod error;
pub mod memory;
pub mod query;
pub mod work;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use creel_gpu::device::{Context, Copier, DeviceMover, DeviceUpstream, Driver, Stream};
use creel_gpu::memory::ledger::Ledger;
use creel_gpu::memory::pinned::PinnedPool;
use creel_gpu::memory::pool::DevicePool;
use creel_gpu::memory::spill::SpillStore;
use creel_settings::{Settings, Value};
use creel_wire::{
    AccountReport, GpuReport, LedgerReport, PoolReport, SemaphoreReport, SpillReport,
};
use tokio::sync::watch;
use tracing::{error, info};

pub use error::GpuError;
pub use query::{GpuAttachment, GpuQuery};
pub use work::Work;

use self::memory::Host;

/// The executor's GPU, or slice of one.
pub struct Gpu {
    context: Arc<Context>,
    pool: Arc<DevicePool>,
    ledger: Ledger,
    pinned: Arc<PinnedPool<DeviceUpstream>>,
    spill: SpillStore<DeviceMover>,
    concurrent_tasks: u64,
    leaks: AtomicU64,
    failure: watch::Sender<Option<String>>,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({})", self.context.device().name)
    }
}

impl Gpu {
    /// Opens the device of a UUID, and takes its pool. `spill_dir` exists; it is for batches that
    /// neither the device nor the host has room for.
    pub fn open(
        uuid: &str,
        settings: &Settings,
        host: &Host,
        spill_dir: &Path,
    ) -> Result<Arc<Self>, GpuError> {
        let context = Driver::start()?.device(uuid)?.open()?;
        // Kernels that the driver doesn't take should be known of before anything is planned.
        context.load()?;
        let memory::Memory { pool, ledger, pinned, spill } =
            memory::divide(&context, settings, host, spill_dir)?;
        let device = context.device();
        let (major, minor) = device.capability;
        info!(name = device.name, uuid, compute_capability = %format!("{major}.{minor}"), "GPU");
        Ok(Arc::new(Self {
            context,
            pool,
            ledger,
            pinned,
            spill,
            concurrent_tasks: settings.gpu_concurrent_tasks as u64,
            leaks: AtomicU64::new(0),
            failure: watch::Sender::new(None),
        }))
    }

    /// The device in use.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Where device memory comes from.
    pub fn pool(&self) -> &Arc<DevicePool> {
        &self.pool
    }

    /// Who may have how much.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Copies in the order of a stream.
    pub fn copier(&self, stream: &Arc<Stream>) -> Copier {
        Copier::new(Arc::clone(stream), Arc::clone(&self.pinned))
    }

    /// Batches at rest.
    pub fn spill(&self) -> &SpillStore<DeviceMover> {
        &self.spill
    }

    /// Says that no call of the driver works any more. The first reason counts.
    pub fn fail(&self, reason: &str) {
        self.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            if first {
                error!("the GPU failed: {reason}");
                *failure = Some(reason.to_owned());
            }
            first
        });
    }

    /// Whether no call of the driver works any more.
    pub fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Waits until the GPU fails for good, and says why.
    pub async fn failed(&self) -> String {
        let mut failure = self.failure.subscribe();
        let failed = failure.wait_for(Option::is_some).await;
        failed.ok().and_then(|reason| reason.clone()).unwrap_or_default()
    }

    /// Counts a query that did not give back what it took.
    fn count_leak(&self) {
        self.leaks.fetch_add(1, Ordering::Relaxed);
    }

    /// Queries so far that did not give back what they took: bugs.
    pub fn leaks(&self) -> u64 {
        self.leaks.load(Ordering::Relaxed)
    }

    /// How it stands.
    pub fn report(&self) -> GpuReport {
        use creel_gpu::memory::ledger::Kind;
        let pool = self.pool.statistics();
        let ledger = self.ledger.report();
        let spill = self.spill.statistics();
        let account = |kind| AccountReport {
            limit: ledger.limits.of(kind),
            used: ledger.used.of(kind),
            peak: ledger.peak.of(kind),
        };
        GpuReport {
            pool: PoolReport {
                kind: self.pool.kind().text(),
                limit: (pool.limit != u64::MAX).then_some(pool.limit),
                taken: pool.taken,
                live: pool.live,
                peak: pool.peak,
                largest_free: pool.largest_free,
                allocations: pool.allocations,
                failures: pool.failures,
            },
            ledger: LedgerReport {
                device: account(Kind::Device),
                pinned: account(Kind::Pinned),
                host: account(Kind::Host),
                waiting: ledger.waiting as u64,
                waits: ledger.events.waits,
                retries: ledger.events.retries,
                splits: ledger.events.splits,
                refusals: ledger.events.refusals,
            },
            semaphore: SemaphoreReport {
                tasks: self.concurrent_tasks,
                holding: ledger.permits as u64,
                waiting: ledger.waiting_for_permit as u64,
            },
            spill: SpillReport {
                batches: spill.batches,
                host: spill.host,
                disk: spill.disk,
                to_host: spill.to_host,
                to_disk: spill.to_disk,
                failures: spill.failures,
            },
        }
    }
}
