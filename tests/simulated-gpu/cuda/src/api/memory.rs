//! Allocations, copies and fills.

use std::ffi::{c_int, c_uint, c_void};

use serde_json::json;
use simulated_nvml::CudaCode;

use super::Out;
use crate::context::Context;
use crate::driver::{Driver, Result, call, call_current};
use crate::memory::{self, Allocation, Kind, Place, allocate, on_device, on_host};
use crate::table::Handle;

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> u32 {
    call_current("cuMemGetInfo_v2", |driver, context| {
        let device = &driver.devices[context.device];
        free.set(device.free(driver) as usize)?;
        total.set(device.memory as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(target: Out<u64>, size: usize) -> u32 {
    call_current("cuMemAlloc_v2", |driver, context| {
        let start = allocate(driver, context, size as u64, Kind::Device)?;
        driver.record("cuMemAlloc_v2", &json!({ "bytes": size }));
        target.set(start)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocManaged(target: Out<u64>, size: usize, flags: c_uint) -> u32 {
    call_current("cuMemAllocManaged", |driver, context| {
        // CU_MEM_ATTACH_GLOBAL, _HOST.
        if !(1..=2).contains(&flags) {
            return Err(CudaCode::INVALID_VALUE);
        }
        let start = allocate(driver, context, size as u64, Kind::Managed)?;
        driver.record("cuMemAllocManaged", &json!({ "bytes": size }));
        target.set(start)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(start: u64) -> u32 {
    call_current("cuMemFree_v2", |driver, context| {
        if start == 0 {
            return Ok(());
        }
        let bytes = driver.memory.find(start).map(|found| found.size);
        memory::free(driver, context, start, |found| !found.is_host())?;
        driver.record("cuMemFree_v2", &json!({ "bytes": bytes }));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAddressRange_v2(base: Out<u64>, size: Out<usize>, address: u64) -> u32 {
    call_current("cuMemGetAddressRange_v2", |driver, _| {
        let found = driver.memory.find(address).ok_or(CudaCode::NOT_FOUND)?;
        base.set_if_wanted(found.start);
        size.set_if_wanted(found.size as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(target: Out<u64>, size: usize, flags: c_uint) -> u32 {
    pin("cuMemHostAlloc", &target, size, flags)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocHost_v2(target: Out<u64>, size: usize) -> u32 {
    pin("cuMemAllocHost_v2", &target, size, 0)
}

fn pin(name: &str, target: &Out<u64>, size: usize, flags: c_uint) -> u32 {
    call_current(name, |driver, context| {
        let start = allocate(driver, context, size as u64, Kind::Pinned(flags))?;
        driver.record(name, &json!({ "bytes": size, "flags": flags }));
        target.set(start)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(start: u64) -> u32 {
    call_current("cuMemFreeHost", |driver, context| {
        let bytes = driver.memory.find(start).map(|found| found.size);
        let pinned = |found: &Allocation| matches!(found.kind, Kind::Pinned(_));
        memory::free(driver, context, start, pinned)?;
        driver.record("cuMemFreeHost", &json!({ "bytes": bytes }));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(start: u64, size: usize, flags: c_uint) -> u32 {
    call_current("cuMemHostRegister_v2", |driver, context| {
        if start == 0 || size == 0 {
            return Err(CudaCode::INVALID_VALUE);
        }
        driver.memory.register(Allocation {
            start,
            size: size as u64,
            kind: Kind::Registered(flags),
            context: context.handle,
            device: context.device,
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(start: u64) -> u32 {
    call_current("cuMemHostUnregister", |driver, context| {
        let found = driver.memory.find(start).filter(|found| found.start == start);
        if !found.is_some_and(|found| matches!(found.kind, Kind::Registered(_))) {
            return Err(CudaCode(713));
        }
        context.synchronize(driver)?;
        driver.memory.remove(start);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetDevicePointer_v2(target: Out<u64>, start: u64, _flags: c_uint) -> u32 {
    call_current("cuMemHostGetDevicePointer_v2", |driver, _| {
        let found = driver.memory.find(start).filter(Allocation::is_host);
        found.ok_or(CudaCode::INVALID_VALUE)?;
        target.set(start)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetFlags(target: Out<c_uint>, start: u64) -> u32 {
    call_current("cuMemHostGetFlags", |driver, _| {
        match driver.memory.find(start).map(|found| found.kind) {
            Some(Kind::Pinned(flags) | Kind::Registered(flags)) => target.set(flags),
            _ => Err(CudaCode::INVALID_VALUE),
        }
    })
}

/// Attributes 1 (context), 2 (memory type), 3 (device pointer), 4 (host pointer), 8 (is managed),
/// 9 (device ordinal) of `CUpointer_attribute`.
#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttribute(target: *mut c_void, number: c_int, address: u64) -> u32 {
    call("cuPointerGetAttribute", |driver| {
        let found = driver.memory.find(address).ok_or(CudaCode::INVALID_VALUE)?;
        match number {
            1 => Out(target.cast()).set(found.context),
            // CU_MEMORYTYPE_HOST, _DEVICE.
            2 => Out(target.cast()).set(if found.is_host() { 1_u32 } else { 2 }),
            3 => Out(target.cast()).set(address),
            4 if found.is_host() || found.kind == Kind::Managed => Out(target.cast()).set(address),
            8 => Out(target.cast()).set(found.kind == Kind::Managed),
            9 => Out(target.cast()).set(found.device as c_int),
            _ => Err(CudaCode::INVALID_VALUE),
        }
    })
}

/// A copy in a stream, or, without one, one that is done when the call comes back.
fn copy(
    name: &'static str,
    stream: Option<Handle>,
    bytes: usize,
    places: impl FnOnce(&Driver) -> Result<(Place, Place)>,
) -> u32 {
    call_current(name, |driver, context| {
        let (to, from) =
            if bytes == 0 { (Place::Known(0), Place::Known(0)) } else { places(driver)? };
        let handle = stream.unwrap_or(0);
        let work = context.stream(driver, handle)?;
        if bytes > 0 {
            driver.record(name, &json!({ "bytes": bytes, "stream": handle }));
            memory::copy(driver, context, &work, name, (to, from, bytes as u64))?;
        }
        finish(driver, context, stream, &work)
    })
}

/// Waits for the default stream, if the call was given none.
fn finish(
    driver: &Driver,
    _context: &Context,
    stream: Option<Handle>,
    work: &crate::stream::Stream,
) -> Result<()> {
    if stream.is_none() {
        work.finish();
    }
    driver.check()
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, from: u64, size: usize) -> u32 {
    copy("cuMemcpyHtoD_v2", None, size, |driver| {
        Ok((on_device(driver, to, size as u64)?, on_host(driver, from, size as u64)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, size: usize, stream: Handle) -> u32 {
    copy("cuMemcpyHtoDAsync_v2", Some(stream), size, |driver| {
        Ok((on_device(driver, to, size as u64)?, on_host(driver, from, size as u64)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: u64, from: u64, size: usize) -> u32 {
    copy("cuMemcpyDtoH_v2", None, size, |driver| {
        Ok((on_host(driver, to, size as u64)?, on_device(driver, from, size as u64)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, size: usize, stream: Handle) -> u32 {
    copy("cuMemcpyDtoHAsync_v2", Some(stream), size, |driver| {
        Ok((on_host(driver, to, size as u64)?, on_device(driver, from, size as u64)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, size: usize) -> u32 {
    copy("cuMemcpyDtoD_v2", None, size, |driver| {
        Ok((on_device(driver, to, size as u64)?, on_device(driver, from, size as u64)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, stream: Handle) -> u32 {
    copy("cuMemcpyDtoDAsync_v2", Some(stream), size, |driver| {
        Ok((on_device(driver, to, size as u64)?, on_device(driver, from, size as u64)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    _to_context: Handle,
    from: u64,
    _from_context: Handle,
    size: usize,
    stream: Handle,
) -> u32 {
    copy("cuMemcpyPeerAsync", Some(stream), size, |driver| {
        Ok((on_device(driver, to, size as u64)?, on_device(driver, from, size as u64)?))
    })
}

/// Either side may be of the host or of a device.
#[unsafe(no_mangle)]
extern "C" fn cuMemcpy(to: u64, from: u64, size: usize) -> u32 {
    copy("cuMemcpy", None, size, |driver| {
        Ok((on_host(driver, to, size as u64)?, on_host(driver, from, size as u64)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyAsync(to: u64, from: u64, size: usize, stream: Handle) -> u32 {
    copy("cuMemcpyAsync", Some(stream), size, |driver| {
        Ok((on_host(driver, to, size as u64)?, on_host(driver, from, size as u64)?))
    })
}

/// Fills `count` elements with a value.
fn fill<T: Copy + Send + 'static>(
    name: &'static str,
    stream: Option<Handle>,
    to: u64,
    value: T,
    count: usize,
) -> u32 {
    call_current(name, |driver, context| {
        let size = count.checked_mul(size_of::<T>()).ok_or(CudaCode::INVALID_VALUE)?;
        let handle = stream.unwrap_or(0);
        let work = context.stream(driver, handle)?;
        if size > 0 {
            on_device(driver, to, size as u64)?;
            if !(to as usize).is_multiple_of(size_of::<T>()) {
                return Err(CudaCode::INVALID_VALUE);
            }
            driver.record(name, &json!({ "bytes": size, "stream": handle }));
            let gpu = driver.devices[context.device].gpu;
            work.submit(driver, context, move || {
                driver.suffer_at_work(name, gpu);
                // SAFETY: the range was checked, and the start is aligned.
                unsafe { std::slice::from_raw_parts_mut(to as *mut T, count) }.fill(value);
            });
        }
        finish(driver, context, stream, &work)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(to: u64, value: u8, count: usize) -> u32 {
    fill("cuMemsetD8_v2", None, to, value, count)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) -> u32 {
    fill("cuMemsetD8Async", Some(stream), to, value, count)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD16_v2(to: u64, value: u16, count: usize) -> u32 {
    fill("cuMemsetD16_v2", None, to, value, count)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Handle) -> u32 {
    fill("cuMemsetD16Async", Some(stream), to, value, count)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32_v2(to: u64, value: u32, count: usize) -> u32 {
    fill("cuMemsetD32_v2", None, to, value, count)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: Handle) -> u32 {
    fill("cuMemsetD32Async", Some(stream), to, value, count)
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location(c_int, c_int);

#[unsafe(no_mangle)]
extern "C" fn cuMemPrefetchAsync(start: u64, size: usize, _device: c_int, stream: Handle) -> u32 {
    advise("cuMemPrefetchAsync", start, size, Some(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPrefetchAsync_v2(
    start: u64,
    size: usize,
    _to: Location,
    _flags: c_uint,
    stream: Handle,
) -> u32 {
    advise("cuMemPrefetchAsync_v2", start, size, Some(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAdvise(start: u64, size: usize, _advice: c_int, _device: c_int) -> u32 {
    advise("cuMemAdvise", start, size, None)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAdvise_v2(start: u64, size: usize, _advice: c_int, _to: Location) -> u32 {
    advise("cuMemAdvise_v2", start, size, None)
}

/// Checks what it is about; there is nothing to do, for all memory is the host's.
fn advise(name: &str, start: u64, size: usize, stream: Option<Handle>) -> u32 {
    call_current(name, |driver, context| {
        if let Some(stream) = stream {
            context.stream(driver, stream)?;
        }
        let found = driver.memory.range(start, size as u64);
        found.filter(|found| found.kind == Kind::Managed).ok_or(CudaCode::INVALID_VALUE)?;
        Ok(())
    })
}
