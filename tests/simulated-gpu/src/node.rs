//! A simulated node's directory.

use std::ffi::{CStr, OsStr};
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::state::{Raised, State, Use};
use crate::topology::{Gpu, Topology};
use crate::{Error, Fault};

/// Names the node's directory to the library, in place of the library's own path.
pub const DIR_VARIABLE: &str = "SIMULATED_GPU_DIR";

/// The calls into the CUDA driver, one JSON object a line, as they were made.
pub const CUDA_LOG: &str = "cuda.log";

/// `nvmlEventTypeXidCriticalError`.
pub const XID_EVENT: u64 = 8;

/// A node.
#[derive(Debug)]
pub struct Node {
    directory: PathBuf,
    /// What it has.
    pub topology: Topology,
    /// Its GPUs, in the order of their NVML index.
    pub gpus: Vec<Gpu>,
    /// What happens on it.
    pub state: State,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FaultFile {
    fault: Vec<Fault>,
}

impl Node {
    /// Makes a node in a directory, which may hold one already, and puts the library there.
    pub fn prepare(directory: &Path, topology: &Topology) -> Result<Self, Error> {
        let gpus = topology.gpus()?;
        topology.cuda()?;
        for fault in &topology.fault {
            fault.action()?;
        }
        let lib = directory.join("lib");
        fs::create_dir_all(&lib).map_err(Error::io(&lib))?;
        let directory = fs::canonicalize(directory).map_err(Error::io(directory))?;
        write(&directory.join("topology.toml"), topology.to_toml().as_bytes())?;
        let library = built_library("libsimulated_nvml.so")
            .ok_or_else(|| Error::Library("libsimulated_nvml.so".to_owned()))?;
        let mut bytes = fs::read(&library).map_err(Error::io(&library))?;
        for function in &topology.missing_functions {
            remove_symbol(&mut bytes, function)?;
        }
        write(&lib.join("libnvidia-ml.so.1"), &bytes)?;
        // Tests of what doesn't use CUDA don't build it.
        if let Some(library) = built_library("libsimulated_cuda.so") {
            let bytes = fs::read(&library).map_err(Error::io(&library))?;
            write(&lib.join("libcuda.so.1"), &bytes)?;
        }
        let log = directory.join(CUDA_LOG);
        fs::write(&log, "").map_err(Error::io(&log))?;
        // Users of all uids share a node; who doesn't own the file needs not change its mode.
        fs::set_permissions(&log, PermissionsExt::from_mode(0o666)).ok();
        let state = State::open(&directory)?;
        state.clear()?;
        for (index, gpu) in gpus.iter().enumerate() {
            state.set_used(index as u32, gpu.memory_used);
        }
        let node = Self { directory, topology: topology.clone(), gpus, state };
        node.set_faults(&topology.fault)?;
        Ok(node)
    }

    /// Opens a node that was prepared.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let topology = Topology::read(&directory.join("topology.toml"))?;
        let gpus = topology.gpus()?;
        let state = State::open(directory)?;
        Ok(Self { directory: directory.to_owned(), topology, gpus, state })
    }

