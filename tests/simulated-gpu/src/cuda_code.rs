//! Results of the CUDA driver API, by the names of `cuda.h` without their prefix `CUDA_ERROR_`.

use std::ffi::CStr;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// A result of the CUDA driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CudaCode(pub u32);

impl CudaCode {
    /// An argument is invalid, as a pointer that is of no allocation.
    pub const INVALID_VALUE: Self = Self(1);
    /// There is not so much memory.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// `cuInit` has not been called, or in another process before a fork.
    pub const NOT_INITIALIZED: Self = Self(3);
    /// The compute mode lets no more processes in.
    pub const DEVICE_UNAVAILABLE: Self = Self(46);
    /// There is no device, or none is visible.
    pub const NO_DEVICE: Self = Self(100);
    /// There is no such device.
    pub const INVALID_DEVICE: Self = Self(101);
    /// The image is no module.
    pub const INVALID_IMAGE: Self = Self(200);
    /// No context is current.
    pub const INVALID_CONTEXT: Self = Self(201);
    /// The module is for other chips.
    pub const NO_BINARY_FOR_GPU: Self = Self(209);
    /// The PTX can't be compiled.
    pub const INVALID_PTX: Self = Self(218);
    /// The PTX is of a version that came after the driver.
    pub const UNSUPPORTED_PTX_VERSION: Self = Self(222);
    /// There is no such file.
    pub const FILE_NOT_FOUND: Self = Self(301);
    /// A kernel is not built in.
    pub const SHARED_OBJECT_SYMBOL_NOT_FOUND: Self = Self(302);
    /// The handle is of nothing.
    pub const INVALID_HANDLE: Self = Self(400);
    /// There is nothing of the name.
    pub const NOT_FOUND: Self = Self(500);
    /// Work is not done yet.
    pub const NOT_READY: Self = Self(600);
    /// A kernel touched memory that is not its own. Sticky.
    pub const ILLEGAL_ADDRESS: Self = Self(700);
    /// A launch asks for more than there is.
    pub const LAUNCH_OUT_OF_RESOURCES: Self = Self(701);
    /// A kernel took too long: its threads wait for each other. Sticky.
    pub const LAUNCH_TIMEOUT: Self = Self(702);
    /// The primary context is in use.
    pub const PRIMARY_CONTEXT_ACTIVE: Self = Self(708);
    /// The current context was destroyed.
    pub const CONTEXT_IS_DESTROYED: Self = Self(709);
    /// The host memory is registered already.
    pub const HOST_MEMORY_ALREADY_REGISTERED: Self = Self(712);
    /// The host memory is not registered.
    pub const HOST_MEMORY_NOT_REGISTERED: Self = Self(713);
    /// A kernel failed. Sticky.
    pub const LAUNCH_FAILED: Self = Self(719);
    /// Not supported.
    pub const NOT_SUPPORTED: Self = Self(801);
    /// Something else, as a GPU that has fallen off the bus. Sticky.
    pub const UNKNOWN: Self = Self(999);

    /// Its name, with the prefix; absent: there is no such result.
    pub fn name(self) -> Option<&'static CStr> {
        CODES.iter().find(|(code, ..)| *code == self.0).map(|(_, name, _)| *name)
    }

    /// What `cuGetErrorString` says of it.
    pub fn text(self) -> Option<&'static CStr> {
        CODES.iter().find(|(code, ..)| *code == self.0).map(|(.., text)| *text)
    }

    /// Whether all further calls of the process fail with it.
    pub fn is_sticky(self) -> bool {
        matches!(self.0, 214 | 220 | 700 | 702 | 710 | 714..=719 | 999)
    }
}

