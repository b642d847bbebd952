//! What cudarc asks for and this driver hasn't. cudarc panics where a symbol is missing.

use std::ffi::c_uint;

use simulated_nvml::CudaCode;

use super::Out;
use crate::driver::call_current;
use crate::table::Handle;

macro_rules! absent {
    ($($name:ident)*) => {$(
        /// Not supported, whatever the arguments are.
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> u32 {
            call_current(stringify!($name), |_, _| Err(CudaCode::NOT_SUPPORTED))
        }
    )*};
}

absent! {
    cuStreamBeginCapture_v2
    cuStreamEndCapture
    cuGraphInstantiateWithFlags
    cuGraphLaunch
    cuGraphUpload
    cuGraphDestroy
    cuGraphExecDestroy
    cuImportExternalMemory
    cuExternalMemoryGetMappedBuffer
    cuDestroyExternalMemory
    cuOccupancyMaxPotentialClusterSize
    cuOccupancyMaxActiveClusters
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: Handle, status: Out<c_uint>) -> u32 {
    call_current("cuStreamIsCapturing", |driver, context| {
        context.stream(driver, stream)?;
        // CU_STREAM_CAPTURE_STATUS_NONE.
        status.set(0)
    })
}
