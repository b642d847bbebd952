//! Contexts.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use simulated_nvml::CudaCode;

use super::Out;
use crate::context::{self, Context};
use crate::driver::{Driver, Result, call, call_current, call_device};
use crate::table::Handle;

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(target: Out<Handle>, ordinal: c_int) -> u32 {
    call_device("cuDevicePrimaryCtxRetain", ordinal, |driver, device| {
        let mut primary = device.primary();
        if primary.users == 0 {
            primary.context = context::create(driver, ordinal as usize, primary.flags, true)?;
        }
        target.set(primary.context)?;
        primary.users += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) -> u32 {
    call_device("cuDevicePrimaryCtxRelease_v2", ordinal, |driver, device| {
        let mut primary = device.primary();
        primary.users = primary.users.checked_sub(1).ok_or(CudaCode::INVALID_CONTEXT)?;
        if primary.users == 0 { context::destroy(driver, primary.context) } else { Ok(()) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxReset_v2(ordinal: c_int) -> u32 {
    call_device("cuDevicePrimaryCtxReset_v2", ordinal, |driver, device| {
        let mut primary = device.primary();
        if primary.users == 0 {
            return Ok(());
        }
        primary.users = 0;
        context::destroy(driver, primary.context)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxSetFlags_v2(ordinal: c_int, flags: c_uint) -> u32 {
    call_device("cuDevicePrimaryCtxSetFlags_v2", ordinal, |_, device| {
        device.primary().flags = flags;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxGetState(
    ordinal: c_int,
    flags: Out<c_uint>,
    active: Out<c_int>,
) -> u32 {
    call_device("cuDevicePrimaryCtxGetState", ordinal, |_, device| {
        let primary = device.primary();
        flags.set(primary.flags)?;
        active.set(c_int::from(primary.users > 0))
    })
}

fn create(
    driver: &'static Driver,
    target: &Out<Handle>,
    flags: c_uint,
    ordinal: c_int,
) -> Result<()> {
    let handle = context::create(driver, ordinal as usize, flags, false)?;
    context::push(driver, handle)?;
    target.set(handle)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v2(target: Out<Handle>, flags: c_uint, ordinal: c_int) -> u32 {
    call_device("cuCtxCreate_v2", ordinal, |driver, _| create(driver, &target, flags, ordinal))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v3(
    target: Out<Handle>,
    _affinity: *mut c_void,
    _count: c_int,
    flags: c_uint,
    ordinal: c_int,
) -> u32 {
    call_device("cuCtxCreate_v3", ordinal, |driver, _| create(driver, &target, flags, ordinal))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v4(
    target: Out<Handle>,
    _parameters: *mut c_void,
    flags: c_uint,
    ordinal: c_int,
) -> u32 {
    call_device("cuCtxCreate_v4", ordinal, |driver, _| create(driver, &target, flags, ordinal))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(handle: Handle) -> u32 {
    call("cuCtxDestroy_v2", |driver| {
        let context = driver.contexts.get(handle).ok_or(CudaCode::INVALID_CONTEXT)?;
        if context.primary {
            return Err(CudaCode::INVALID_CONTEXT);
        }
        context::destroy(driver, handle)?;
        if context::current_handle() == handle {
            context::pop()?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(target: Out<Handle>) -> u32 {
    call("cuCtxGetCurrent", |_| target.set(context::current_handle()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(handle: Handle) -> u32 {
    call("cuCtxSetCurrent", |driver| context::set_current(driver, handle))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(handle: Handle) -> u32 {
    call("cuCtxPushCurrent_v2", |driver| context::push(driver, handle))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(target: Out<Handle>) -> u32 {
    call("cuCtxPopCurrent_v2", |_| {
        target.set_if_wanted(context::pop()?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: Out<c_int>) -> u32 {
    call_current("cuCtxGetDevice", |_, context| device.set(context.device as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> u32 {
    call_current("cuCtxSynchronize", |driver, context| {
        context.synchronize(driver)?;
        trim_pools(driver, context);
        Ok(())
    })
}

/// Who waits lets the pools of the device give back what is beyond their threshold.
pub(super) fn trim_pools(driver: &Driver, context: &Context) {
    for pool in driver.pools.all() {
        if pool.device == context.device {
            pool.trim_to_threshold(driver);
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetFlags(flags: Out<c_uint>) -> u32 {
    call_current("cuCtxGetFlags", |_, context| flags.set(context.flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetFlags(_flags: c_uint) -> u32 {
    call_current("cuCtxSetFlags", |_, _| Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetLimit(value: Out<usize>, limit: c_uint) -> u32 {
    call_current("cuCtxGetLimit", |_, context| {
        value.set(context.limit(limit)?.load(Ordering::Relaxed) as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetLimit(limit: c_uint, value: usize) -> u32 {
    call_current("cuCtxSetLimit", |_, context| {
        context.limit(limit)?.store(value as u64, Ordering::Relaxed);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCacheConfig(config: Out<c_uint>) -> u32 {
    call_current("cuCtxGetCacheConfig", |_, context| config.set(context.cache()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCacheConfig(config: c_uint) -> u32 {
    call_current("cuCtxSetCacheConfig", |_, context| {
        context.cache.store(config, Ordering::Relaxed);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) -> u32 {
    call_current("cuCtxGetStreamPriorityRange", |_, _| {
        least.set_if_wanted(0);
        greatest.set_if_wanted(-5);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetApiVersion(handle: Handle, version: Out<c_uint>) -> u32 {
    call("cuCtxGetApiVersion", |driver| {
        let handle = if handle == 0 { context::current_handle() } else { handle };
        driver.contexts.get(handle).ok_or(CudaCode::INVALID_CONTEXT)?;
        version.set(3020)
    })
}
