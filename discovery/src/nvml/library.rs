//! Finding and starting NVML.

use std::ffi::OsStr;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::{kernel, raw};
use crate::Error;

/// Where the driver's library is looked for, in this order, in the dynamic loader's directories
/// (`LD_LIBRARY_PATH`, ld.so.cache). A node that has only the driver, and no CUDA toolkit, has no
/// unversioned name.
pub const LIBRARIES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// Loads and starts NVML; absent: there is no driver on this node.
pub(super) fn start() -> Result<Option<(Nvml, &'static str)>, Error> {
    for library in LIBRARIES {
        match Nvml::builder().lib_path(OsStr::new(library)).init() {
            Ok(nvml) => return Ok(Some((nvml, library))),
            Err(NvmlError::LibloadingError(error)) if is_absent(library, &error.to_string()) => {}
            Err(NvmlError::LibloadingError(error)) => {
                return Err(Error::Library {
                    library: library.to_owned(),
                    reason: error.to_string(),
                });
            }
            Err(NvmlError::FailedToLoadSymbol(reason)) => {
                return Err(Error::Library { library: library.to_owned(), reason });
            }
            Err(error) => return Err(initialize_error(library, error)),
        }
    }
    Ok(None)
}

/// Whether dlopen(3) failed because there is no such library. One that is there and lacks another
/// one is named by that other one's name.
fn is_absent(library: &str, words: &str) -> bool {
    words.starts_with(&format!("{library}: ")) && words.contains("No such file or directory")
}

fn initialize_error(library: &str, error: NvmlError) -> Error {
    let remedy = match error {
        NvmlError::DriverNotLoaded => {
            "load the kernel module (modprobe nvidia), or remove the driver from a node without a GPU"
        }
        NvmlError::LibRmVersionMismatch => {
            "the driver was updated while the old one was loaded: reboot, or unload the kernel modules and load them anew"
        }
        NvmlError::NoPermission => {
            "the user needs read and write access to /dev/nvidiactl and /dev/nvidia0 to N"
        }
        NvmlError::IrqIssue | NvmlError::InsufficientPower => {
            "check the card's power cables and the kernel log (dmesg)"
        }
        _ => "nvidia-smi and the kernel log (dmesg, NVRM) may say more",
    };
    let mut words = raw::words_of_library(library, error);
    if let Some(version) = kernel::driver_version() {
        words = format!("{words} (the kernel has driver {version})");
    }
    Error::Initialize { library: library.to_owned(), words, remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_and_broken_libraries_differ() {
        let name = "libnvidia-ml.so.1";
        let absent = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory";
        assert!(is_absent(name, absent));
        for broken in [
            "libm.so.7: cannot open shared object file: No such file or directory",
            "libnvidia-ml.so.1: file too short",
            "/usr/lib/libnvidia-ml.so.1: wrong ELF class: ELFCLASS32",
            "libnvidia-ml.so.1: cannot open shared object file: Permission denied",
        ] {
            assert!(!is_absent(name, broken), "{broken}");
        }
    }
}
