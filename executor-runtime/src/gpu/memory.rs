//! How the memory of a GPU, and of the host beside it, is divided among its queries.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use creel_gpu::device::{Context, DeviceMover, DeviceUpstream};
use creel_gpu::memory::error::Process;
use creel_gpu::memory::host::{HostBytes, HostRules};
use creel_gpu::memory::ledger::{Bytes, Ledger, Limits};
use creel_gpu::memory::pinned::PinnedPool;
use creel_gpu::memory::pool::{AllocationLog, DevicePool};
use creel_gpu::memory::semaphore::Permits;
use creel_gpu::memory::sizing::{DeviceBytes, Mib, SizingRules};
use creel_gpu::memory::spill::SpillStore;
use creel_gpu::memory::spill::disk::SpillDirectory;
use creel_settings::{PoolDebug, Settings};
use tracing::{info, warn};

use super::GpuError;

/// No query does anything with less of the GPU's memory, in bytes.
const LEAST: u64 = 64 << 10;

/// The machine around the GPU.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The host's memory that is available, or the cgroup's where that is less, in bytes.
    pub available: u64,
    /// What the engine may use of it, in bytes.
    pub engine: u64,
    /// GPUs and slices that share it.
    pub devices: u64,
    /// Tasks at one time.
    pub tasks: u64,
    /// Processes that hold memory of the GPU, for messages.
    pub holders: Vec<Process>,
}

/// Memory of a GPU, divided.
pub struct Memory {
    /// Where device memory comes from.
    pub pool: Arc<DevicePool>,
    /// Who may have how much.
    pub ledger: Ledger,
    /// Page-locked memory for copies.
    pub pinned: Arc<PinnedPool<DeviceUpstream>>,
    /// Batches at rest.
    pub spill: SpillStore<DeviceMover>,
}

/// Divides it, and takes the pool's and the slabs' part at once.
pub fn divide(
    context: &Arc<Context>,
    settings: &Settings,
    host: &Host,
    spill_dir: &Path,
) -> Result<Memory, GpuError> {
    let (free, total) = context.memory()?;
    info!("GPU memory: {} MiB, of which {} MiB are free", Mib(total), Mib(free));
    let device = DeviceBytes { total, free, integrated: false, holders: host.holders.clone() };
    let size = SizingRules::from(settings).size(&device)?;
    size.warnings.iter().for_each(|warning| warn!("{warning}"));
    info!("{size}");
    // Without a pool its first size is what would have been one.
    let limit = if size.maximum == 0 { size.initial } else { size.maximum };
    if limit < LEAST {
        return Err(GpuError::NoPool(limit));
    }
    let upstream = Arc::new(DeviceUpstream::new(context));
    let pool = DevicePool::new(&size, &upstream, log(settings.gpu_memory_debug))?;
    if pool.kind() != size.pool {
        warn!("the driver has no pools of its own: ARENA stands in for ASYNC");
    }

    let budget = HostRules::from(settings).divide(&HostBytes {
        available: host.available,
        devices: host.devices,
        engine: host.engine,
        tasks: host.tasks,
    });
    budget.warnings.iter().for_each(|warning| warn!("{warning}"));
    let pinned = PinnedPool::new(budget.pinned, &*upstream);
    if let Some(reason) = pinned.shortfall() {
        warn!("fewer page-locked slabs than wanted: {reason}");
    }

    let limits = Limits {
        bytes: Bytes::new(limit, budget.pinned, budget.pageable),
        attachment_quota: settings.gpu_memory_attachment_quota.of(limit),
        wait_timeout: settings.gpu_memory_wait_timeout,
    };
    let permits = match settings.gpu_concurrent_tasks {
        0 => Permits::measured(limit, settings.gpu_batch_bytes.0),
        tasks => Permits::fixed(tasks as u64),
    };
    let ledger = Ledger::new(limits, permits);
    let directory = SpillDirectory::new(spill_dir, settings.executor_spill_max_bytes.0);
    let mover = DeviceMover::new(context, Arc::clone(&pool), Arc::clone(&pinned))?;
    let spill = SpillStore::new(mover, budget.spill, directory);
    ledger.set_spiller(Arc::new(spill.clone()));
    Ok(Memory { pool, ledger, pinned, spill })
}

fn log(debug: PoolDebug) -> Option<AllocationLog> {
    let to: Box<dyn Write + Send> = match debug {
        PoolDebug::None => return None,
        PoolDebug::Stdout => Box::new(io::stdout()),
        PoolDebug::Stderr => Box::new(io::stderr()),
    };
    Some(AllocationLog::new(to))
}
