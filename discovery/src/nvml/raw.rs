//! The calls that `nvml-wrapper` lacks, or gets wrong.
//!
//! The functions come from the library that is loaded, through `nvml-wrapper-sys`, and have the
//! signatures of `nvml.h`. A handle is that of a [`Device`], so it is valid as long as the value.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_uint};

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU as PEER_GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_IBMNPU as PEER_CPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as PEER_SWITCH, nvmlMemory_t,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_t,
};

use crate::inventory::{Memory, NvLinkPeerKind, RemappedRows};

/// Memory as drivers before R510 give it: `nvmlDeviceGetMemoryInfo`, without what is reserved.
pub(super) fn memory(device: &Device<'_>) -> Result<Memory, NvmlError> {
    let function = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: a valid handle, and a struct of the function's version.
    nvml_try(unsafe { function(device.handle(), &raw mut memory) })?;
    Ok(Memory {
        total: Some(memory.total),
        reserved: None,
        used: Some(memory.used),
        free: Some(memory.free),
    })
}

/// Id of a slice's GPU instance.
pub(super) fn gpu_instance(slice: &Device<'_>) -> Result<u32, NvmlError> {
    number(slice, nvml_sym(slice.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref())?)
}

/// Id of a slice's compute instance.
pub(super) fn compute_instance(slice: &Device<'_>) -> Result<u32, NvmlError> {
    number(slice, nvml_sym(slice.nvml().lib().nvmlDeviceGetComputeInstanceId.as_ref())?)
}

fn number(
    device: &Device<'_>,
    function: &unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t,
) -> Result<u32, NvmlError> {
    let mut number = 0;
    // SAFETY: a valid handle, and a place for the number.
    nvml_try(unsafe { function(device.handle(), &raw mut number) })?;
    Ok(number)
}

/// Memory rows that were replaced.
pub(super) fn remapped_rows(device: &Device<'_>) -> Result<RemappedRows, NvmlError> {
    let function = nvml_sym(device.nvml().lib().nvmlDeviceGetRemappedRows.as_ref())?;
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: a valid handle, and places for the numbers.
    nvml_try(unsafe {
        function(
            device.handle(),
            &raw mut corrected,
            &raw mut uncorrected,
            &raw mut pending,
            &raw mut failed,
        )
    })?;
    Ok(RemappedRows { corrected, uncorrected, pending: pending != 0, failed: failed != 0 })
}

/// What a link leads to. (The wrapper's `remote_device_type` drops the answer.)
pub(super) fn nvlink_peer(
    device: &Device<'_>,
    link: u32,
) -> Result<Option<NvLinkPeerKind>, NvmlError> {
    let function = nvml_sym(device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref())?;
    let mut kind = 0;
    // SAFETY: a valid handle, and a place for the number.
    nvml_try(unsafe { function(device.handle(), link, &raw mut kind) })?;
    Ok(match kind {
        PEER_GPU => Some(NvLinkPeerKind::Gpu),
        PEER_CPU => Some(NvLinkPeerKind::Cpu),
        PEER_SWITCH => Some(NvLinkPeerKind::Switch),
        _ => None,
    })
}

/// A device's handle as a number: what tells two devices of one session apart without a call.
pub(super) fn handle(device: &Device<'_>) -> usize {
    // SAFETY: the handle is compared, never used.
    unsafe { device.handle() }.addr()
}

/// The driver's own words for an error, from a library that could not be started.
pub(super) fn words_of_library(library: &str, error: NvmlError) -> String {
    // SAFETY: the library has been loaded before, so its constructors are known to run.
    match unsafe { NvmlLib::new(library) } {
        Ok(library) => words(&library, error),
        Err(_) => error.to_string(),
    }
}

/// The driver's own words for an error.
pub(super) fn words(library: &NvmlLib, error: NvmlError) -> String {
    let fallback = error.to_string();
    let own = !matches!(error, NvmlError::Unknown);
    let code = nvmlReturn_t::from(error);
    // The wrapper's own errors are not the driver's, and have no code of their own.
    if own && code == UNKNOWN {
        return fallback;
    }
    let Ok(function) = library.nvmlErrorString.as_ref() else { return fallback };
    // SAFETY: the function takes any number, and needs no session.
    let words = unsafe { function(code) };
    if words.is_null() {
        return fallback;
    }
    // SAFETY: a static string of the library, which is still loaded.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}
