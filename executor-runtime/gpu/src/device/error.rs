//! What the driver refuses, and what may be done about it.

use cudarc::driver::sys::CUresult;

/// What a caller may do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// There is too little memory: free some, or take less of the input at once, and try again.
    Split,
    /// The device or driver can't do it: leave it to the CPU.
    FallBack,
    /// Every later call of this process fails too: end it, and let the agent start another.
    Restart,
    /// None: a mistake of the caller's.
    Fail,
}

/// Why something wasn't done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is no libcuda.so.1.
    #[error("no CUDA driver: libcuda.so.1 isn't found; install NVIDIA's driver R525 or later")]
    NoDriver,
    /// The driver doesn't load PTX 8.0.
    #[error(
        "the driver knows CUDA {}.{} at most, and 12.0 is needed: install driver R525 or later",
        version / 1000, version % 1000 / 10
    )]
    OldDriver {
        /// As `cuDriverGetVersion` says it.
        version: i32,
    },
    /// The process sees no such device.
    #[error(
        "no device {uuid} in this process; CUDA shows {}: is it in CUDA_VISIBLE_DEVICES?",
        if seen.is_empty() { "none".to_owned() } else { seen.join(", ") }
    )]
    NoDevice {
        /// What was asked for.
        uuid: String,
        /// What there is.
        seen: Vec<String>,
    },
    /// A call failed.
    #[error("{call} failed: {name} ({code}): {reason}")]
    Call {
        /// The function of the Driver API; of a launch with the kernel's name.
        call: String,
        /// The number of the error.
        code: u32,
        /// Its name.
        name: String,
        /// What the driver says about it.
        reason: String,
    },
    /// A region has fewer bytes than what is to be read or written there.
    #[error("{what} takes {needed} bytes, and the region has {bytes}")]
    TooSmall {
        /// What it is for.
        what: &'static str,
        /// What it has.
        bytes: u64,
        /// What it takes.
        needed: u64,
    },
    /// More than a launch takes.
    #[error("{what}: {count} is more than a launch takes ({limit})")]
    TooMany {
        /// What it is.
        what: &'static str,
        /// How many there are.
        count: u64,
        /// How many there may be.
        limit: u64,
    },
}

impl DeviceError {
    pub(crate) fn of(call: impl Into<String>, result: CUresult) -> Self {
        let error = cudarc::driver::DriverError(result);
        let text = |text: Result<&std::ffi::CStr, _>| {
            text.map_or_else(|_| "unknown".to_owned(), |it| it.to_string_lossy().into_owned())
        };
        DeviceError::Call {
            call: call.into(),
            code: result as u32,
            name: text(error.error_name()),
            reason: text(error.error_string()),
        }
    }

    /// What may be done about it.
    pub fn remedy(&self) -> Remedy {
        use CUresult as R;
        let DeviceError::Call { code, .. } = self else {
            return match self {
                DeviceError::NoDriver | DeviceError::OldDriver { .. } => Remedy::FallBack,
                DeviceError::TooMany { .. } => Remedy::Split,
                _ => Remedy::Fail,
            };
        };
        let is = |results: &[CUresult]| results.iter().any(|&it| it as u32 == *code);
        if is(&[R::CUDA_ERROR_OUT_OF_MEMORY]) {
            Remedy::Split
        } else if is(&[
            R::CUDA_ERROR_NOT_SUPPORTED,
            R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            R::CUDA_ERROR_INVALID_PTX,
            R::CUDA_ERROR_NO_BINARY_FOR_GPU,
            R::CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
            R::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            R::CUDA_ERROR_NO_DEVICE,
        ]) {
            Remedy::FallBack
        } else if is(&[
            R::CUDA_ERROR_DEINITIALIZED,
            R::CUDA_ERROR_DEVICE_UNAVAILABLE,
            R::CUDA_ERROR_ECC_UNCORRECTABLE,
            R::CUDA_ERROR_NVLINK_UNCORRECTABLE,
            R::CUDA_ERROR_ILLEGAL_ADDRESS,
            R::CUDA_ERROR_LAUNCH_TIMEOUT,
            R::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            R::CUDA_ERROR_ASSERT,
            R::CUDA_ERROR_HARDWARE_STACK_ERROR,
            R::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            R::CUDA_ERROR_MISALIGNED_ADDRESS,
            R::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            R::CUDA_ERROR_INVALID_PC,
            R::CUDA_ERROR_LAUNCH_FAILED,
            R::CUDA_ERROR_SYSTEM_NOT_READY,
            R::CUDA_ERROR_UNKNOWN,
        ]) {
            Remedy::Restart
        } else {
            Remedy::Fail
        }
    }
}

/// The answer of a call, with its name.
pub(crate) trait Named<T> {
    fn named(self, call: &str) -> Result<T, DeviceError>;
}

impl<T> Named<T> for Result<T, cudarc::driver::DriverError> {
    fn named(self, call: &str) -> Result<T, DeviceError> {
        self.map_err(|error| DeviceError::of(call, error.0))
    }
}

impl Named<()> for CUresult {
    fn named(self, call: &str) -> Result<(), DeviceError> {
        match self {
            CUresult::CUDA_SUCCESS => Ok(()),
            error => Err(DeviceError::of(call, error)),
        }
    }
}
