//! Events: marks in streams.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use simulated_nvml::CudaCode;

use crate::context::Context;
use crate::driver::{Driver, Result};
use crate::stream::{Stream, Ticket};
use crate::table::{Handle, new_handle};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: Handle,
    flags: u32,
    recorded: Mutex<Option<Recorded>>,
}

#[derive(Clone, Debug)]
struct Recorded {
    ticket: Ticket,
    time: Arc<OnceLock<Instant>>,
}

impl Event {
    pub(crate) fn create(driver: &Driver, context: &Context, flags: u32) -> Handle {
        let handle = new_handle();
        let event = Self { context: context.handle, flags, recorded: Mutex::default() };
        driver.events.insert(handle, Arc::new(event));
        handle
    }

    /// Marks what is in a stream now.
    pub(crate) fn record(
        &self,
        driver: &'static Driver,
        context: &Context,
        stream: &Stream,
    ) -> Result<()> {
        if self.context != stream.context {
            return Err(CudaCode::INVALID_HANDLE);
        }
        let time = Arc::new(OnceLock::new());
        let mark = Arc::clone(&time);
        let ticket = stream.submit(driver, context, move || {
            let _ = mark.set(Instant::now());
        });
        *self.recorded.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Recorded { ticket, time });
        Ok(())
    }

    fn recorded(&self) -> Option<Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What it marks; absent: nothing, and nobody needs to wait for that.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.recorded().map(|recorded| recorded.ticket)
    }

    /// Milliseconds from this one to another.
    pub(crate) fn elapsed(&self, end: &Self) -> Result<f32> {
        if (self.flags | end.flags) & DISABLE_TIMING != 0 {
            return Err(CudaCode::INVALID_HANDLE);
        }
        let (Some(start), Some(end)) = (self.recorded(), end.recorded()) else {
            return Err(CudaCode::INVALID_HANDLE);
        };
        let (Some(start), Some(end)) = (start.time.get(), end.time.get()) else {
            return Err(CudaCode::NOT_READY);
        };
        let forth = end.saturating_duration_since(*start).as_secs_f32();
        let back = start.saturating_duration_since(*end).as_secs_f32();
        Ok((forth - back) * 1e3)
    }
}