impl fmt::Display for CudaCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name().and_then(|name| name.to_str().ok()) {
            Some(name) => f.write_str(name.trim_start_matches(PREFIX)),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for CudaCode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wanted = text.strip_prefix(PREFIX).unwrap_or(text);
        let known = |name: &CStr| {
            let name = name.to_str().unwrap_or_default();
            name.trim_start_matches(PREFIX).eq_ignore_ascii_case(wanted)
        };
        CODES
            .iter()
            .find(|(code, name, _)| *code != 0 && known(name))
            .map(|(code, ..)| Self(*code))
            .ok_or_else(|| Error::CudaCode(text.to_owned()))
    }
}

impl TryFrom<String> for CudaCode {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<CudaCode> for String {
    fn from(code: CudaCode) -> Self {
        code.to_string()
    }
}

const PREFIX: &str = "CUDA_ERROR_";

#[rustfmt::skip]
const CODES: &[(u32, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (4, c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down"),
    (34, c"CUDA_ERROR_STUB_LIBRARY", c"CUDA driver is a stub library"),
    (46, c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"CUDA-capable device(s) is/are busy or unavailable"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (205, c"CUDA_ERROR_MAP_FAILED", c"mapping of buffer object failed"),
    (209, c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"no kernel image is available for execution on the device"),
    (214, c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered"),
    (215, c"CUDA_ERROR_UNSUPPORTED_LIMIT", c"limit is not supported on this architecture"),
    (217, c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", c"peer access is not supported between these two devices"),
    (218, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (220, c"CUDA_ERROR_NVLINK_UNCORRECTABLE", c"uncorrectable NVLink error detected during the execution"),
    (221, c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND", c"PTX JIT compiler library not found"),
    (222, c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", c"the provided PTX was compiled with an unsupported toolchain."),
    (300, c"CUDA_ERROR_INVALID_SOURCE", c"device kernel image is invalid"),
    (301, c"CUDA_ERROR_FILE_NOT_FOUND", c"file not found"),
    (302, c"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", c"shared object symbol not found"),
    (303, c"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", c"shared object initialization failed"),
    (304, c"CUDA_ERROR_OPERATING_SYSTEM", c"OS call failed or operation not supported on this OS"),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (401, c"CUDA_ERROR_ILLEGAL_STATE", c"the operation cannot be performed in the present state"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
    (701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch"),
    (702, c"CUDA_ERROR_LAUNCH_TIMEOUT", c"the launch timed out and was terminated"),
    (708, c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", c"cannot set while device is active in this process"),
    (709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"),
    (710, c"CUDA_ERROR_ASSERT", c"device-side assert triggered"),
    (712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"part or all of the requested memory range is already mapped"),
    (713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"pointer does not correspond to a registered memory region"),
    (714, c"CUDA_ERROR_HARDWARE_STACK_ERROR", c"hardware stack error"),
    (715, c"CUDA_ERROR_ILLEGAL_INSTRUCTION", c"an illegal instruction was encountered"),
    (716, c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
    (717, c"CUDA_ERROR_INVALID_ADDRESS_SPACE", c"operation not supported on global/shared address space"),
    (718, c"CUDA_ERROR_INVALID_PC", c"invalid program counter"),
    (719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (720, c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", c"too many blocks in cooperative launch"),
    (800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (802, c"CUDA_ERROR_SYSTEM_NOT_READY", c"system not yet initialized"),
    (803, c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", c"system has unsupported display driver / cuda driver combination"),
    (909, c"CUDA_ERROR_TIMEOUT", c"wait operation timed out"),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_went() {
        for (code, name, _) in CODES.iter().skip(1) {
            let name = name.to_str().unwrap();
            assert_eq!(name.parse::<CudaCode>().unwrap(), CudaCode(*code));
            let short = CudaCode(*code).to_string();
            assert_eq!(short.parse::<CudaCode>().unwrap(), CudaCode(*code));
        }
        assert!("SUCCESS".parse::<CudaCode>().is_err());
        assert!("GPU_IS_LOST".parse::<CudaCode>().is_err());
        assert_eq!(CudaCode(12345).name(), None);
    }
}
