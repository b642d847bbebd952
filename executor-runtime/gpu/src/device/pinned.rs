//! Host memory that the device reads and writes by itself, beside what the CPU does.

use std::ffi::{c_uint, c_void};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use cudarc::driver::result;

use super::error::Named;
use super::{Context, DeviceError, DeviceUpstream, Event, Stream};
use crate::memory::pinned::Slab;

/// Page-locked host memory. Taking it is slow: keep it.
#[derive(Debug)]
pub struct PinnedMemory {
    context: Arc<Context>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: it is memory, owned by this value alone.
unsafe impl Send for PinnedMemory {}
// SAFETY: it changes only through a mutable reference.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Takes it, filled with 0. Cached by the CPU: reading what was downloaded is fast.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DeviceError> {
        context.bind()?;
        let flags: c_uint = 0;
        let bytes = bytes.max(1);
        // SAFETY: `drop` frees it.
        let start: *mut c_void =
            unsafe { result::malloc_host(bytes, flags) }.named("cuMemHostAlloc")?;
        let start = start.cast::<u8>();
        // SAFETY: the driver gave so many bytes; they are initialised before anybody sees them.
        unsafe { start.write_bytes(0, bytes) };
        Ok(PinnedMemory { context: Arc::clone(context), start, bytes })
    }
}

impl Deref for PinnedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: it is initialised, and no copy is under way: a transfer owns the memory.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl DerefMut for PinnedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the reference is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: it came from `malloc_host`, and nothing uses it any more.
        unsafe {
            let _ = result::ctx::set_current(self.context.handle());
            let _ = result::free_host(self.start.cast());
        }
    }
}

/// Bytes of the host that the device may read and write while their owner is kept from everybody.
///
/// # Safety
///
/// The bytes stay where they are when the owner is moved, and until it is dropped.
pub unsafe trait HostMemory: DerefMut<Target = [u8]> + Send {}

// SAFETY: the driver's memory is freed when it is dropped.
unsafe impl HostMemory for PinnedMemory {}

// SAFETY: a slab is such memory or a box of bytes; it goes to its pool when it is dropped.
unsafe impl HostMemory for Slab<DeviceUpstream> {}

/// A copy under way, and the host's memory that it reads or writes.
#[derive(Debug)]
pub struct Transfer<M> {
    done: Option<Event>,
    memory: Option<M>,
}

impl<M> Transfer<M> {
    /// After the copy was given to the stream.
    pub(super) fn new(stream: &Stream, memory: M) -> Result<Self, DeviceError> {
        let mut transfer = Transfer { done: None, memory: Some(memory) };
        match Event::record(stream, false) {
            Ok(event) => {
                transfer.done = Some(event);
                Ok(transfer)
            }
            Err(error) => {
                // There is no event to wait for: the whole stream, or if that fails too, never.
                if stream.synchronize().is_err() {
                    std::mem::forget(transfer.memory.take());
                }
                Err(error)
            }
        }
    }

    /// Whether it is done.
    pub fn is_done(&self) -> Result<bool, DeviceError> {
        self.done.as_ref().map_or(Ok(true), Event::is_past)
    }

    /// Blocks until it is done, and gives the memory back.
    pub fn wait(mut self) -> Result<M, DeviceError> {
        if let Some(event) = &self.done {
            event.wait()?;
        }
        self.done = None;
        Ok(self.memory.take().expect("it is taken here alone"))
    }
}

impl<M> Drop for Transfer<M> {
    fn drop(&mut self) {
        let Some(event) = &self.done else { return };
        // The device may still write there: then the memory stays taken.
        if event.wait().is_err() {
            std::mem::forget(self.memory.take());
        }
    }
}
