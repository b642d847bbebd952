//! Initialisation, versions, errors, addresses of functions.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::null;

use simulated_nvml::{CudaCode, Node, node};

use super::{Out, Text};
use crate::driver::{self, call, code_of};

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> u32 {
    if flags != 0 {
        return CudaCode::INVALID_VALUE.0;
    }
    code_of(driver::start())
}

/// Answers before `cuInit` too.
#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> u32 {
    code_of((|| {
        let directory = node::of_library(cuInit as *const ()).map_err(|_| CudaCode::UNKNOWN)?;
        let node = Node::open(&directory).map_err(|_| CudaCode::UNKNOWN)?;
        version.set(node.topology.cuda().map_err(|_| CudaCode::UNKNOWN)?)
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: u32, name: Out<*const c_char>) -> u32 {
    error_text(CudaCode(code).name(), &name)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: u32, text: Out<*const c_char>) -> u32 {
    error_text(CudaCode(code).text(), &text)
}

fn error_text(text: Option<&'static std::ffi::CStr>, target: &Out<*const c_char>) -> u32 {
    code_of(
        target
            .set(text.map_or(null(), std::ffi::CStr::as_ptr))
            .and_then(|()| text.map(|_| ()).ok_or(CudaCode::INVALID_VALUE)),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress(
    symbol: Text,
    function: Out<*mut c_void>,
    version: c_int,
    _flags: u64,
) -> u32 {
    code_of(find(&symbol, &function, version))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress_v2(
    symbol: Text,
    function: Out<*mut c_void>,
    version: c_int,
    _flags: u64,
    status: Out<c_uint>,
) -> u32 {
    let found = find(&symbol, &function, version);
    // CU_GET_PROC_ADDRESS_SUCCESS, _SYMBOL_NOT_FOUND.
    status.set_if_wanted(u32::from(found.is_err()));
    code_of(found)
}

/// Finds the newest form of a function that a version of the API has.
fn find(symbol: &Text, target: &Out<*mut c_void>, version: c_int) -> driver::Result<()> {
    let name = symbol.get()?;
    let suffixes: &[&str] = match name {
        "cuCtxCreate" if version >= 12050 => &["_v4"],
        "cuCtxCreate" if version >= 11040 => &["_v3"],
        "cuEventElapsedTime" if version < 12080 => &[""],
        _ => &["_v2", ""],
    };
    let found = suffixes.iter().find_map(|suffix| {
        let name = CString::new(format!("{name}{suffix}")).ok()?;
        own_symbol(&name)
    });
    target.set(found.unwrap_or(std::ptr::null_mut()))?;
    found.map(|_| ()).ok_or(CudaCode::NOT_FOUND)
}

/// A function of this library.
fn own_symbol(name: &CString) -> Option<*mut c_void> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    let here = cuInit as *const c_void;
    // SAFETY: an address of this library; its path, which dladdr gives, is of one that is loaded.
    unsafe {
        if libc::dladdr(here, info.as_mut_ptr()) == 0 {
            return None;
        }
        let library =
            libc::dlopen(info.assume_init().dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        let symbol = libc::dlsym(library, name.as_ptr());
        libc::dlclose(library);
        (!symbol.is_null()).then_some(symbol)
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuProfilerStart() -> u32 {
    call("cuProfilerStart", |_| Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn cuProfilerStop() -> u32 {
    call("cuProfilerStop", |_| Ok(()))
}
