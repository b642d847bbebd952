//! Modules and functions: what of a PTX text can be loaded and launched.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use serde_json::json;
use simulated_nvml::CudaCode;

use crate::context::Context;
use crate::device::{Device, MAX_THREADS, SHARED_DEFAULT};
use crate::driver::{Driver, Result, complain};
use crate::kernels::{Code, Dim, Kernel};
use crate::ptx::{self, Entry, Ptx};
use crate::stream::Stream;
use crate::table::{Handle, new_handle};

/// A module.
pub(crate) struct Module {
    pub(crate) context: Handle,
    pub(crate) ptx: Ptx,
    code: Option<&'static Code>,
}

/// A kernel of a module.
pub(crate) struct Function {
    pub(crate) context: Handle,
    pub(crate) module: Handle,
    pub(crate) entry: Entry,
    ptx_version: i32,
    module_name: &'static str,
    kernel: Kernel,
    dynamic_shared: AtomicU32,
    carveout: AtomicI32,
}

impl Module {
    /// Loads an image: a PTX text. Other images are for chips, of which this is none.
    pub(crate) fn load(driver: &'static Driver, context: &Context, image: &[u8]) -> Result<Handle> {
        if image.starts_with(b"\x7fELF") || image.starts_with(&[0x50, 0xed, 0x55, 0xba]) {
            return Err(complain(CudaCode::NO_BINARY_FOR_GPU, "machine code doesn't run here"));
        }
        let text = std::str::from_utf8(image).map_err(|_| CudaCode::INVALID_IMAGE)?;
        let ptx = Ptx::parse(text).ok_or(CudaCode::INVALID_PTX)?;
        let cuda = driver.node.topology.cuda().map_err(|_| CudaCode::UNKNOWN)?;
        if ptx.version > ptx::newest(cuda) {
            return Err(CudaCode::UNSUPPORTED_PTX_VERSION);
        }
        let (major, minor) = driver.devices[context.device].capability;
        let chip = (major * 10 + minor).cast_unsigned();
        if ptx.target > chip || (ptx.exact && ptx.target != chip) {
            return Err(CudaCode::INVALID_PTX);
        }
        let code = driver.kernels.module(&ptx.entries);
        for entry in &ptx.entries {
            let Some(kernel) = code.and_then(|code| code.kernel(&entry.name)) else { continue };
            let sizes: Vec<u32> = kernel.arguments().iter().map(|argument| argument.size).collect();
            if sizes != entry.parameters {
                return Err(complain(
                    CudaCode::INVALID_IMAGE,
                    format_args!(
                        "the PTX of kernel {} takes arguments of {:?} bytes, its source of {sizes:?}: \
                         one of them is not built anew",
                        entry.name, entry.parameters
                    ),
                ));
            }
        }
        let handle = new_handle();
        let entries: Vec<&str> = ptx.entries.iter().map(|entry| entry.name.as_str()).collect();
        let name = code.map(|code| code.name);
        driver.record("cuModuleLoadData", &json!({ "module": name, "kernels": entries }));
        driver.modules.insert(handle, Arc::new(Self { context: context.handle, ptx, code }));
        Ok(handle)
    }

    /// A kernel by its name.
    pub(crate) fn function(&self, driver: &Driver, module: Handle, name: &str) -> Result<Handle> {
        let mut entries = self.ptx.entries.iter();
        let entry = entries.find(|entry| entry.name == name).ok_or(CudaCode::NOT_FOUND)?;
        let found = self.code.and_then(|code| Some((code.name, code.kernel(name)?)));
        let (module_name, kernel) = found.ok_or_else(|| {
            let why = format_args!("no .cu file has all kernels of the module of {name}");
            complain(CudaCode::SHARED_OBJECT_SYMBOL_NOT_FOUND, why)
        })?;
        let handle = new_handle();
        let function = Function {
            context: self.context,
            module,
            entry: entry.clone(),
            ptx_version: (self.ptx.version.0 * 10 + self.ptx.version.1).cast_signed(),
            module_name,
            kernel,
            dynamic_shared: AtomicU32::new(SHARED_DEFAULT.saturating_sub(entry.shared)),
            carveout: AtomicI32::new(-1),
        };
        driver.functions.insert(handle, Arc::new(function));
        Ok(handle)
    }
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: Dim,
    pub(crate) block: Dim,
    /// Dynamic shared memory in bytes.
    pub(crate) shared: u32,
}

impl Function {
    /// The most threads of a block.
    pub(crate) fn max_threads(&self) -> u32 {
        self.entry.max_threads.unwrap_or(MAX_THREADS)
    }

    /// An attribute, by its number in `CUfunction_attribute`.
    pub(crate) fn attribute(&self, device: &Device, number: i32) -> Result<i32> {
        Ok(match number {
            0 => self.max_threads().cast_signed(),
            1 => self.entry.shared.cast_signed(),
            2 | 3 | 7 => 0,
            // How many there are is the compiler's to say.
            4 => 32,
            5 => self.ptx_version,
            6 => device.capability.0 * 10 + device.capability.1,
            8 => self.dynamic_shared.load(Ordering::Relaxed).cast_signed(),
            9 => self.carveout.load(Ordering::Relaxed),
            _ => return Err(CudaCode::INVALID_VALUE),
        })
    }

