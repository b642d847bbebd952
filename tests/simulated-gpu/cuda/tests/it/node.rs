//! A node and a process for each test.
//!
//! cudarc loads one driver in a process, a driver has one node, and a sticky error is for good. So a
//! test runs itself again, alone, with its node on the `LD_LIBRARY_PATH`.

use std::any::type_name_of_val;
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use cudarc::driver::sys::{CUfunction, CUmodule, CUresult, CUstream};
use cudarc::driver::{CudaContext, DriverError, result};
use serde_json::Value;
use simulated_nvml::{Node, Topology};

const NODE_VARIABLE: &str = "TEST_NODE";
/// What a process says that has found its test.
const STARTED: &str = "the test begins";
/// With it, a process is not to test but to do the other thing.
const OTHER_VARIABLE: &str = "TEST_OTHER";

/// The kernels of the tests, as NVRTC compiled them.
pub(crate) const PTX: &str = include_str!("../../kernels/probe.ptx");

/// Runs a test in a process of its own, on a node of this topology.
pub(crate) fn alone(topology: &str, test: impl FnOnce(&Node)) {
    with(topology, &[], test);
}

/// As [`alone`], with variables of the environment.
pub(crate) fn with(topology: &str, environment: &[(&str, &str)], test: impl FnOnce(&Node)) {
    if let Some(directory) = std::env::var_os(NODE_VARIABLE) {
        println!("{STARTED}");
        test(&Node::open(&PathBuf::from(directory)).unwrap());
        // What is behind it in the test is not for this process.
        std::process::exit(0);
    }
    let directory = tempfile::tempdir().unwrap();
    let topology = Topology::parse(topology).unwrap();
    let node = Node::prepare(directory.path(), &topology).unwrap();
    let output = again(&node, name_of(&test)).envs(environment.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(STARTED), "{said}{errors}");
}

/// The name of the test that a closure is in.
fn name_of<T>(closure: &T) -> &'static str {
    let name = type_name_of_val(closure);
    let name = name.split_once("::").map_or(name, |(_, name)| name);
    name.trim_end_matches("::{{closure}}")
}

/// The same test once more.
fn again(node: &Node, name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env("LD_LIBRARY_PATH", node.library_path())
        .env(NODE_VARIABLE, node.directory());
    command
}

/// Another process of the test's node, which runs the same test.
pub(crate) fn other(node: &Node, name: &str) -> Command {
    let mut command = again(node, name);
    command.env(OTHER_VARIABLE, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Whether this is the other process.
pub(crate) fn is_other() -> bool {
    std::env::var_os(OTHER_VARIABLE).is_some()
}

/// The result of a call as the driver gave it.
pub(crate) fn code<T>(result: Result<T, DriverError>) -> CUresult {
    result.err().map_or(CUresult::CUDA_SUCCESS, |error| error.0)
}

/// The node's log of calls: all, or those of one function.
pub(crate) fn log(node: &Node, call: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(node.directory().join("cuda.log")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["call"] == call).collect()
}

/// Device memory that ends with the process.
pub(crate) struct Words<T> {
    pub(crate) address: u64,
    length: usize,
    kind: std::marker::PhantomData<T>,
}

impl<T: Copy + Default> Words<T> {
    pub(crate) fn new(values: &[T]) -> Self {
        let size = size_of_val(values).max(1);
        let address = unsafe { result::malloc_sync(size) }.unwrap();
        unsafe { result::memcpy_htod_sync(address, values) }.unwrap();
        Self { address, length: values.len(), kind: std::marker::PhantomData }
    }

    pub(crate) fn get(&self) -> Vec<T> {
        self.try_get().unwrap()
    }

    pub(crate) fn try_get(&self) -> Result<Vec<T>, DriverError> {
        let mut values = vec![T::default(); self.length];
        unsafe { result::memcpy_dtoh_sync(&mut values, self.address) }.map(|()| values)
    }
}

/// A context on the first device, and a module in it.
pub(crate) struct Module {
    module: CUmodule,
    _context: std::sync::Arc<CudaContext>,
}

impl Module {
    pub(crate) fn load() -> Self {
        let context = CudaContext::new(0).unwrap();
        Self { module: load(PTX).unwrap(), _context: context }
    }

    pub(crate) fn function(&self, name: &str) -> CUfunction {
        unsafe { result::module::get_function(self.module, CString::new(name).unwrap()) }.unwrap()
    }

    /// Launches a kernel in the default stream.
    pub(crate) fn run(
        &self,
        name: &str,
        (grid, block, shared): (u32, u32, u32),
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        self.run_in(result::stream::null(), name, (grid, block, shared), arguments)
    }

    pub(crate) fn run_in(
        &self,
        stream: CUstream,
        name: &str,
        (grid, block, shared): (u32, u32, u32),
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        let function = self.function(name);
        unsafe {
            result::launch_kernel(function, (grid, 1, 1), (block, 1, 1), shared, stream, arguments)
        }
    }
}

/// Loads a PTX text into the current context.
pub(crate) fn load(text: &str) -> Result<CUmodule, DriverError> {
    let text = CString::new(text).unwrap();
    unsafe { result::module::load_data(text.as_ptr().cast()) }
}

/// A pointer to an argument.
pub(crate) fn arg<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}
