//! Batches of the device, one after the other.

use crate::batch::Batch;
use crate::gpu::{GpuError, Work};

/// Batches of the device. It is asked on the thread of its region, with the GPU at hand.
pub trait DeviceStream: Send {
    /// The next batch, or `None` at the end. After an error nothing more is asked.
    fn next(&mut self, work: &mut Work<'_>) -> Result<Option<Batch>, GpuError>;
}
