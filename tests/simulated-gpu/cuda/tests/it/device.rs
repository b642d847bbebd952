//! What the tests have in common: results, device memory, modules, launches.

use std::ffi::{CString, c_void};

use cudarc::driver::sys::{CUfunction, CUmodule, CUresult, CUstream};
use cudarc::driver::{CudaContext, DriverError, result};

/// The kernels of the tests, as NVRTC compiled them.
pub(crate) const PTX: &str = include_str!("../../kernels/probe.ptx");

/// The result of a call as the driver gave it.
pub(crate) fn code<T>(result: Result<T, DriverError>) -> CUresult {
    result.err().map_or(CUresult::CUDA_SUCCESS, |error| error.0)
}

/// Device memory that ends with the process.
pub(crate) struct Words<T> {
    pub(crate) address: u64,
    length: usize,
    kind: std::marker::PhantomData<T>,
}

impl<T: Copy + Default> Words<T> {
    pub(crate) fn new(values: &[T]) -> Self {
        let size = size_of_val(values).max(1);
        let address = unsafe { result::malloc_sync(size) }.unwrap();
        unsafe { result::memcpy_htod_sync(address, values) }.unwrap();
        Self { address, length: values.len(), kind: std::marker::PhantomData }
    }

    pub(crate) fn get(&self) -> Vec<T> {
        self.try_get().unwrap()
    }

    pub(crate) fn try_get(&self) -> Result<Vec<T>, DriverError> {
        let mut values = vec![T::default(); self.length];
        unsafe { result::memcpy_dtoh_sync(&mut values, self.address) }.map(|()| values)
    }
}

/// A context on the first device, and a module in it.
pub(crate) struct Module {
    module: CUmodule,
    _context: std::sync::Arc<CudaContext>,
}

impl Module {
    pub(crate) fn load() -> Self {
        let context = CudaContext::new(0).unwrap();
        Self { module: load(PTX).unwrap(), _context: context }
    }

    pub(crate) fn function(&self, name: &str) -> CUfunction {
        unsafe { result::module::get_function(self.module, CString::new(name).unwrap()) }.unwrap()
    }

    /// Launches a kernel in the default stream.
    pub(crate) fn run(
        &self,
        name: &str,
        (grid, block, shared): (u32, u32, u32),
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        self.run_in(result::stream::null(), name, (grid, block, shared), arguments)
    }

    pub(crate) fn run_in(
        &self,
        stream: CUstream,
        name: &str,
        (grid, block, shared): (u32, u32, u32),
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        let function = self.function(name);
        unsafe {
            result::launch_kernel(function, (grid, 1, 1), (block, 1, 1), shared, stream, arguments)
        }
    }
}

/// Loads a PTX text into the current context.
pub(crate) fn load(text: &str) -> Result<CUmodule, DriverError> {
    let text = CString::new(text).unwrap();
    unsafe { result::module::load_data(text.as_ptr().cast()) }
}

/// A pointer to an argument.
pub(crate) fn arg<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}
