//! Batches at rest on their way between the device and the host.

use std::sync::Arc;

use super::{Context, Copier, DeviceError, DeviceUpstream, Region, Stream};
use crate::memory::error::MemoryError;
use crate::memory::ledger::{DeviceBuffer, Task};
use crate::memory::pinned::PinnedPool;
use crate::memory::pool::DevicePool;
use crate::memory::spill::Mover;
use crate::memory::upstream::{self, Upstream};

/// Copies buffers of a pool, on streams of its own.
pub struct DeviceMover {
    upstream: DeviceUpstream,
    pool: Arc<DevicePool>,
    slabs: Arc<PinnedPool<DeviceUpstream>>,
    down: Arc<Stream>,
    up: Arc<Stream>,
}

impl DeviceMover {
    /// For the pool's buffers, through these slabs.
    pub fn new(
        context: &Arc<Context>,
        pool: Arc<DevicePool>,
        slabs: Arc<PinnedPool<DeviceUpstream>>,
    ) -> Result<Self, DeviceError> {
        let (down, up) = (Arc::new(context.stream()?), Arc::new(context.stream()?));
        Ok(DeviceMover { upstream: DeviceUpstream::new(context), pool, slabs, down, up })
    }

    /// For one query alone: its slabs have gone back when the copier has.
    fn copier(&self, stream: &Arc<Stream>) -> Copier {
        Copier::new(Arc::clone(stream), Arc::clone(&self.slabs))
    }

    /// What `after` is given from now on comes after what `before` has until now.
    fn order(&self, before: upstream::Stream, after: upstream::Stream) -> Result<(), MemoryError> {
        if before != after {
            let event = self.upstream.record(before)?;
            self.upstream.wait(after, &event)?;
        }
        Ok(())
    }
}

/// The streams of some buffers, each once.
fn streams(buffers: &[DeviceBuffer]) -> Vec<upstream::Stream> {
    let mut streams: Vec<_> = buffers.iter().map(DeviceBuffer::stream).collect();
    streams.sort_unstable();
    streams.dedup();
    streams
}

impl Mover for DeviceMover {
    type Buffer = DeviceBuffer;
    type Stream = Stream;

    fn reserved(&self, buffer: &DeviceBuffer) -> u64 {
        buffer.reserved()
    }

    fn download(&self, buffer: &DeviceBuffer) -> Result<Vec<u8>, MemoryError> {
        self.order(buffer.stream(), self.down.id())?;
        let mut bytes = vec![0; buffer.bytes() as usize];
        self.copier(&self.down).download_for(buffer.query(), Region::from(buffer), &mut bytes)?;
        Ok(bytes)
    }

    #[track_caller]
    fn upload(&self, task: &Task, bytes: &[u8]) -> Result<DeviceBuffer, MemoryError> {
        const PURPOSE: &str = "a batch that was spilled";
        let buffer = task.allocate(&self.pool, bytes.len() as u64, self.up.id(), PURPOSE)?;
        let copier = self.copier(&self.up);
        copier.upload(task, [bytes], Region::from(&buffer))?;
        copier.wait()?;
        Ok(buffer)
    }

    fn begin_use(&self, buffers: &[DeviceBuffer], stream: &Stream) -> Result<(), MemoryError> {
        streams(buffers).into_iter().try_for_each(|own| self.order(own, stream.id()))
    }

    fn end_use(&self, buffers: &[DeviceBuffer], stream: &Stream) -> Result<(), MemoryError> {
        let ordered = streams(buffers).into_iter().try_for_each(|own| self.order(stream.id(), own));
        ordered.or_else(|error| {
            // Without an event there is the wait for all of it.
            stream.synchronize().map_err(|_| error)
        })
    }
}
