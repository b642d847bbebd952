//! The host's code of the kernels: a shared library made by [`crate::compile`].
//!
//! The product's kernels are built in. A node may have others, `DIR/kernels.so`, and so may a
//! process.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use simulated_nvml::CudaCode;

use crate::ptx::Entry;

/// Another library of kernels, for a process.
const KERNELS_VARIABLE: &str = "SIMULATED_GPU_KERNELS";

static BUILT_IN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.so"));

/// `uint3` of CUDA.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dim(pub(crate) u32, pub(crate) u32, pub(crate) u32);

impl Dim {
    pub(crate) fn count(self) -> u64 {
        u64::from(self.0) * u64::from(self.1) * u64::from(self.2)
    }
}

/// An argument: `simulated::Argument` of the shim.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Argument {
    pub(crate) size: u32,
    pub(crate) alignment: u32,
    pub(crate) pointer: u32,
}

#[repr(C)]
struct RawKernel {
    name: *const c_char,
    run: unsafe extern "C" fn(*mut *mut c_void),
    arguments: *const Argument,
    argument_count: u32,
}

#[repr(C)]
struct RawModule {
    name: *const c_char,
    kernels: *const RawKernel,
    kernel_count: u32,
    shared_start: *mut c_void,
    shared_end: *mut c_void,
}

type Launch = unsafe extern "C" fn(
    *const RawModule,
    *const RawKernel,
    *const Dim,
    *const Dim,
    u32,
    *mut *mut c_void,
    u64,
    *mut c_char,
    usize,
) -> c_int;
type Mark = unsafe extern "C" fn(*mut c_void, usize);

/// The library.
pub(crate) struct Kernels {
    modules: Vec<Code>,
    launch: Launch,
    forbid: Mark,
    allow: Mark,
    /// Kernels run one at a time: shared memory is the library's.
    running: Mutex<()>,
}

/// A module's code.
pub(crate) struct Code {
    pub(crate) name: &'static str,
    raw: &'static RawModule,
}

/// A kernel's code.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    module: &'static RawModule,
    raw: &'static RawKernel,
}

// SAFETY: both are constants of the library, which stays loaded; nothing in them is written but the
// section of shared memory, by the one kernel that runs.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}
// SAFETY: as above.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Kernels {
    /// Loads the kernels of a node.
    pub(crate) fn load(directory: &Path) -> Result<Self, String> {
        let own = std::env::var_os(KERNELS_VARIABLE)
            .map_or_else(|| directory.join("kernels.so"), PathBuf::from);
        let handle = if own.exists() {
            open(&CString::new(own.into_os_string().into_encoded_bytes()).map_err(text)?)?
        } else {
            // SAFETY: the name is a string; the descriptor that comes is new and ours.
            let file = unsafe {
                let fd = libc::memfd_create(c"kernels.so".as_ptr(), libc::MFD_CLOEXEC);
                if fd < 0 {
                    return Err(std::io::Error::last_os_error().to_string());
                }
                std::fs::File::from_raw_fd(fd)
            };
            (&file).write_all(BUILT_IN).map_err(text)?;
            // It stays open: the loader takes a path that it has seen for the same library.
            let path = format!("/proc/self/fd/{}", file.into_raw_fd());
            open(&CString::new(path).map_err(text)?)?
        };
        // SAFETY: the library is made by `compile`, whose runtime has functions of these names and
        // types; it is never unloaded.
        unsafe {
            let modules: unsafe extern "C" fn(*mut u32) -> *const *const RawModule =
                std::mem::transmute(symbol(handle, c"simulated_modules")?);
            let mut count = 0;
            let list = modules(&raw mut count);
            let modules = (0..count as usize)
                .map(|index| {
                    let raw = &**list.add(index);
                    Code { name: string(raw.name), raw }
                })
                .collect();
            Ok(Self {
                modules,
                launch: std::mem::transmute::<*mut c_void, Launch>(symbol(
                    handle,
                    c"simulated_launch",
                )?),
                forbid: std::mem::transmute::<*mut c_void, Mark>(symbol(
                    handle,
                    c"simulated_forbid",
                )?),
                allow: std::mem::transmute::<*mut c_void, Mark>(symbol(
                    handle,
                    c"simulated_allow",
                )?),
                running: Mutex::new(()),
            })
        }
    }

    /// The module that has all of these kernels, and, best, no others.
    pub(crate) fn module(&self, entries: &[Entry]) -> Option<&Code> {
        let has_all = |code: &&Code| entries.iter().all(|entry| code.kernel(&entry.name).is_some());
        let least = |code: &&Code| code.raw.kernel_count;
        self.modules.iter().filter(has_all).min_by_key(least)
    }

    /// Runs a kernel: an error of the driver and what happened where.
    ///
    /// # Safety
    ///
    /// `arguments` has a pointer to a value of its type for each argument of the kernel.
    pub(crate) unsafe fn run(
        &self,
        kernel: Kernel,
        grid: Dim,
        block: Dim,
        shared: u32,
        arguments: &mut [*mut c_void],
        seed: u64,
    ) -> Result<(), (CudaCode, String)> {
        let _alone = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = [0 as c_char; 512];
        // SAFETY: the kernel is of this library, the arguments are by the contract, and the text
        // has the length that is said.
        let code = unsafe {
            (self.launch)(
                kernel.module,
                kernel.raw,
                &raw const grid,
                &raw const block,
                shared,
                arguments.as_mut_ptr(),
                seed,
                text.as_mut_ptr(),
                text.len(),
            )
        };
        if code == 0 {
            return Ok(());
        }
        // SAFETY: with an error, the text is a string.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
        Err((CudaCode(code.cast_unsigned()), text))
    }

    /// Makes a kernel's accesses to a range an error, if the library is built with a sanitizer.
    pub(crate) fn forbid(&self, start: u64, size: u64) {
        // SAFETY: a mapped range; the function touches the sanitizer's own memory alone.
        unsafe { (self.forbid)(start as *mut c_void, size as usize) }
    }

    /// Ends what [`Kernels::forbid`] began.
    pub(crate) fn allow(&self, start: u64, size: u64) {
        // SAFETY: as above.
        unsafe { (self.allow)(start as *mut c_void, size as usize) }
    }
}

impl Code {
    pub(crate) fn kernel(&self, name: &str) -> Option<Kernel> {
        // SAFETY: the table has so many kernels.
        let kernels =
            unsafe { std::slice::from_raw_parts(self.raw.kernels, self.raw.kernel_count as usize) };
        // SAFETY: the names are strings of the library.
        let found = kernels.iter().find(|kernel| unsafe { string(kernel.name) } == name)?;
        Some(Kernel { module: self.raw, raw: found })
    }
}

impl Kernel {
    pub(crate) fn arguments(&self) -> &'static [Argument] {
        // SAFETY: the table has so many arguments.
        unsafe { std::slice::from_raw_parts(self.raw.arguments, self.raw.argument_count as usize) }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn open(path: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: a string; the library's constructors do nothing.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() { Err(last_error()) } else { Ok(handle) }
}

fn symbol(handle: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the handle is of a library that is open, and the name is a string.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if symbol.is_null() { Err(last_error()) } else { Ok(symbol) }
}

fn last_error() -> String {
    // SAFETY: dlerror gives a string or null.
    let error = unsafe { libc::dlerror() };
    // SAFETY: as above.
    if error.is_null() { String::new() } else { unsafe { string(error) }.to_owned() }
}

/// # Safety
///
/// `text` is a string that lives on.
unsafe fn string(text: *const c_char) -> &'static str {
    // SAFETY: by the contract.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_default()
}
