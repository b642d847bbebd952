//! A region's work: its task, its stream, its turn on the GPU.

use std::cell::Cell;
use std::sync::Arc;

use creel_gpu::device::{Copier, Region, Stream};
use creel_gpu::memory::ledger::{DeviceBuffer, Task};
use creel_gpu::memory::semaphore::Permit;
use datafusion::arrow::array::RecordBatch;
use datafusion::error::Result;
use datafusion::physical_plan::metrics::Time;
use tokio::runtime::Handle;
use tokio::sync::mpsc::Sender;

use super::{Gpu, GpuError};

/// What a region's operators have at hand, on the region's thread.
pub struct Work<'a> {
    gpu: &'a Gpu,
    task: &'a Task,
    copier: Arc<Copier>,
    uploads: Arc<Copier>,
    threads: Handle,
    /// Closed when nobody waits for the region's batches any more.
    reader: Sender<Result<RecordBatch>>,
    permit: Option<Permit<'a>>,
    waited: Time,
    unspilled: Cell<u64>,
}

impl<'a> Work<'a> {
    /// A region's work, of the query whose task that is, on the copier's stream; `uploads` has a
    /// stream of its own, so that the next batch is copied beside the kernels of the last. `waited`
    /// counts the time that it waits for its turn, and `reader` is where its batches go.
    pub fn new(
        gpu: &'a Gpu,
        task: &'a Task,
        [copier, uploads]: [Copier; 2],
        threads: Handle,
        reader: Sender<Result<RecordBatch>>,
        waited: Time,
    ) -> Self {
        let (copier, uploads) = (Arc::new(copier), Arc::new(uploads));
        let unspilled = Cell::new(0);
        Self { gpu, task, copier, uploads, threads, reader, permit: None, waited, unspilled }
    }

    /// The same work on the stream of uploads. What comes of it is at rest, and so in order with
    /// whoever holds it.
    #[must_use]
    pub fn uploading(&self) -> Work<'a> {
        Work {
            copier: Arc::clone(&self.uploads),
            uploads: Arc::clone(&self.uploads),
            threads: self.threads.clone(),
            reader: self.reader.clone(),
            permit: None,
            waited: self.waited.clone(),
            unspilled: Cell::new(0),
            ..*self
        }
    }

    /// The GPU.
    pub fn gpu(&self) -> &'a Gpu {
        self.gpu
    }

    /// Who asks for memory.
    pub fn task(&self) -> &'a Task {
        self.task
    }

    /// Where everything of the region happens, in order.
    pub fn stream(&self) -> &Arc<Stream> {
        self.copier.stream()
    }

    /// Waits for the region's turn on the GPU.
    pub fn begin(&mut self) -> Result<(), GpuError> {
        if self.permit.is_none() {
            let _waited = self.waited.timer();
            self.permit = Some(self.task.acquire()?);
        }
        Ok(())
    }

    /// Waits for something that isn't the GPU, and lets others have their turn meanwhile.
    pub fn wait_for<T>(&mut self, something: impl Future<Output = T>) -> Result<T, GpuError> {
        self.permit = None;
        let (threads, reader) = (&self.threads, &self.reader);
        self.task.idle(|| {
            threads.block_on(async {
                tokio::select! {
                    biased;
                    () = reader.closed() => Err(GpuError::Unwanted),
                    result = something => Ok(result),
                }
            })
        })
    }

    /// Hands a batch out; waits while the reader has enough.
    pub fn send(&mut self, batch: RecordBatch) -> Result<(), GpuError> {
        let reader = self.reader.clone();
        let sent = self.wait_for(async move { reader.send(Ok(batch)).await })?;
        sent.map_err(|_| GpuError::Unwanted)
    }

    /// Copies pieces to the device, one behind the other. They aren't needed any more when this
    /// returns.
    pub fn upload<'p>(
        &self,
        pieces: impl IntoIterator<Item = &'p [u8]>,
        to: Region,
    ) -> Result<(), GpuError> {
        Ok(self.copier.upload(self.task, pieces, to)?)
    }

    /// Copies bytes from the device, which are there when this returns.
    pub fn download(&self, from: Region, to: &mut [u8]) -> Result<(), GpuError> {
        Ok(self.copier.download(self.task, from, to)?)
    }

    /// Bytes so far that had left the device and were brought back.
    pub fn unspilled(&self) -> u64 {
        self.unspilled.get()
    }

    /// Counts bytes that had left the device and were brought back.
    pub fn count_unspilled(&self, bytes: u64) {
        self.unspilled.set(self.unspilled.get() + bytes);
    }

    /// Device memory for the region's stream.
    #[track_caller]
    pub fn allocate(&self, bytes: u64, purpose: &'static str) -> Result<DeviceBuffer, GpuError> {
        let (pool, stream) = (self.gpu.pool(), self.stream().id());
        Ok(self.task.allocate(pool, bytes, stream, purpose)?)
    }
}
