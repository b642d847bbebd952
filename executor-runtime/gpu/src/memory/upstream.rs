//! What the driver gives: memory, and order among streams.

use std::fmt;

/// An address of device memory, as a `CUdeviceptr`. Nothing here follows it.
pub type DevicePtr = u64;

/// A stream, by its handle (`CUstream`); 0 is the default stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stream(pub u64);

impl fmt::LowerHex for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// A pool of the driver (`CUmemoryPool`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DriverPool(pub u64);

/// Why the driver did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// There is not that much memory (`CUDA_ERROR_OUT_OF_MEMORY`).
    #[error("the driver has no {bytes} bytes of device memory left")]
    OutOfMemory {
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// The device or its driver can't do that (`CUDA_ERROR_NOT_SUPPORTED`).
    #[error("{call} is not supported by this device or its driver")]
    Unsupported {
        /// The function of the Driver API.
        call: &'static str,
    },
    /// The call failed.
    #[error("{call} failed: {reason}")]
    Failed {
        /// The function of the Driver API.
        call: &'static str,
        /// What the driver says.
        reason: String,
        /// Whether every later call of this process fails too, until it is gone.
        sticky: bool,
    },
}

/// A device's driver, as far as memory needs it.
///
/// Calls may come from any thread. Each answers at once, but [`Upstream::synchronize`].
pub trait Upstream: Send + Sync + 'static {
    /// A point in a stream's work (`CUevent`). Dropping it is allowed while a stream waits for it.
    type Event: Send + Sync + 'static;

    /// Takes memory (`cuMemAlloc`); its address is a multiple of 256.
    fn alloc(&self, bytes: u64) -> Result<DevicePtr, UpstreamError>;

    /// Gives it back (`cuMemFree`). No work that uses it may be left on any stream.
    fn free(&self, address: DevicePtr) -> Result<(), UpstreamError>;

    /// Makes a pool that keeps what is freed into it, up to `keep` bytes (`cuMemPoolCreate`,
    /// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`).
    fn create_pool(&self, keep: u64) -> Result<DriverPool, UpstreamError>;

    /// Ends a pool of which nothing is in use any more (`cuMemPoolDestroy`).
    fn destroy_pool(&self, pool: DriverPool) -> Result<(), UpstreamError>;

    /// Takes memory of a pool in the order of a stream (`cuMemAllocFromPoolAsync`).
    fn alloc_async(
        &self,
        pool: DriverPool,
        bytes: u64,
        stream: Stream,
    ) -> Result<DevicePtr, UpstreamError>;

    /// Gives it back in the order of a stream (`cuMemFreeAsync`).
    fn free_async(&self, address: DevicePtr, stream: Stream) -> Result<(), UpstreamError>;

    /// Marks the end of all that the stream was given until now (`cuEventRecord`).
    fn record(&self, stream: Stream) -> Result<Self::Event, UpstreamError>;

    /// Whether the device is past the event (`cuEventQuery`).
    fn is_complete(&self, event: &Self::Event) -> Result<bool, UpstreamError>;

    /// Lets what the stream is given from now on wait for the event (`cuStreamWaitEvent`).
    fn wait(&self, stream: Stream, event: &Self::Event) -> Result<(), UpstreamError>;

    /// Blocks until the device is past the event (`cuEventSynchronize`).
    fn synchronize(&self, event: &Self::Event) -> Result<(), UpstreamError>;
}
