//! Stream-ordered pools (`cuMemPool…`, `cuMemAllocAsync`).
//!
//! What is freed in a stream is that stream's again at once, in the order of the stream: it is
//! poisoned there, and handed out there. Another stream gets it when the work up to the free is
//! done. So a missing wait between streams shows as poison.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use simulated_nvml::CudaCode;

use crate::context::Context;
use crate::driver::{Driver, Result};
use crate::memory::{Allocation, Kind, counted, is_as_long, poison, unmap};
use crate::stream::{Stream, Ticket};
use crate::table::{Handle, new_handle};

/// A pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) handle: Handle,
    /// Its device's ordinal.
    pub(crate) device: usize,
    pub(crate) default: bool,
    /// `CU_MEMPOOL_ATTR_REUSE_…`, 1 to 3.
    pub(crate) reuse: [AtomicI32; 3],
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that are kept when nobody uses them.
    threshold: u64,
    bytes: Bytes,
    free: Vec<Free>,
    destroyed: bool,
}

/// Bytes of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bytes {
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
    pub(crate) used: u64,
    pub(crate) used_high: u64,
}

#[derive(Debug)]
struct Free {
    allocation: Allocation,
    /// The work behind which it is free.
    after: Ticket,
}

impl Pool {
    pub(crate) fn new(device: usize, default: bool) -> Self {
        Self {
            handle: new_handle(),
            device,
            default,
            reuse: [1, 1, 1].map(AtomicI32::new),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.lock().bytes
    }

    pub(crate) fn threshold(&self) -> u64 {
        self.lock().threshold
    }

    pub(crate) fn set_threshold(&self, bytes: u64) {
        self.lock().threshold = bytes;
    }

    /// Sets the high marks back to what is now.
    pub(crate) fn reset_high(&self, reserved: bool) {
        let bytes = &mut self.lock().bytes;
        if reserved {
            bytes.reserved_high = bytes.reserved;
        } else {
            bytes.used_high = bytes.used;
        }
    }

    /// Hands memory out, to be used behind what is in the stream.
    pub(crate) fn allocate(
        &self,
        driver: &'static Driver,
        context: &Context,
        stream: &Stream,
        size: u64,
    ) -> Result<u64> {
        if size == 0 || self.device != context.device {
            return Err(CudaCode::INVALID_VALUE);
        }
        let mut state = self.lock();
        let same_stream = self.reuse[1].load(Ordering::Relaxed) != 0;
        let fits = |free: &Free| {
            is_as_long(free.allocation.size, size)
                && (stream.is_of(&free.after) || (same_stream && free.after.is_done()))
        };
        let start = if let Some(found) = state.free.iter().position(fits) {
            let old = state.free.swap_remove(found).allocation;
            let kind = Kind::Pooled(self.handle);
            driver.memory.change(driver, Allocation { size, kind, context: context.handle, ..old });
            old.start
        } else {
            let device = &driver.devices[self.device];
            if device.take(driver, counted(size)).is_err() {
                // What is free and not fit makes room.
                drop(state);
                context.synchronize(driver)?;
                self.trim(driver, 0);
                state = self.lock();
                device.take(driver, counted(size))?;
            }
            let start = driver
                .memory
                .allocate(driver, context, size, Kind::Pooled(self.handle))
                .inspect_err(|_| device.give_back(driver, counted(size)))?;
            state.bytes.reserved += counted(size);
            state.bytes.reserved_high = state.bytes.reserved_high.max(state.bytes.reserved);
            start
        };
        state.bytes.used += counted(size);
        state.bytes.used_high = state.bytes.used_high.max(state.bytes.used);
        drop(state);
        // Before this point of the stream it is nobody's.
        stream.submit(driver, context, move || poison(start, size));
        Ok(start)
    }

    /// Takes memory back, behind what is in the stream.
    pub(crate) fn free(
        &self,
        driver: &'static Driver,
        context: &Context,
        stream: &Stream,
        allocation: &Allocation,
    ) -> Result<()> {
        driver.memory.change(driver, Allocation { kind: Kind::Free, ..*allocation });
        let (start, size) = (allocation.start, allocation.size);
        let after = stream.submit(driver, context, move || poison(start, size));
        let mut state = self.lock();
        state.bytes.used -= counted(size);
        state.free.push(Free { allocation: *allocation, after });
        let destroyed = state.destroyed;
        drop(state);
        if destroyed {
            context.synchronize(driver)?;
            self.trim(driver, 0);
        }
        Ok(())
    }

    /// Gives memory that nobody uses back to the device, down to so many bytes.
    pub(crate) fn trim(&self, driver: &Driver, keep: u64) {
        let mut state = self.lock();
        let mut index = 0;
        while state.bytes.reserved > keep && index < state.free.len() {
            if !state.free[index].after.is_done() {
                index += 1;
                continue;
            }
            let allocation = state.free.swap_remove(index).allocation;
            state.bytes.reserved -= counted(allocation.size);
            driver.memory.remove(allocation.start);
            unmap(driver, &allocation);
            driver.devices[self.device].give_back(driver, counted(allocation.size));
        }
    }

    /// As [`Pool::trim`] does, down to the release threshold: at each wait for a stream.
    pub(crate) fn trim_to_threshold(&self, driver: &Driver) {
        let keep = self.threshold();
        self.trim(driver, keep);
    }

    /// Ends the pool; what is still in use is given back when it is freed and its stream has come
    /// to that.
    pub(crate) fn destroy(&self, driver: &Driver) {
        let mut state = self.lock();
        (state.destroyed, state.threshold) = (true, 0);
        drop(state);
        self.trim(driver, 0);
    }

    /// Whether the last allocation of a destroyed pool is gone.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.lock().destroyed
    }

    /// Forgets what a context has left, when its memory is released.
    pub(crate) fn forget_context(&self, driver: &Driver, context: Handle) {
        let mut state = self.lock();
        let (gone, kept) = std::mem::take(&mut state.free)
            .into_iter()
            .partition::<Vec<Free>, _>(|free| free.allocation.context == context);
        state.free = kept;
        for Free { allocation, .. } in gone {
            state.bytes.reserved -= counted(allocation.size);
            unmap(driver, &allocation);
            driver.devices[self.device].give_back(driver, counted(allocation.size));
        }
    }

    /// Counts memory out that a context had in use when it ended.
    pub(crate) fn lose(&self, bytes: u64) {
        let state = &mut self.lock().bytes;
        state.used -= bytes;
        state.reserved -= bytes;
    }
}