    /// What goes into `LD_LIBRARY_PATH`.
    pub fn library_path(&self) -> PathBuf {
        self.directory.join("lib")
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What is wrong with the node now.
    pub fn faults(&self) -> Result<Vec<Fault>, Error> {
        let path = self.directory.join("faults.toml");
        let text = fs::read_to_string(&path).map_err(Error::io(&path))?;
        let file: FaultFile = toml::from_str(&text)
            .map_err(|error| Error::Parse { path, reason: error.to_string() })?;
        Ok(file.fault)
    }

    /// Changes what is wrong with the node, for all of its processes, at once.
    pub fn set_faults(&self, faults: &[Fault]) -> Result<(), Error> {
        for fault in faults {
            fault.action()?;
            if let Some(gpu) = fault.gpu {
                self.gpu(gpu)?;
            }
        }
        let topology = Topology { fault: faults.to_vec(), ..Topology::default() };
        write(&self.directory.join("faults.toml"), topology.to_toml().as_bytes())?;
        self.state.faults_changed();
        Ok(())
    }

    /// Sets the memory that is in use on a GPU or slice: by a process, or by none.
    pub fn set_used(
        &self,
        gpu: u32,
        slice: Option<u32>,
        pid: Option<u32>,
        bytes: u64,
    ) -> Result<(), Error> {
        let device = self.gpu(gpu)?;
        let total = match slice {
            None => device.memory - device.memory_reserved,
            Some(slice) => {
                let slices = device.slices.as_deref().unwrap_or_default();
                let slice = slices.get(slice as usize).ok_or_else(|| Error::Gpu {
                    gpu: gpu as usize,
                    reason: format!("it has no slice {slice}: it has {}", slices.len()),
                })?;
                slice.profile.memory_mib << 20
            }
        };
        if bytes > total {
            return Err(Error::Memory { asked: bytes, what: device.name.clone(), total });
        }
        match (pid, slice) {
            (Some(pid), _) => self.state.claim(Use { pid, gpu, slice, bytes }),
            (None, None) => {
                self.state.set_used(gpu, bytes);
                Ok(())
            }
            (None, Some(_)) => Err(Error::Gpu {
                gpu: gpu as usize,
                reason: "the memory of a slice is used by a process: say by which".to_owned(),
            }),
        }
    }

    /// Raises an Xid on a GPU.
    pub fn raise_xid(&self, gpu: u32, xid: u64) -> Result<(), Error> {
        self.gpu(gpu)?;
        self.state.raise(Raised { gpu, kind: XID_EVENT, data: xid })
    }

    fn gpu(&self, gpu: u32) -> Result<&Gpu, Error> {
        self.gpus.get(gpu as usize).ok_or(Error::NoGpu { gpu, count: self.gpus.len() })
    }
}

/// The node of a library: the parent of the directory that the library was loaded from, or what
/// [`DIR_VARIABLE`] says. `function` is one of the library's.
pub fn of_library(function: *const ()) -> Result<PathBuf, Error> {
    if let Some(directory) = std::env::var_os(DIR_VARIABLE) {
        return Ok(directory.into());
    }
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address may be asked about, and `info` is where the answer goes.
    let found = unsafe { libc::dladdr(function.cast(), info.as_mut_ptr()) } != 0;
    let path = found.then(|| {
        // SAFETY: dladdr has filled `info` in, and its name lives as long as the library.
        unsafe { CStr::from_ptr(info.assume_init().dli_fname) }
    });
    let library = Path::new(OsStr::from_bytes(path.map_or(b"", CStr::to_bytes)));
    library.parent().and_then(Path::parent).map(Path::to_owned).ok_or_else(|| Error::Io {
        path: library.to_owned(),
        source: std::io::ErrorKind::NotFound.into(),
    })
}

/// Replaces a file in one step: processes of the node read it at any time.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let new = path.with_extension("new");
    fs::write(&new, bytes).map_err(Error::io(&new))?;
    fs::rename(&new, path).map_err(Error::io(path))
}

/// Finds a library that was built with this program: beside it, or in `deps` there.
fn built_library(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("."));
    [beside.join("deps"), beside.to_owned()]
        .into_iter()
        .map(|directory| directory.join(name))
        .find(|library| library.exists())
}

/// Takes a function out of a shared library: its name in the table of dynamic symbols becomes
/// another one, of the same length, that nobody looks for.
fn remove_symbol(library: &mut [u8], function: &str) -> Result<(), Error> {
    let name: Vec<u8> = [b"\0", function.as_bytes(), b"\0"].concat();
    let found: Vec<usize> = library
        .windows(name.len())
        .enumerate()
        .filter_map(|(at, window)| (window == name).then_some(at))
        .collect();
    if !function.starts_with("nvml") || found.is_empty() {
        return Err(Error::Function(function.to_owned()));
    }
    for at in found {
        library[at + 1] = b'-';
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_name_is_removed() {
        let mut library = b"\0nvmlInit\0nvmlInit_v2\0nvmlInit\0".to_vec();
        remove_symbol(&mut library, "nvmlInit").unwrap();
        assert_eq!(library, b"\0-vmlInit\0nvmlInit_v2\0-vmlInit\0");
        assert!(remove_symbol(&mut library, "nvmlInit").is_err());
        assert!(remove_symbol(&mut library, "malloc").is_err());
    }
}