    /// Sets an attribute that can be set.
    pub(crate) fn set_attribute(&self, device: &Device, number: i32, value: i32) -> Result<()> {
        match number {
            8 => {
                let most = device.limits().shared_block - self.entry.shared;
                let value = u32::try_from(value).ok().filter(|value| *value <= most);
                self.dynamic_shared.store(value.ok_or(CudaCode::INVALID_VALUE)?, Ordering::Relaxed);
            }
            9 if (-1..=100).contains(&value) => self.carveout.store(value, Ordering::Relaxed),
            _ => return Err(CudaCode::INVALID_VALUE),
        }
        Ok(())
    }

    /// Blocks of the kernel that an SM holds.
    pub(crate) fn blocks_per_multiprocessor(
        &self,
        device: &Device,
        threads: u32,
        shared: u32,
    ) -> u32 {
        if threads > self.max_threads() {
            return 0;
        }
        device.blocks_per_multiprocessor(threads, self.entry.shared + shared)
    }

    fn check(&self, shape: Shape) -> Result<()> {
        let Shape { grid, block, shared } = shape;
        let within = |dim: Dim, most: Dim| {
            (1..=most.0).contains(&dim.0)
                && (1..=most.1).contains(&dim.1)
                && (1..=most.2).contains(&dim.2)
        };
        if !within(grid, Dim(i32::MAX as u32, 65535, 65535))
            || !within(block, Dim(MAX_THREADS, MAX_THREADS, 64))
            || block.count() > u64::from(MAX_THREADS)
            || shared > self.dynamic_shared.load(Ordering::Relaxed)
        {
            return Err(CudaCode::INVALID_VALUE);
        }
        if block.count() > u64::from(self.max_threads()) {
            return Err(CudaCode(701));
        }
        Ok(())
    }

    /// Launches the kernel in a stream.
    ///
    /// # Safety
    ///
    /// `arguments` is null, or has a pointer to a value for each argument of the kernel.
    pub(crate) unsafe fn launch(
        self: &Arc<Self>,
        driver: &'static Driver,
        context: &Context,
        stream: &Stream,
        shape: Shape,
        arguments: *const *const c_void,
    ) -> Result<()> {
        self.check(shape)?;
        let expected = self.kernel.arguments();
        if arguments.is_null() && !expected.is_empty() {
            return Err(CudaCode::INVALID_VALUE);
        }
        let mut values = Vec::with_capacity(expected.len());
        let mut foreign = None;
        for (index, argument) in expected.iter().enumerate() {
            // SAFETY: by the contract, there is a pointer to a value of this size.
            let value = unsafe {
                let value = *arguments.add(index);
                if value.is_null() {
                    return Err(CudaCode::INVALID_VALUE);
                }
                Value::copy(value, argument.size as usize)
            };
            if argument.pointer != 0 && is_of_the_host(driver, value.address()) {
                foreign = foreign.or(Some((index, value.address())));
            }
            values.push(value);
        }
        let (grid, block) = (shape.grid, shape.block);
        driver.record(
            "cuLaunchKernel",
            &json!({
                "kernel": self.entry.name,
                "module": self.module_name,
                "gpu": driver.devices[context.device].gpu,
                "stream": stream.handle,
                "grid": [grid.0, grid.1, grid.2],
                "block": [block.0, block.1, block.2],
                "shared": shape.shared,
            }),
        );
        let seed = driver.next_seed();
        let function = Arc::clone(self);
        let gpu = driver.devices[context.device].gpu;
        stream.submit(driver, context, move || {
            driver.suffer_at_work("cuLaunchKernel", gpu);
            if let Some((index, address)) = foreign {
                let name = &function.entry.name;
                let why = format!("kernel {name}: argument {index} is {address:#x}, of the host");
                return driver.fail_for_good(CudaCode::ILLEGAL_ADDRESS, why);
            }
            let mut pointers: Vec<*mut c_void> = values.iter_mut().map(Value::pointer).collect();
            // SAFETY: a pointer to a value of its type for each argument.
            let result = unsafe {
                let kernel = function.kernel;
                driver.kernels.run(kernel, grid, block, shape.shared, &mut pointers, seed)
            };
            if let Err((code, why)) = result {
                driver.fail_for_good(code, format_args!("kernel {}: {why}", function.entry.name));
            }
        });
        Ok(())
    }
}

/// The value of an argument, aligned for any type.
struct Value(Vec<u128>);

impl Value {
    /// # Safety
    ///
    /// At `value` are `size` bytes.
    unsafe fn copy(value: *const c_void, size: usize) -> Self {
        let mut copy = vec![0_u128; size.div_ceil(16).max(1)];
        // SAFETY: by the contract, and there is room for so many.
        unsafe {
            copy.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(value.cast(), size);
        }
        Self(copy)
    }

    fn address(&self) -> u64 {
        self.0[0] as u64
    }

    fn pointer(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}

/// Whether an address is of memory that a kernel could touch here and not on a device.
fn is_of_the_host(driver: &Driver, address: u64) -> bool {
    if address == 0 || driver.memory.find(address).is_some() {
        return false;
    }
    let mut state = 0_u8;
    // SAFETY: any page may be asked about; the answer is one byte.
    unsafe { libc::mincore((address & !4095) as *mut c_void, 1, &raw mut state) == 0 }
}
