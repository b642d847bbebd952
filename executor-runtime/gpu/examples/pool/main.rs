//! The pools on generated traces, and malloc on the same: one JSON object a line, for
//! `scripts/bench pool`.

mod heap;
mod measure;
mod trace;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use creel_gpu::memory::pool::{DeviceMemory, DevicePool};
use creel_gpu::memory::sizing::PoolSize;
use creel_gpu::memory::upstream::{DevicePtr, DriverPool, Stream, Upstream, UpstreamError};
use creel_settings::{PoolKind, PoolSizing};

use crate::trace::{Kind, Trace};

/// What the traces have in use, in bytes.
const LOAD: u64 = 16 << 30;

/// How long the device takes to do what it was given.
const LATENCY: Duration = Duration::from_micros(50);

fn main() {
    for (name, kind) in [("arena", PoolKind::Arena), ("default", PoolKind::Default)] {
        for of in Kind::ALL {
            for threads in [1, 2_usize] {
                let traces: Vec<_> = (0..threads)
                    .map(|thread| of.trace(LOAD / threads as u64, thread as u64))
                    .collect();
                let pool = pool(kind, LOAD + LOAD / 4);
                let time = measure::time(&traces, |thread, bytes| take(&pool, bytes, thread));
                let rest =
                    if threads == 1 { fragmentation(kind, &traces[0]) } else { String::new() };
                measure::line(name, of.name(), threads, time, &rest);
            }
        }
    }
    heap::run("malloc", LOAD);
}

/// What is lost of the smallest pool in which the trace runs, in percent; and how many of its
/// allocations fail where it has 95 % of the pool in use.
fn fragmentation(kind: PoolKind, trace: &Trace) -> String {
    let failures = |bytes: u64| {
        let pool = pool(kind, bytes);
        measure::play(trace, |bytes| take(&pool, bytes, 0))
    };
    let (mut too_small, mut enough) = (trace.peak, trace.peak + trace.peak / 2);
    while enough - too_small > trace.peak / 200 {
        let middle = too_small.midpoint(enough) / 512 * 512;
        if failures(middle) == 0 { enough = middle } else { too_small = middle }
    }
    let lost = (enough - trace.peak) as f64 / enough as f64 * 100.0;
    let at_95 = failures((trace.peak as f64 / 0.95) as u64);
    let allocations = trace.operations.len() / 2;
    format!(r#","lost":{lost:.2},"failures":{at_95},"allocations":{allocations}"#)
}

fn pool(kind: PoolKind, bytes: u64) -> Arc<DevicePool> {
    let size = PoolSize {
        sizing: PoolSizing::Current,
        pool: kind,
        initial: bytes,
        maximum: bytes,
        warnings: Vec::new(),
    };
    DevicePool::new(&size, &Arc::new(AddressSpace::default()), None).expect("there is no end of it")
}

fn take(pool: &Arc<DevicePool>, bytes: u64, thread: usize) -> Option<DeviceMemory> {
    pool.allocate(bytes, Stream(thread as u64 + 1)).ok()
}

/// Addresses, and a device that does everything after a while.
#[derive(Default)]
struct AddressSpace {
    taken: AtomicU64,
}

impl Upstream for AddressSpace {
    type Event = Instant;

    fn alloc(&self, bytes: u64) -> Result<DevicePtr, UpstreamError> {
        Ok(self.taken.fetch_add(bytes.next_multiple_of(1 << 21), Ordering::Relaxed))
    }

    fn free(&self, _: DevicePtr) -> Result<(), UpstreamError> {
        Ok(())
    }

    fn create_pool(&self, _: u64) -> Result<DriverPool, UpstreamError> {
        Err(UpstreamError::Unsupported { call: "cuMemPoolCreate" })
    }

    fn destroy_pool(&self, _: DriverPool) -> Result<(), UpstreamError> {
        Ok(())
    }

    fn alloc_async(
        &self,
        _: DriverPool,
        bytes: u64,
        _: Stream,
    ) -> Result<DevicePtr, UpstreamError> {
        self.alloc(bytes)
    }

    fn free_async(&self, _: DevicePtr, _: Stream) -> Result<(), UpstreamError> {
        Ok(())
    }

    fn record(&self, _: Stream) -> Result<Instant, UpstreamError> {
        Ok(Instant::now())
    }

    fn is_complete(&self, event: &Instant) -> Result<bool, UpstreamError> {
        Ok(event.elapsed() > LATENCY)
    }

    fn wait(&self, _: Stream, _: &Instant) -> Result<(), UpstreamError> {
        Ok(())
    }

    fn synchronize(&self, event: &Instant) -> Result<(), UpstreamError> {
        std::thread::sleep(LATENCY.saturating_sub(event.elapsed()));
        Ok(())
    }
}
