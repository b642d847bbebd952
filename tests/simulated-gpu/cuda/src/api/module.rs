//! Modules, functions, launches, occupancy.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::Arc;

use simulated_nvml::CudaCode;

use super::{Out, Text};
use crate::context::Context;
use crate::device::MAX_THREADS;
use crate::driver::{Driver, Result, call, call_current};
use crate::kernels::Dim;
use crate::module::{Function, Module, Shape};
use crate::table::Handle;

fn function(driver: &Driver, handle: Handle) -> Result<Arc<Function>> {
    driver.functions.get(handle).ok_or(CudaCode::INVALID_HANDLE)
}

/// # Safety
///
/// `image` is null, or an image: a text with its zero, or one whose first four bytes say otherwise.
unsafe fn load(
    driver: &'static Driver,
    context: &Context,
    target: &Out<Handle>,
    image: *const c_void,
) -> Result<()> {
    if image.is_null() {
        return Err(CudaCode::INVALID_VALUE);
    }
    // SAFETY: by the contract; of machine code no more is read than the bytes that say so.
    let image = unsafe {
        match *image.cast::<[u8; 4]>() {
            head @ ([0x7f, b'E', b'L', b'F'] | [0x50, 0xed, 0x55, 0xba]) => head.to_vec(),
            _ => CStr::from_ptr(image.cast()).to_bytes().to_vec(),
        }
    };
    target.set(Module::load(driver, context, &image)?)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(target: Out<Handle>, image: *const c_void) -> u32 {
    call_current("cuModuleLoadData", |driver, context| {
        // SAFETY: as the API asks of its callers.
        unsafe { load(driver, context, &target, image) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadDataEx(
    target: Out<Handle>,
    image: *const c_void,
    _count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
) -> u32 {
    call_current("cuModuleLoadDataEx", |driver, context| {
        // SAFETY: as the API asks of its callers.
        unsafe { load(driver, context, &target, image) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoad(target: Out<Handle>, path: Text) -> u32 {
    call_current("cuModuleLoad", |driver, context| {
        let image = std::fs::read(path.get()?).map_err(|_| CudaCode(301))?;
        target.set(Module::load(driver, context, &image)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: Handle) -> u32 {
    call_current("cuModuleUnload", |driver, context| {
        context.synchronize(driver)?;
        driver.modules.remove(module).ok_or(CudaCode::INVALID_HANDLE)?;
        driver.functions.retain(|function| function.module != module);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(target: Out<Handle>, module: Handle, name: Text) -> u32 {
    call_current("cuModuleGetFunction", |driver, _| {
        let of = driver.modules.get(module).ok_or(CudaCode::INVALID_HANDLE)?;
        target.set(of.function(driver, module, name.get()?)?)
    })
}

/// Kernels here have no variables of their module.
#[unsafe(no_mangle)]
extern "C" fn cuModuleGetGlobal_v2(
    _address: Out<u64>,
    _size: Out<usize>,
    module: Handle,
    _name: Text,
) -> u32 {
    call_current("cuModuleGetGlobal_v2", |driver, _| {
        driver.modules.get(module).ok_or(CudaCode::INVALID_HANDLE)?;
        Err(CudaCode::NOT_FOUND)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetAttribute(value: Out<c_int>, number: c_int, handle: Handle) -> u32 {
    call_current("cuFuncGetAttribute", |driver, context| {
        let device = &driver.devices[context.device];
        value.set(function(driver, handle)?.attribute(device, number)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(handle: Handle, number: c_int, value: c_int) -> u32 {
    call_current("cuFuncSetAttribute", |driver, context| {
        let device = &driver.devices[context.device];
        function(driver, handle)?.set_attribute(device, number, value)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetCacheConfig(handle: Handle, _config: c_uint) -> u32 {
    call_current("cuFuncSetCacheConfig", |driver, _| function(driver, handle).map(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetModule(target: Out<Handle>, handle: Handle) -> u32 {
    call("cuFuncGetModule", |driver| target.set(function(driver, handle)?.module))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    handle: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: Handle,
    arguments: *const *const c_void,
    extra: *const *const c_void,
) -> u32 {
    call_current("cuLaunchKernel", |driver, context| {
        let function = function(driver, handle)?;
        if function.context != context.handle {
            return Err(CudaCode::INVALID_HANDLE);
        }
        if !extra.is_null() {
            return Err(CudaCode::NOT_SUPPORTED);
        }
        let stream = context.stream(driver, stream)?;
        let shape = Shape {
            grid: Dim(grid_x, grid_y, grid_z),
            block: Dim(block_x, block_y, block_z),
            shared,
        };
        // SAFETY: the caller passes as many arguments as the kernel has, or null.
        unsafe { function.launch(driver, context, &stream, shape, arguments) }
    })
}

/// Blocks run one after the other here, so none can wait for another.
#[unsafe(no_mangle)]
extern "C" fn cuLaunchCooperativeKernel(
    handle: Handle,
    _grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared: c_uint,
    _stream: Handle,
    _arguments: *mut *mut c_void,
) -> u32 {
    call_current("cuLaunchCooperativeKernel", |driver, _| {
        function(driver, handle)?;
        Err(CudaCode::NOT_SUPPORTED)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    count: Out<c_int>,
    handle: Handle,
    threads: c_int,
    shared: usize,
) -> u32 {
    call_current("cuOccupancyMaxActiveBlocksPerMultiprocessor", |driver, context| {
        let device = &driver.devices[context.device];
        let threads = u32::try_from(threads).map_err(|_| CudaCode::INVALID_VALUE)?;
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(CudaCode::INVALID_VALUE);
        }
        let shared = u32::try_from(shared).map_err(|_| CudaCode::INVALID_VALUE)?;
        let function = function(driver, handle)?;
        count.set(function.blocks_per_multiprocessor(device, threads, shared).cast_signed())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    count: Out<c_int>,
    handle: Handle,
    threads: c_int,
    shared: usize,
    _flags: c_uint,
) -> u32 {
    cuOccupancyMaxActiveBlocksPerMultiprocessor(count, handle, threads, shared)
}

type SharedOfBlock = Option<extern "C" fn(c_int) -> usize>;

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxPotentialBlockSize(
    blocks: Out<c_int>,
    threads: Out<c_int>,
    handle: Handle,
    shared_of: SharedOfBlock,
    shared: usize,
    most: c_int,
) -> u32 {
    call_current("cuOccupancyMaxPotentialBlockSize", |driver, context| {
        let device = &driver.devices[context.device];
        let function = function(driver, handle)?;
        let limit = u32::try_from(most).ok().filter(|most| *most > 0).unwrap_or(MAX_THREADS);
        let limit = limit.min(function.max_threads());
        let mut best = (0, 0, 0);
        for size in (1..=limit / 32).map(|warps| warps * 32) {
            let shared = shared_of.map_or(shared, |shared_of| shared_of(size.cast_signed()));
            let held = function.blocks_per_multiprocessor(
                device,
                size,
                u32::try_from(shared).unwrap_or(u32::MAX / 2),
            );
            // The most threads, in the largest blocks.
            best = best.max((held * size, size, held));
        }
        let (_, size, held) = best;
        let multiprocessors = device.attribute(16)?;
        blocks.set(held.cast_signed() * multiprocessors)?;
        threads.set(size.cast_signed())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    blocks: Out<c_int>,
    threads: Out<c_int>,
    handle: Handle,
    shared_of: SharedOfBlock,
    shared: usize,
    most: c_int,
    _flags: c_uint,
) -> u32 {
    cuOccupancyMaxPotentialBlockSize(blocks, threads, handle, shared_of, shared, most)
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: Out<usize>,
    handle: Handle,
    blocks: c_int,
    _threads: c_int,
) -> u32 {
    call_current("cuOccupancyAvailableDynamicSMemPerBlock", |driver, context| {
        let limits = driver.devices[context.device].limits();
        let function = function(driver, handle)?;
        let blocks = u32::try_from(blocks).ok().filter(|blocks| *blocks > 0);
        let each = limits.shared / blocks.ok_or(CudaCode::INVALID_VALUE)?;
        let taken = limits.shared_reserved + function.entry.shared;
        bytes.set(each.saturating_sub(taken).min(limits.shared_block) as usize)
    })
}
