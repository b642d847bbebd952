//! Contexts, and which of them is current on a thread.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use simulated_nvml::CudaCode;

use crate::driver::{Driver, Result};
use crate::stream::Stream;
use crate::table::{Handle, new_handle};

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) handle: Handle,
    /// The device's ordinal.
    pub(crate) device: usize,
    pub(crate) flags: u32,
    pub(crate) primary: bool,
    /// The legacy default stream.
    pub(crate) legacy: Arc<Stream>,
    /// `CUfunc_cache`.
    pub(crate) cache: AtomicU32,
    /// By `CUlimit`: stack, printf and heap size in bytes.
    pub(crate) limits: [AtomicU64; 3],
}

thread_local! {
    static CURRENT: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

/// Makes a context on a device. It becomes current nowhere.
pub(crate) fn create(
    driver: &'static Driver,
    ordinal: usize,
    flags: u32,
    primary: bool,
) -> Result<Handle> {
    driver.devices[ordinal].enter(driver)?;
    let handle = new_handle();
    let legacy = Arc::new(Stream::legacy(handle));
    let limits = [1024, 1 << 20, 8 << 20].map(AtomicU64::new);
    let context = Context {
        handle,
        device: ordinal,
        flags,
        primary,
        legacy,
        cache: AtomicU32::new(0),
        limits,
    };
    driver.contexts.insert(handle, Arc::new(context));
    Ok(handle)
}

/// Ends a context when its work is done: its streams, events, modules and memory end with it.
pub(crate) fn destroy(driver: &'static Driver, handle: Handle) -> Result<()> {
    let context = driver.contexts.remove(handle).ok_or(CudaCode::INVALID_CONTEXT)?;
    for stream in context.streams(driver) {
        stream.finish();
        stream.close();
    }
    driver.streams.retain(|stream| stream.context != handle);
    driver.events.retain(|event| event.context != handle);
    driver.functions.retain(|function| function.context != handle);
    driver.modules.retain(|module| module.context != handle);
    driver.memory.release_context(driver, handle);
    driver.devices[context.device].leave(driver);
    Ok(())
}

impl Context {
    /// All of its streams.
    pub(crate) fn streams(&self, driver: &Driver) -> Vec<Arc<Stream>> {
        let mut streams = driver.streams.all();
        streams.retain(|stream| stream.context == self.handle);
        streams.push(Arc::clone(&self.legacy));
        streams
    }

    /// Waits for all of its work.
    pub(crate) fn synchronize(&self, driver: &Driver) -> Result<()> {
        for stream in self.streams(driver) {
            stream.finish();
        }
        driver.check()
    }

    /// A stream by its handle: 0 and 1 are the legacy default stream, 2 the thread's own, which
    /// here is the same.
    pub(crate) fn stream(&self, driver: &Driver, handle: Handle) -> Result<Arc<Stream>> {
        if handle <= 2 {
            return Ok(Arc::clone(&self.legacy));
        }
        let stream = driver.streams.get(handle).ok_or(CudaCode::INVALID_HANDLE)?;
        if stream.context == self.handle { Ok(stream) } else { Err(CudaCode::INVALID_HANDLE) }
    }

    /// A limit by its number in `CUlimit`.
    pub(crate) fn limit(&self, number: u32) -> Result<&AtomicU64> {
        self.limits.get(number as usize).ok_or(CudaCode::INVALID_VALUE)
    }

    pub(crate) fn cache(&self) -> u32 {
        self.cache.load(Ordering::Relaxed)
    }
}

/// The handle of the context that is current on this thread; 0: none.
pub(crate) fn current_handle() -> Handle {
    CURRENT.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// The context that is current on this thread.
pub(crate) fn current(driver: &Driver) -> Result<Arc<Context>> {
    match current_handle() {
        0 => Err(CudaCode::INVALID_CONTEXT),
        handle => driver.contexts.get(handle).ok_or(CudaCode::CONTEXT_IS_DESTROYED),
    }
}

/// Makes a context current in place of the one that is; 0: none.
pub(crate) fn set_current(driver: &Driver, handle: Handle) -> Result<()> {
    if handle != 0 && driver.contexts.get(handle).is_none() {
        return Err(CudaCode::INVALID_CONTEXT);
    }
    CURRENT.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
    Ok(())
}

/// Makes a context current above the one that is.
pub(crate) fn push(driver: &Driver, handle: Handle) -> Result<()> {
    if driver.contexts.get(handle).is_none() {
        return Err(CudaCode::INVALID_CONTEXT);
    }
    CURRENT.with_borrow_mut(|stack| stack.push(handle));
    Ok(())
}

/// Makes the one below current again.
pub(crate) fn pop() -> Result<Handle> {
    CURRENT.with_borrow_mut(Vec::pop).ok_or(CudaCode::INVALID_CONTEXT)
}
