//! MIG slices.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlDeviceAttributes_t, nvmlReturn_t};

use super::output::put;
use super::session::{answer_for, handle};
use crate::Code;

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetMigMode", device, |device| {
        device.whole()?;
        if device.gpu.model.mig.is_empty() {
            return Err(Code::NOT_SUPPORTED);
        }
        let mode = u32::from(device.gpu.slices.is_some());
        // SAFETY: the caller passes pointers to numbers, or null.
        unsafe {
            put(current, mode)?;
            put(pending, mode)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(
    device: nvmlDevice_t,
    count: *mut c_uint,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetMaxMigDeviceCount", device, |device| {
        device.whole()?;
        let most = if device.gpu.model.mig.is_empty() { 0 } else { 7 };
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(count, most) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    slice: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetMigDeviceHandleByIndex", device, |device| {
        device.whole()?;
        let slices = device.gpu.slices.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        if index >= 7 {
            return Err(Code::INVALID_ARGUMENT);
        }
        slices.get(index as usize).ok_or(Code::NOT_FOUND)?;
        // SAFETY: the caller passes a pointer to a handle, or null.
        unsafe { put(slice, handle(device.index, Some(index))) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceIsMigDeviceHandle(
    device: nvmlDevice_t,
    is: *mut c_uint,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceIsMigDeviceHandle", device, |device| {
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(is, u32::from(device.slice.is_some())) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    slice: nvmlDevice_t,
    parent: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", slice, |device| {
        device.slice.ok_or(Code::INVALID_ARGUMENT)?;
        // SAFETY: the caller passes a pointer to a handle, or null.
        unsafe { put(parent, handle(device.index, None)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuInstanceId(
    slice: nvmlDevice_t,
    id: *mut c_uint,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetGpuInstanceId", slice, |device| {
        let (_, slice) = device.slice.ok_or(Code::NOT_SUPPORTED)?;
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(id, slice.gpu_instance) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeInstanceId(
    slice: nvmlDevice_t,
    id: *mut c_uint,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetComputeInstanceId", slice, |device| {
        let (_, slice) = device.slice.ok_or(Code::NOT_SUPPORTED)?;
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(id, slice.compute_instance) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetAttributes_v2(
    slice: nvmlDevice_t,
    attributes: *mut nvmlDeviceAttributes_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetAttributes_v2", slice, |device| {
        let (_, slice) = device.slice.ok_or(Code::NOT_SUPPORTED)?;
        let profile = slice.profile;
        let value = nvmlDeviceAttributes_t {
            multiprocessorCount: profile.multiprocessors,
            sharedCopyEngineCount: profile.slices,
            sharedDecoderCount: profile.slices / 2,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
            gpuInstanceSliceCount: profile.slices,
            computeInstanceSliceCount: profile.slices,
            memorySizeMB: profile.memory_mib,
        };
        // SAFETY: the caller passes a pointer to the struct, or null.
        unsafe { put(attributes, value) }
    })
}
