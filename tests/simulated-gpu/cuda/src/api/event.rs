//! Events.

use std::ffi::{c_float, c_uint};
use std::sync::Arc;

use simulated_nvml::CudaCode;

use super::Out;
use super::context::trim_pools;
use crate::driver::{Driver, Result, call, call_current};
use crate::event::Event;
use crate::table::Handle;

fn event(driver: &Driver, handle: Handle) -> Result<Arc<Event>> {
    driver.events.get(handle).ok_or(CudaCode::INVALID_HANDLE)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(target: Out<Handle>, flags: c_uint) -> u32 {
    call_current("cuEventCreate", |driver, context| {
        if flags > 7 {
            return Err(CudaCode::INVALID_VALUE);
        }
        target.set(Event::create(driver, context, flags))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(handle: Handle) -> u32 {
    call("cuEventDestroy_v2", |driver| {
        driver.events.remove(handle).map(|_| ()).ok_or(CudaCode::INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(handle: Handle, stream: Handle) -> u32 {
    call_current("cuEventRecord", |driver, context| {
        let stream = context.stream(driver, stream)?;
        event(driver, handle)?.record(driver, context, &stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecordWithFlags(handle: Handle, stream: Handle, _flags: c_uint) -> u32 {
    cuEventRecord(handle, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(handle: Handle) -> u32 {
    call("cuEventQuery", |driver| {
        event(driver, handle)?.ticket().map_or(Ok(()), |ticket| ticket.poll())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(handle: Handle) -> u32 {
    call_current("cuEventSynchronize", |driver, context| {
        if let Some(ticket) = event(driver, handle)?.ticket() {
            ticket.wait();
        }
        driver.check()?;
        trim_pools(driver, context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(milliseconds: Out<c_float>, start: Handle, end: Handle) -> u32 {
    call("cuEventElapsedTime", |driver| {
        milliseconds.set(event(driver, start)?.elapsed(&*event(driver, end)?)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(milliseconds: Out<c_float>, start: Handle, end: Handle) -> u32 {
    cuEventElapsedTime(milliseconds, start, end)
}
