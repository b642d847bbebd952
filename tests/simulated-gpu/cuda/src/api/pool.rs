//! Stream-ordered allocations.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::json;
use simulated_nvml::CudaCode;

use super::Out;
use crate::driver::{Driver, Result, call, call_current, call_device};
use crate::memory::Kind;
use crate::pool::Pool;
use crate::table::Handle;

/// The first fields of `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PoolProperties {
    /// 1: pinned to its device.
    allocation_type: c_int,
    handle_types: c_int,
    /// 1: a device, whose ordinal follows.
    location_type: c_int,
    location: c_int,
}

fn pool(driver: &Driver, handle: Handle) -> Result<Arc<Pool>> {
    driver.pools.get(handle).ok_or(CudaCode::INVALID_VALUE)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetDefaultMemPool(target: Out<Handle>, device: c_int) -> u32 {
    call_device("cuDeviceGetDefaultMemPool", device, |_, device| {
        target.set(device.default_pool.get().copied().unwrap_or(0))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetMemPool(target: Out<Handle>, device: c_int) -> u32 {
    call_device("cuDeviceGetMemPool", device, |_, device| target.set(device.pool()))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceSetMemPool(ordinal: c_int, handle: Handle) -> u32 {
    call_device("cuDeviceSetMemPool", ordinal, |driver, device| {
        if pool(driver, handle)?.device != ordinal as usize {
            return Err(CudaCode::INVALID_VALUE);
        }
        device.set_pool(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemPoolCreate(
    target: Out<Handle>,
    properties: *const PoolProperties,
) -> u32 {
    call("cuMemPoolCreate", |driver| {
        if properties.is_null() {
            return Err(CudaCode::INVALID_VALUE);
        }
        // SAFETY: not null, so the struct by what the API asks of its callers.
        let properties = unsafe { *properties };
        if properties.allocation_type != 1 || properties.location_type != 1 {
            return Err(CudaCode::INVALID_VALUE);
        }
        driver.device(properties.location)?;
        let pool = Pool::new(properties.location as usize, false);
        driver.record("cuMemPoolCreate", &json!({ "pool": pool.handle }));
        target.set(pool.handle)?;
        driver.pools.insert(pool.handle, pool.into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolDestroy(handle: Handle) -> u32 {
    call("cuMemPoolDestroy", |driver| {
        let pool = pool(driver, handle)?;
        if pool.default || pool.is_destroyed() {
            return Err(CudaCode::INVALID_VALUE);
        }
        driver.record("cuMemPoolDestroy", &json!({ "pool": handle }));
        let device = &driver.devices[pool.device];
        if device.pool() == handle {
            device.set_pool(device.default_pool.get().copied().unwrap_or(0));
        }
        pool.destroy(driver);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolTrimTo(handle: Handle, keep: usize) -> u32 {
    call("cuMemPoolTrimTo", |driver| {
        pool(driver, handle)?.trim(driver, keep as u64);
        Ok(())
    })
}

/// Numbers 1 to 3 are ints, the others of 64 bits.
#[unsafe(no_mangle)]
extern "C" fn cuMemPoolGetAttribute(handle: Handle, number: c_int, value: *mut c_void) -> u32 {
    call("cuMemPoolGetAttribute", |driver| {
        let pool = pool(driver, handle)?;
        let bytes = pool.bytes();
        let of = match number {
            1..=3 => {
                let value = Out(value.cast::<c_int>());
                return value.set(pool.reuse[number as usize - 1].load(Ordering::Relaxed));
            }
            4 => pool.threshold(),
            5 => bytes.reserved,
            6 => bytes.reserved_high,
            7 => bytes.used,
            8 => bytes.used_high,
            _ => return Err(CudaCode::INVALID_VALUE),
        };
        Out(value.cast::<u64>()).set(of)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemPoolSetAttribute(
    handle: Handle,
    number: c_int,
    value: *const c_void,
) -> u32 {
    call("cuMemPoolSetAttribute", |driver| {
        let pool = pool(driver, handle)?;
        if value.is_null() {
            return Err(CudaCode::INVALID_VALUE);
        }
        if let 1..=3 = number {
            // SAFETY: a pointer to an int, for these.
            let value = unsafe { *value.cast::<c_int>() };
            pool.reuse[number as usize - 1].store(value, Ordering::Relaxed);
            return Ok(());
        }
        // SAFETY: a pointer to 64 bits, for the others.
        let value = unsafe { *value.cast::<u64>() };
        match number {
            4 => pool.set_threshold(value),
            6 | 8 if value == 0 => pool.reset_high(number == 6),
            _ => return Err(CudaCode::INVALID_VALUE),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(target: Out<u64>, size: usize, stream: Handle) -> u32 {
    call_current("cuMemAllocAsync", |driver, context| {
        let stream = context.stream(driver, stream)?;
        let handle = driver.devices[context.device].pool();
        let start = pool(driver, handle)?.allocate(driver, context, &stream, size as u64)?;
        driver.record("cuMemAllocAsync", &json!({ "bytes": size, "pool": handle }));
        target.set(start)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocFromPoolAsync(
    target: Out<u64>,
    size: usize,
    handle: Handle,
    stream: Handle,
) -> u32 {
    call_current("cuMemAllocFromPoolAsync", |driver, context| {
        let stream = context.stream(driver, stream)?;
        let start = pool(driver, handle)?.allocate(driver, context, &stream, size as u64)?;
        driver.record("cuMemAllocFromPoolAsync", &json!({ "bytes": size, "pool": handle }));
        target.set(start)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(start: u64, stream: Handle) -> u32 {
    call_current("cuMemFreeAsync", |driver, context| {
        let stream = context.stream(driver, stream)?;
        let found = driver.memory.find(start).filter(|found| found.start == start);
        let Some((Kind::Pooled(handle), found)) = found.map(|found| (found.kind, found)) else {
            return Err(CudaCode::INVALID_VALUE);
        };
        driver.record("cuMemFreeAsync", &json!({ "bytes": found.size, "pool": handle }));
        pool(driver, handle)?.free(driver, context, &stream, &found)
    })
}
