//! A device to measure on.

use std::sync::Arc;
use std::time::Duration;

use creel_gpu::device::{Context, DeviceError, DeviceUpstream, Event, Region, Stream};
use creel_gpu::memory::error::MemoryError;
use creel_gpu::memory::pool::{DeviceMemory, DevicePool};
use creel_gpu::memory::sizing::PoolSize;
use creel_settings::{PoolKind, PoolSizing};

/// Runs of which the middle one counts.
const ROUNDS: usize = 9;

pub(crate) struct Bench {
    pub(crate) context: Arc<Context>,
    pub(crate) stream: Arc<Stream>,
    pool: Arc<DevicePool>,
}

impl Bench {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, MemoryError> {
        let stream = context.stream().expect("a context that was just opened has streams");
        let pool = pool(context, PoolKind::None, 0)?;
        Ok(Bench { context: Arc::clone(context), stream: Arc::new(stream), pool })
    }

    /// Memory of the device.
    pub(crate) fn room(&self, bytes: u64) -> Result<DeviceMemory, MemoryError> {
        self.pool.allocate(bytes, self.stream.id())
    }

    /// Memory with these bytes.
    pub(crate) fn put(&self, bytes: &[u8]) -> Result<DeviceMemory, Box<dyn std::error::Error>> {
        let memory = self.room(bytes.len() as u64)?;
        self.stream.upload(bytes, Region::from(&memory))?;
        Ok(memory)
    }

    /// The device's time for work on the stream.
    pub(crate) fn time(
        &self,
        mut work: impl FnMut() -> Result<(), DeviceError>,
    ) -> Result<Duration, DeviceError> {
        // The driver compiles a kernel when it is first asked for.
        work()?;
        let mut rounds = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = Event::record(&self.stream, true)?;
            work()?;
            let end = Event::record(&self.stream, true)?;
            end.wait()?;
            rounds.push(end.since(&start)?);
        }
        rounds.sort_unstable();
        Ok(rounds[ROUNDS / 2])
    }
}

/// A pool of so many bytes.
pub(crate) fn pool(
    context: &Arc<Context>,
    kind: PoolKind,
    bytes: u64,
) -> Result<Arc<DevicePool>, MemoryError> {
    let size = PoolSize {
        sizing: PoolSizing::Current,
        pool: kind,
        initial: bytes,
        maximum: bytes,
        warnings: Vec::new(),
    };
    DevicePool::new(&size, &Arc::new(DeviceUpstream::new(context)), None)
}
