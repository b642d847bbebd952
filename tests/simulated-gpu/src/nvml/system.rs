//! Driver, versions, error texts.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use super::output::{put, put_str};
use super::session;
use crate::{Code, Node};

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    session::begin("nvmlInit_v2")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    session::begin("nvmlInitWithFlags")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    session::end()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    Code(code).text().as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(
    version: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    session::answer("nvmlSystemGetDriverVersion", |node| {
        // SAFETY: the caller passes a buffer of that length, or null.
        unsafe { put_str(version, length, node.topology.driver_version()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(
    version: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    session::answer("nvmlSystemGetNVMLVersion", |node| {
        let text = format!("{}.{}", cuda(node)? / 1000, node.topology.driver_version());
        // SAFETY: the caller passes a buffer of that length, or null.
        unsafe { put_str(version, length, &text) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> nvmlReturn_t {
    session::answer("nvmlSystemGetCudaDriverVersion", |node| {
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(version, cuda(node)?) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> nvmlReturn_t {
    session::answer("nvmlSystemGetCudaDriverVersion_v2", |node| {
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(version, cuda(node)?) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetProcessName(
    pid: c_uint,
    name: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    session::answer("nvmlSystemGetProcessName", |_| {
        let program = std::fs::read_link(format!("/proc/{pid}/exe"));
        let program = program.map_err(|_| Code::NOT_FOUND)?;
        let mut text = program.to_string_lossy().into_owned();
        // NVML cuts a name that is too long.
        while text.len() >= length as usize && text.pop().is_some() {}
        // SAFETY: the caller passes a buffer of that length, or null.
        unsafe { put_str(name, length, &text) }
    })
}

fn cuda(node: &Node) -> Result<c_int, Code> {
    node.topology.cuda().map_err(|_| Code::UNKNOWN)
}
