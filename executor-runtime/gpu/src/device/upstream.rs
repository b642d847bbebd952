//! What memory pools ask of the driver.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::error::{DeviceError, Named, Remedy};
use super::{Context, Event, PinnedMemory};
use crate::memory::pinned::PinnedUpstream;
use crate::memory::upstream::{DevicePtr, DriverPool, Stream, Upstream, UpstreamError};

/// The driver as the source of a device's memory, and of pinned memory of the host.
#[derive(Clone, Debug)]
pub struct DeviceUpstream {
    context: Arc<Context>,
}

impl DeviceUpstream {
    /// For the memory of the context's device.
    pub fn new(context: &Arc<Context>) -> Self {
        DeviceUpstream { context: Arc::clone(context) }
    }

    fn bind(&self) -> Result<(), UpstreamError> {
        self.context.bind().map_err(|error| refused("cuCtxSetCurrent", 0, &error))
    }
}

/// The answer of a call that asked for so many bytes.
fn answer<T>(
    call: &'static str,
    bytes: u64,
    result: Result<T, cudarc::driver::DriverError>,
) -> Result<T, UpstreamError> {
    result.named(call).map_err(|error| refused(call, bytes, &error))
}

fn refused(call: &'static str, bytes: u64, error: &DeviceError) -> UpstreamError {
    match error.remedy() {
        Remedy::Split => UpstreamError::OutOfMemory { bytes },
        Remedy::FallBack => UpstreamError::Unsupported { call },
        remedy => UpstreamError::Failed {
            call,
            reason: error.to_string(),
            sticky: remedy == Remedy::Restart,
        },
    }
}

/// The number is a handle again.
fn stream(stream: Stream) -> sys::CUstream {
    ptr::with_exposed_provenance_mut(stream.0 as usize)
}

fn pool(pool: DriverPool) -> sys::CUmemoryPool {
    ptr::with_exposed_provenance_mut(pool.0 as usize)
}

// SAFETY, of all calls below: handles and addresses are the driver's own, which the pools give back
// once, after the last use; of what isn't, the driver says so.
impl Upstream for DeviceUpstream {
    type Event = Event;

    fn alloc(&self, bytes: u64) -> Result<DevicePtr, UpstreamError> {
        self.bind()?;
        // SAFETY: see above.
        answer("cuMemAlloc", bytes, unsafe { result::malloc_sync(bytes as usize) })
    }

    fn free(&self, address: DevicePtr) -> Result<(), UpstreamError> {
        self.bind()?;
        // SAFETY: see above.
        answer("cuMemFree", 0, unsafe { result::free_sync(address) })
    }

    fn create_pool(&self, keep: u64) -> Result<DriverPool, UpstreamError> {
        if !self.context.device().has_memory_pools {
            return Err(UpstreamError::Unsupported { call: "cuMemPoolCreate" });
        }
        self.bind()?;
        let properties = sys::CUmemPoolProps {
            allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: sys::CUmemLocation {
                type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: self.context.device().handle,
            },
            win32SecurityAttributes: ptr::null_mut(),
            reserved: [0; 64],
        };
        // SAFETY: the properties are read before the call returns.
        let created = unsafe { result::mem_pool::create(&raw const properties) };
        let handle = answer("cuMemPoolCreate", 0, created)?;
        let mut threshold = keep;
        let value: *mut c_void = (&raw mut threshold).cast();
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: this attribute is a number of 64 bits.
        let set = unsafe { result::mem_pool::set_attribute(handle, attribute, value) };
        let pool = DriverPool(handle.expose_provenance() as u64);
        if let Err(error) = answer("cuMemPoolSetAttribute", 0, set) {
            let _ = self.destroy_pool(pool);
            return Err(error);
        }
        Ok(pool)
    }

    fn destroy_pool(&self, driver_pool: DriverPool) -> Result<(), UpstreamError> {
        self.bind()?;
        // SAFETY: see above.
        answer("cuMemPoolDestroy", 0, unsafe { result::mem_pool::destroy(pool(driver_pool)) })
    }

    fn alloc_async(
        &self,
        driver_pool: DriverPool,
        bytes: u64,
        on: Stream,
    ) -> Result<DevicePtr, UpstreamError> {
        self.bind()?;
        // SAFETY: see above.
        let taken =
            unsafe { result::mem_pool::alloc_async(pool(driver_pool), bytes as usize, stream(on)) };
        answer("cuMemAllocFromPoolAsync", bytes, taken)
    }

    fn free_async(&self, address: DevicePtr, on: Stream) -> Result<(), UpstreamError> {
        self.bind()?;
        // SAFETY: see above.
        answer("cuMemFreeAsync", 0, unsafe { result::free_async(address, stream(on)) })
    }

    fn record(&self, on: Stream) -> Result<Event, UpstreamError> {
        // SAFETY: see above.
        unsafe { Event::record_on(&self.context, stream(on), false) }
            .map_err(|error| refused("cuEventRecord", 0, &error))
    }

    fn is_complete(&self, event: &Event) -> Result<bool, UpstreamError> {
        event.is_past().map_err(|error| refused("cuEventQuery", 0, &error))
    }

    fn wait(&self, on: Stream, event: &Event) -> Result<(), UpstreamError> {
        self.bind()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: see above; the event is there.
        let waits = unsafe { result::stream::wait_event(stream(on), event.handle, flags) };
        answer("cuStreamWaitEvent", 0, waits)
    }

    fn synchronize(&self, event: &Event) -> Result<(), UpstreamError> {
        event.wait().map_err(|error| refused("cuEventSynchronize", 0, &error))
    }
}

impl PinnedUpstream for DeviceUpstream {
    type Region = PinnedMemory;

    fn pin(&self, bytes: u64) -> Result<PinnedMemory, UpstreamError> {
        PinnedMemory::new(&self.context, bytes as usize)
            .map_err(|error| refused("cuMemHostAlloc", bytes, &error))
    }
}
