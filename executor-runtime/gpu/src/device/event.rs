//! Points in a stream's work.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{result, sys};

use super::error::Named;
use super::{Context, DeviceError, Stream};

/// A point in a stream's work: the end of all that the stream had when it was recorded.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    pub(super) handle: sys::CUevent,
}

// SAFETY: the driver's handles may be used from any thread, by several at once.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Records it. With `timed`, [`Event::since`] may be asked; without, it is cheaper.
    pub fn record(stream: &Stream, timed: bool) -> Result<Self, DeviceError> {
        // SAFETY: the stream is there, and of the context.
        unsafe { Event::record_on(stream.context(), stream.handle, timed) }
    }

    /// Records it on a stream by its handle.
    ///
    /// # Safety
    ///
    /// The stream is there, and of the context.
    pub(super) unsafe fn record_on(
        context: &Arc<Context>,
        stream: sys::CUstream,
        timed: bool,
    ) -> Result<Self, DeviceError> {
        context.bind()?;
        let flags = if timed {
            sys::CUevent_flags::CU_EVENT_DEFAULT
        } else {
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING
        };
        let handle = result::event::create(flags).named("cuEventCreate")?;
        let event = Event { context: Arc::clone(context), handle };
        // SAFETY: both are there, as the caller says, and of one context.
        unsafe { result::event::record(handle, stream) }.named("cuEventRecord")?;
        Ok(event)
    }

    /// Whether the device is past it.
    pub fn is_past(&self) -> Result<bool, DeviceError> {
        self.context.bind()?;
        // SAFETY: the event is there.
        match unsafe { sys::cuEventQuery(self.handle) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.named("cuEventQuery").map(|()| true),
        }
    }

    /// Blocks until the device is past it.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: the event is there.
        unsafe { result::event::synchronize(self.handle) }.named("cuEventSynchronize")
    }

    /// The device's time from an earlier one; both are timed, and past.
    pub fn since(&self, earlier: &Event) -> Result<Duration, DeviceError> {
        self.context.bind()?;
        // SAFETY: both events are there.
        let milliseconds = unsafe { result::event::elapsed(earlier.handle, self.handle) }
            .named("cuEventElapsedTime")?;
        Ok(Duration::from_secs_f32((milliseconds / 1e3).max(0.0)))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it isn't used again; the driver lets streams that wait for it finish.
        unsafe {
            let _ = result::ctx::set_current(self.context.handle());
            let _ = result::event::destroy(self.handle);
        }
    }
}
