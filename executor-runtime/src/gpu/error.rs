//! What can go wrong on the GPU.

use creel_gpu::device::{DeviceError, Remedy};
use creel_gpu::memory::error::{MemoryError, Recovery};
use creel_gpu::memory::retry::Recover;
use creel_gpu::primitives::evaluate::Fault;
use datafusion::arrow::error::ArrowError;
use datafusion::error::DataFusionError;

/// What can go wrong in an operator on the GPU.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// Memory can't be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The driver refuses something.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The input, or the host's side of the operator, failed.
    #[error(transparent)]
    Engine(#[from] DataFusionError),
    /// A row has no result.
    #[error("{0}")]
    Fault(Fault),
    /// The strings of a column are longer together than offsets of 32 bits can say.
    #[error("a batch's strings have {0} bytes, and 2 GiB is the most")]
    Strings(u64),
    /// The settings leave no pool that anything fits in.
    #[error(
        "the settings leave the GPU's queries {0} bytes of its memory: raise \
         gpu.memory.alloc_size or gpu.memory.alloc_fraction"
    )]
    NoPool(u64),
    /// More rows than a batch can have.
    #[error("a batch would have {0} rows, and 2^32 - 1 is the most")]
    Rows(u64),
    /// A step was taken again, or with half of its input, until nothing was left to try.
    #[error("{error}; {reason}")]
    Exhausted {
        /// The last error.
        error: Box<GpuError>,
        /// Why that is the end.
        reason: String,
    },
    /// Nobody waits for the batches any more.
    #[error("nobody waits for the result")]
    Unwanted,
}

impl GpuError {
    /// Whether memory ran out.
    pub fn is_shortage(&self) -> bool {
        let is_step = matches!(self.recovery(), Recovery::Retry | Recovery::Split);
        is_step || matches!(self, Self::Exhausted { .. })
    }

    /// The same, where memory ran out because batches could not be spilled.
    #[must_use]
    pub fn after(self, spill: &MemoryError) -> Self {
        let reason = format!("and batches that rest could not be moved out of the way: {spill}");
        Self::Exhausted { error: Box::new(self), reason }
    }

    /// Whether the driver works no more in this process.
    pub fn is_final(&self) -> bool {
        self.recovery() == Recovery::Restart
    }
}

impl Recover for GpuError {
    fn recovery(&self) -> Recovery {
        match self {
            Self::Memory(error) => error.recovery(),
            Self::Device(error) => match error.remedy() {
                Remedy::Split => Recovery::Split,
                Remedy::Restart => Recovery::Restart,
                Remedy::FallBack | Remedy::Fail => Recovery::Fail,
            },
            Self::Strings(_) | Self::Rows(_) => Recovery::Split,
            Self::NoPool(_)
            | Self::Exhausted { .. }
            | Self::Engine(_)
            | Self::Fault(_)
            | Self::Unwanted => Recovery::Fail,
        }
    }

    fn cannot_split(self, reason: &'static str) -> Self {
        Self::Exhausted { error: Box::new(self), reason: reason.to_owned() }
    }

    fn too_many(self, attempts: usize) -> Self {
        let reason = format!("the step was taken {attempts} times");
        Self::Exhausted { error: Box::new(self), reason }
    }
}

impl From<ArrowError> for GpuError {
    fn from(error: ArrowError) -> Self {
        Self::Engine(error.into())
    }
}

impl From<GpuError> for DataFusionError {
    fn from(error: GpuError) -> Self {
        match error {
            GpuError::Engine(error) => error,
            // Whoever sees it has to know.
            error if error.is_final() => DataFusionError::External(error.into()),
            // As the engine's own operators say it.
            GpuError::Fault(Fault::DivideByZero) => ArrowError::DivideByZero.into(),
            GpuError::Fault(fault @ Fault::Overflow) => {
                ArrowError::ArithmeticOverflow(fault.to_string()).into()
            }
            GpuError::Fault(fault @ Fault::OutOfRange) => {
                ArrowError::CastError(fault.to_string()).into()
            }
            error @ GpuError::Memory(MemoryError::SpillDamaged { .. }) => {
                DataFusionError::External(error.into())
            }
            GpuError::Memory(error) => DataFusionError::ResourcesExhausted(error.to_string()),
            error @ GpuError::Exhausted { .. } => {
                DataFusionError::ResourcesExhausted(error.to_string())
            }
            error => DataFusionError::External(error.into()),
        }
    }
}
