//! The C functions of the CUDA driver API (`cuda.h`).
//!
//! - `system`: initialisation, versions, errors, addresses of functions.
//! - `device`, `context`, `stream`, `event`: as they say.
//! - `memory`: allocations, copies, fills; `pool`: stream-ordered allocations.
//! - `module`: modules, functions, launches, occupancy.
//! - `absent`: what cudarc asks for and this driver hasn't: graphs, external memory.

mod absent;
mod context;
mod device;
mod event;
mod memory;
mod module;
mod pool;
mod stream;
mod system;

use std::ffi::{CStr, c_char};

use simulated_nvml::CudaCode;

use crate::driver::Result;

/// Where an answer goes: a pointer of the caller's, which is null or valid for a write.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    fn set(&self, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(CudaCode::INVALID_VALUE);
        }
        // SAFETY: not null, so valid by what the API asks of its callers.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// As [`Out::set`], where null is a caller who doesn't want to know.
    fn set_if_wanted(&self, value: T) {
        let _ = self.set(value);
    }
}

/// A string of the caller's, or null.
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    fn get(&self) -> Result<&str> {
        if self.0.is_null() {
            return Err(CudaCode::INVALID_VALUE);
        }
        // SAFETY: not null, so a string by what the API asks of its callers.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| CudaCode::INVALID_VALUE)
    }
}

/// A buffer for a string: null, or valid for writes of the length that comes with it.
#[repr(transparent)]
pub(crate) struct Buffer(*mut c_char);

impl Buffer {
    /// Writes a string, cut to the length.
    fn set(&self, length: i32, text: &str) -> Result<()> {
        let length = usize::try_from(length).unwrap_or(0);
        if self.0.is_null() || length == 0 {
            return Err(CudaCode::INVALID_VALUE);
        }
        let count = text.len().min(length - 1);
        // SAFETY: the buffer has room for so many bytes and a zero.
        unsafe {
            self.0.copy_from_nonoverlapping(text.as_ptr().cast(), count);
            self.0.add(count).write(0);
        }
        Ok(())
    }
}
