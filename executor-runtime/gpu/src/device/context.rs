//! A device in use: its context, and the kernels that were loaded into it.

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{result, sys};

use super::error::Named;
use super::{Device, DeviceError, Stream};
use crate::kernels::MODULES;

/// The device's primary context. It ends with its last owner, and with it what the driver holds of
/// the device's memory for this process.
#[derive(Debug)]
pub struct Context {
    device: Device,
    handle: sys::CUcontext,
    loaded: Mutex<Loaded>,
    /// Streams that nobody has now, the one longest so first: its work is done the sooner.
    idle_streams: Mutex<VecDeque<sys::CUstream>>,
}

/// What was loaded until now: modules come with the first kernel that is asked for.
#[derive(Debug, Default)]
struct Loaded {
    modules: Vec<sys::CUmodule>,
    functions: HashMap<&'static str, sys::CUfunction>,
}

// SAFETY: the driver's handles may be used from any thread, by several at once; every call first
// makes the context the thread's own.
unsafe impl Send for Context {}
// SAFETY: as above; what changes is behind a lock.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn new(device: Device) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: the device's handle is the driver's; `drop` gives the context back.
        let handle = unsafe { result::primary_ctx::retain(device.handle) }
            .named("cuDevicePrimaryCtxRetain")?;
        let (loaded, idle_streams) = Default::default();
        Ok(Arc::new(Context { device, handle, loaded, idle_streams }))
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Makes it the context of this thread, as the driver's calls want it.
    pub(crate) fn bind(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained.
        unsafe { result::ctx::set_current(self.handle) }.named("cuCtxSetCurrent")
    }

    pub(super) fn handle(&self) -> sys::CUcontext {
        self.handle
    }

    /// Free and all bytes of the device's memory, as the driver counts them.
    pub fn memory(&self) -> Result<(u64, u64), DeviceError> {
        self.bind()?;
        let (free, total) = result::mem_get_info().named("cuMemGetInfo")?;
        Ok((free as u64, total as u64))
    }

    /// A stream that nobody else has.
    pub fn stream(self: &Arc<Self>) -> Result<Stream, DeviceError> {
        Stream::new(Arc::clone(self))
    }

    /// The streams that nobody has now. They are there as long as the context is: memory goes back
    /// to a pool in the order of a stream, which may be after its owner is gone.
    pub(super) fn idle_streams(&self) -> MutexGuard<'_, VecDeque<sys::CUstream>> {
        self.idle_streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads all kernels, which otherwise happens when one is first launched.
    pub fn load(&self) -> Result<(), DeviceError> {
        MODULES.iter().try_for_each(|module| self.function(module.entries[0]).map(drop))
    }

    /// The kernel, of the module that has it.
    pub(super) fn function(&self, name: &'static str) -> Result<sys::CUfunction, DeviceError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&function) = loaded.functions.get(name) {
            return Ok(function);
        }
        self.bind()?;
        let module = MODULES
            .iter()
            .find(|module| module.entries.contains(&name))
            .unwrap_or_else(|| panic!("no module has the kernel {name}"));
        let ptx = CString::new(module.ptx).expect("PTX is text");
        // SAFETY: the text ends with 0, and the driver doesn't keep it.
        let handle = unsafe { result::module::load_data(ptx.as_ptr().cast()) }
            .named(&format!("cuModuleLoadData of {}", module.name))?;
        loaded.modules.push(handle);
        for &entry in module.entries {
            let text = CString::new(entry).expect("names are text");
            // SAFETY: the module is loaded, and stays so as long as the context.
            let function = unsafe { result::module::get_function(handle, text) }
                .named(&format!("cuModuleGetFunction of {entry}"))?;
            loaded.functions.insert(entry, function);
        }
        Ok(loaded.functions[name])
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let loaded = self.loaded.get_mut().unwrap_or_else(PoisonError::into_inner);
        let streams = self.idle_streams.get_mut().unwrap_or_else(PoisonError::into_inner);
        // After a fault these fail, and the process is about to end: there is nobody to tell.
        // SAFETY: streams hold the context, so nothing runs any more that uses the modules.
        unsafe {
            let _ = result::ctx::set_current(self.handle);
            for &stream in &*streams {
                let _ = result::stream::destroy(stream);
            }
            for &module in &loaded.modules {
                let _ = result::module::unload(module);
            }
            let _ = result::primary_ctx::release(self.device.handle);
        }
    }
}
