//! NVML's return codes, by the names of `nvml.h` without their prefix `NVML_ERROR_`.

use std::ffi::CStr;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// A return code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Code(pub u32);

impl Code {
    /// All went well.
    pub const SUCCESS: Self = Self(0);
    /// `nvmlInit` has not been called.
    pub const UNINITIALIZED: Self = Self(1);
    /// An argument or handle is invalid.
    pub const INVALID_ARGUMENT: Self = Self(2);
    /// The device doesn't have it.
    pub const NOT_SUPPORTED: Self = Self(3);
    /// There is no such thing.
    pub const NOT_FOUND: Self = Self(6);
    /// The buffer is too small.
    pub const INSUFFICIENT_SIZE: Self = Self(7);
    /// Nothing happened in the time given.
    pub const TIMEOUT: Self = Self(10);
    /// The GPU has fallen off the bus.
    pub const GPU_IS_LOST: Self = Self(15);
    /// The driver and its library are of different versions.
    pub const LIB_RM_VERSION_MISMATCH: Self = Self(18);
    /// A struct's version is not one that the library knows.
    pub const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    /// Something else.
    pub const UNKNOWN: Self = Self(999);

    /// What `nvmlErrorString` says of it.
    pub fn text(self) -> &'static CStr {
        CODES.iter().find(|(code, ..)| *code == self.0).map_or(c"Unknown Error", |(.., text)| text)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match CODES.iter().find(|(code, ..)| *code == self.0) {
            Some((_, name, _)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for Code {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let name = text.strip_prefix("NVML_ERROR_").unwrap_or(text);
        CODES
            .iter()
            .find(|(code, known, _)| *code != 0 && known.eq_ignore_ascii_case(name))
            .map(|(code, ..)| Self(*code))
            .ok_or_else(|| Error::Code(text.to_owned()))
    }
}

impl TryFrom<String> for Code {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Code> for String {
    fn from(code: Code) -> Self {
        code.to_string()
    }
}

const CODES: &[(u32, &str, &CStr)] = &[
    (0, "SUCCESS", c"Success"),
    (1, "UNINITIALIZED", c"Uninitialized"),
    (2, "INVALID_ARGUMENT", c"Invalid Argument"),
    (3, "NOT_SUPPORTED", c"Not Supported"),
    (4, "NO_PERMISSION", c"Insufficient Permissions"),
    (5, "ALREADY_INITIALIZED", c"Already Initialized"),
    (6, "NOT_FOUND", c"Not Found"),
    (7, "INSUFFICIENT_SIZE", c"Insufficient Size"),
    (8, "INSUFFICIENT_POWER", c"Insufficient External Power"),
    (9, "DRIVER_NOT_LOADED", c"Driver Not Loaded"),
    (10, "TIMEOUT", c"Timeout"),
    (11, "IRQ_ISSUE", c"Interrupt Request Issue"),
    (12, "LIBRARY_NOT_FOUND", c"NVML Shared Library Not Found"),
    (13, "FUNCTION_NOT_FOUND", c"Function Not Found"),
    (14, "CORRUPTED_INFOROM", c"Corrupted infoROM"),
    (15, "GPU_IS_LOST", c"GPU is lost"),
    (16, "RESET_REQUIRED", c"GPU requires reset"),
    (17, "OPERATING_SYSTEM", c"The operating system has blocked the request."),
    (18, "LIB_RM_VERSION_MISMATCH", c"Driver/library version mismatch"),
    (19, "IN_USE", c"In use by another client"),
    (20, "MEMORY", c"Insufficient Memory"),
    (21, "NO_DATA", c"No data"),
    (22, "VGPU_ECC_NOT_SUPPORTED", c"The requested vgpu operation is not available with ECC"),
    (23, "INSUFFICIENT_RESOURCES", c"Insufficient Resources"),
    (24, "FREQ_NOT_SUPPORTED", c"Frequency Not Supported"),
    (25, "ARGUMENT_VERSION_MISMATCH", c"Argument Version Mismatch"),
    (26, "DEPRECATED", c"Deprecated"),
    (27, "NOT_READY", c"Not Ready"),
    (28, "GPU_NOT_FOUND", c"GPU Not Found"),
    (29, "INVALID_STATE", c"Invalid State"),
    (999, "UNKNOWN", c"Unknown Error"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_went() {
        for (code, name, _) in CODES.iter().skip(1) {
            assert_eq!(name.parse::<Code>().unwrap(), Code(*code));
            assert_eq!(Code(*code).to_string(), *name);
        }
        assert_eq!(
            "nvml_error_gpu_is_lost".to_uppercase().parse::<Code>().unwrap(),
            Code::GPU_IS_LOST
        );
    }

    #[test]
    fn success_is_no_fault() {
        assert!("SUCCESS".parse::<Code>().is_err());
        assert!("GPU_ATE_MY_HOMEWORK".parse::<Code>().is_err());
    }
}
