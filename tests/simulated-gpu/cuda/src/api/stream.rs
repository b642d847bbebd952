//! Streams.

use std::ffi::{c_int, c_uint, c_void};

use simulated_nvml::CudaCode;

use super::Out;
use super::context::trim_pools;
use crate::driver::call_current;
use crate::stream::Stream;
use crate::table::Handle;

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(target: Out<Handle>, flags: c_uint) -> u32 {
    call_current("cuStreamCreate", |driver, context| {
        if flags > 1 {
            return Err(CudaCode::INVALID_VALUE);
        }
        target.set(Stream::create(driver, context, flags, 0))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(
    target: Out<Handle>,
    flags: c_uint,
    priority: c_int,
) -> u32 {
    call_current("cuStreamCreateWithPriority", |driver, context| {
        if flags > 1 {
            return Err(CudaCode::INVALID_VALUE);
        }
        target.set(Stream::create(driver, context, flags, priority.clamp(-5, 0)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: Handle) -> u32 {
    call_current("cuStreamDestroy_v2", |driver, context| {
        if stream <= 2 {
            return Err(CudaCode::INVALID_HANDLE);
        }
        context.stream(driver, stream)?;
        driver.streams.remove(stream).ok_or(CudaCode::INVALID_HANDLE)?.close();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: Handle) -> u32 {
    call_current("cuStreamSynchronize", |driver, context| {
        let stream = context.stream(driver, stream)?;
        if stream.handle == 0 {
            // All that the default stream would wait for.
            stream.submit(driver, context, || ());
        }
        stream.finish();
        driver.check()?;
        trim_pools(driver, context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: Handle) -> u32 {
    call_current("cuStreamQuery", |driver, context| context.stream(driver, stream)?.last().poll())
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> u32 {
    call_current("cuStreamWaitEvent", |driver, context| {
        let stream = context.stream(driver, stream)?;
        let event = driver.events.get(event).ok_or(CudaCode::INVALID_HANDLE)?;
        if let Some(ticket) = event.ticket() {
            stream.wait_for(driver, &ticket);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetFlags(stream: Handle, flags: Out<c_uint>) -> u32 {
    call_current("cuStreamGetFlags", |driver, context| {
        flags.set(context.stream(driver, stream)?.flags)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetPriority(stream: Handle, priority: Out<c_int>) -> u32 {
    call_current("cuStreamGetPriority", |driver, context| {
        priority.set(context.stream(driver, stream)?.priority)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(stream: Handle, target: Out<Handle>) -> u32 {
    call_current("cuStreamGetCtx", |driver, context| {
        target.set(context.stream(driver, stream)?.context)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamAttachMemAsync(
    stream: Handle,
    address: u64,
    _length: usize,
    _flags: c_uint,
) -> u32 {
    call_current("cuStreamAttachMemAsync", |driver, context| {
        context.stream(driver, stream)?;
        driver.memory.find(address).map(|_| ()).ok_or(CudaCode::INVALID_VALUE)
    })
}

/// A pointer of the caller's that goes to a function of the caller's.
struct UserData(*mut c_void);
// SAFETY: the API hands it to another thread; that this is right is the caller's to warrant.
unsafe impl Send for UserData {}

impl UserData {
    fn give(self, function: extern "C" fn(*mut c_void)) {
        function(self.0);
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(
    stream: Handle,
    function: Option<extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> u32 {
    let data = UserData(data);
    call_current("cuLaunchHostFunc", |driver, context| {
        let stream = context.stream(driver, stream)?;
        let function = function.ok_or(CudaCode::INVALID_VALUE)?;
        stream.submit(driver, context, move || data.give(function));
        Ok(())
    })
}
