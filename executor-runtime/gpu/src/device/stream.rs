//! Work in order.

use std::ffi::c_uint;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::error::Named;
use super::{Context, DeviceError, Event, HostMemory, Region, Transfer};

/// A stream: copies, fills and launches, one after the other, beside those of other streams.
///
/// When it is dropped, its work goes on, and the next who asks for a stream gets it.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    pub(super) handle: sys::CUstream,
}

// SAFETY: the driver's handles may be used from any thread, by several at once.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(super) fn new(context: Arc<Context>) -> Result<Self, DeviceError> {
        context.bind()?;
        let idle = context.idle_streams().pop_front();
        let handle = match idle {
            Some(handle) => handle,
            None => result::stream::create(result::stream::StreamKind::NonBlocking)
                .named("cuStreamCreate")?,
        };
        Ok(Stream { context, handle })
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Its handle, as memory pools take it.
    pub fn id(&self) -> crate::memory::upstream::Stream {
        crate::memory::upstream::Stream(self.handle.expose_provenance() as u64)
    }

    /// Blocks until all its work is done, and says what of it failed.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: the stream is there.
        unsafe { result::stream::synchronize(self.handle) }.named("cuStreamSynchronize")
    }

    /// Lets what it is given from now on wait for the event.
    pub fn wait(&self, event: &Event) -> Result<(), DeviceError> {
        self.context.bind()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are there.
        unsafe { result::stream::wait_event(self.handle, event.handle, flags) }
            .named("cuStreamWaitEvent")
    }

    /// Sets every byte of the region.
    pub fn fill(&self, region: Region, byte: u8) -> Result<(), DeviceError> {
        if region.bytes() == 0 {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: the region is device memory; the driver refuses what isn't.
        unsafe {
            result::memset_d8_async(region.address(), byte, region.bytes() as usize, self.handle)
        }
        .named("cuMemsetD8Async")
    }

    /// Copies within the device.
    pub fn copy(&self, from: Region, to: Region) -> Result<(), DeviceError> {
        let to = to.holds("a copy", from.bytes(), 1)?;
        if from.bytes() == 0 {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: both are device memory, and `to` is as long.
        unsafe { result::memcpy_dtod_async(to, from.address(), from.bytes() as usize, self.handle) }
            .named("cuMemcpyDtoDAsync")
    }

    /// Copies to the device, and blocks until that is done: for what is small.
    pub fn upload(&self, from: &[u8], to: Region) -> Result<(), DeviceError> {
        let to = to.holds("an upload", from.len(), 1)?;
        if from.is_empty() {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: `to` is as long, and the slice lives until the stream is synchronized.
        unsafe { result::memcpy_htod_async(to, from, self.handle) }.named("cuMemcpyHtoDAsync")?;
        self.synchronize()
    }

    /// Copies from the device, after all that the stream has until now, and blocks until it is there.
    pub fn download(&self, from: Region, to: &mut [u8]) -> Result<(), DeviceError> {
        let from = from.holds("a download", to.len(), 1)?;
        if to.is_empty() {
            return self.synchronize();
        }
        self.context.bind()?;
        // SAFETY: `from` is as long, and the slice lives until the stream is synchronized.
        unsafe { result::memcpy_dtoh_async(to, from, self.handle) }.named("cuMemcpyDtoHAsync")?;
        self.synchronize()
    }

    /// A number that a kernel has written.
    pub fn download_u64(&self, from: Region) -> Result<u64, DeviceError> {
        let mut bytes = [0; 8];
        self.download(from, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Begins to copy the first bytes of the host's memory to the region, beside what other streams
    /// do if that memory is pinned. It comes back when the copy is done.
    pub fn upload_from<M: HostMemory>(
        &self,
        from: M,
        bytes: usize,
        to: Region,
    ) -> Result<Transfer<M>, DeviceError> {
        let to = to.holds("an upload", bytes, 1)?;
        let source = has_room(&from, bytes)?.as_ptr();
        self.context.bind()?;
        // SAFETY: both are as long; the transfer keeps the source until the copy is done.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(to, source.cast(), bytes, self.handle) };
        copied.named("cuMemcpyHtoDAsync")?;
        Transfer::new(self, from)
    }

    /// Begins to copy the region to where the host's memory begins.
    pub fn download_into<M: HostMemory>(
        &self,
        from: Region,
        mut to: M,
    ) -> Result<Transfer<M>, DeviceError> {
        let bytes = from.bytes() as usize;
        has_room(&to, bytes)?;
        let target = to.as_mut_ptr();
        self.context.bind()?;
        // SAFETY: both are as long; the transfer keeps the target until the copy is done, and lets
        // nobody see it before.
        let copied =
            unsafe { sys::cuMemcpyDtoHAsync_v2(target.cast(), from.address(), bytes, self.handle) };
        copied.named("cuMemcpyDtoHAsync")?;
        Transfer::new(self, to)
    }

    pub(super) fn launch(
        &self,
        kernel: &'static str,
        blocks: c_uint,
        threads: c_uint,
        shared_bytes: c_uint,
        arguments: &mut [*mut std::ffi::c_void],
    ) -> Result<(), DeviceError> {
        let function = self.context.function(kernel)?;
        self.context.bind()?;
        // SAFETY: the function is of a loaded module; the driver copies arguments at once. That they
        // are those of the kernel is up to `primitives`, where each kernel has one caller.
        unsafe {
            result::launch_kernel(
                function,
                (blocks, 1, 1),
                (threads, 1, 1),
                shared_bytes,
                self.handle,
                arguments,
            )
        }
        .named(&format!("cuLaunchKernel of {kernel}"))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.context.idle_streams().push_back(self.handle);
    }
}

/// The memory, if it has so many bytes.
fn has_room(memory: &[u8], bytes: usize) -> Result<&[u8], DeviceError> {
    if bytes > memory.len() {
        let (bytes, needed) = (memory.len() as u64, bytes as u64);
        return Err(DeviceError::TooSmall { what: "the host's memory", bytes, needed });
    }
    Ok(memory)
}
