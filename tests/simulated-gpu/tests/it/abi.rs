//! The library refuses what the driver refuses.

use std::ffi::{CStr, c_char, c_uint};
use std::ptr::null_mut;

use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlEventData_t, nvmlMemory_v2_t, nvmlReturn_t,
};
use simulated_nvml::{Action, Code, Fault, Node, Topology};
use tempfile::TempDir;

struct Library {
    node: Node,
    nvml: NvmlLib,
    _directory: TempDir,
}

/// Calls a function of the library, and returns its code.
macro_rules! call {
    ($library:ident . $function:ident ( $($argument:expr),* )) => {{
        let function = $library.nvml.$function.as_ref().unwrap();
        // SAFETY: the arguments are what the function's signature says; those that are invalid are
        // null, or handles, which the library never dereferences.
        Code(unsafe { function($($argument),*) } as nvmlReturn_t)
    }};
}

fn library(topology: &str) -> Library {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::prepare(directory.path(), &Topology::parse(topology).unwrap()).unwrap();
    // SAFETY: the library under test has no constructors. Each node has a copy of it, and so state
    // of its own.
    let nvml = unsafe { NvmlLib::new(node.library_path().join("libnvidia-ml.so.1")) }.unwrap();
    Library { node, nvml, _directory: directory }
}

fn started(topology: &str) -> Library {
    let library = library(topology);
    assert_eq!(call!(library.nvmlInit_v2()), Code::SUCCESS);
    library
}

fn gpu(library: &Library, index: u32) -> nvmlDevice_t {
    let mut device = null_mut();
    assert_eq!(call!(library.nvmlDeviceGetHandleByIndex_v2(index, &raw mut device)), Code::SUCCESS);
    device
}

const T4: &str = "[[gpu]]\nmodel = 't4'";
const A100: &str = "[[gpu]]\nmodel = 'a100'\nmig = '1x3g.20gb'\n[[gpu]]\nmodel = 'a100'";

#[test]
fn nothing_works_before_init_and_after_shutdown() {
    let library = library(T4);
    let mut count = 0;
    assert_eq!(call!(library.nvmlDeviceGetCount_v2(&raw mut count)), Code::UNINITIALIZED);
    assert_eq!(call!(library.nvmlShutdown()), Code::UNINITIALIZED);
    assert_eq!(call!(library.nvmlInit_v2()), Code::SUCCESS);
    assert_eq!(call!(library.nvmlInitWithFlags(0)), Code::SUCCESS);
    assert_eq!(call!(library.nvmlShutdown()), Code::SUCCESS);
    assert_eq!(call!(library.nvmlDeviceGetCount_v2(&raw mut count)), Code::SUCCESS);
    assert_eq!(count, 1);
    assert_eq!(call!(library.nvmlShutdown()), Code::SUCCESS);
    assert_eq!(call!(library.nvmlDeviceGetCount_v2(&raw mut count)), Code::UNINITIALIZED);
    assert_eq!(call!(library.nvmlShutdown()), Code::UNINITIALIZED);
}

#[test]
fn handles_that_it_did_not_give_are_refused() {
    let library = started(T4);
    let mut minor = 0;
    let good = gpu(&library, 0);
    assert_eq!(call!(library.nvmlDeviceGetMinorNumber(good, &raw mut minor)), Code::SUCCESS);
    for bad in [null_mut(), good.wrapping_byte_add(1), good.wrapping_byte_add(256)] {
        let code = call!(library.nvmlDeviceGetMinorNumber(bad, &raw mut minor));
        assert_eq!(code, Code::INVALID_ARGUMENT);
    }
    let mut device = null_mut();
    let code = call!(library.nvmlDeviceGetHandleByIndex_v2(1, &raw mut device));
    assert_eq!(code, Code::INVALID_ARGUMENT);
    let code = call!(library.nvmlDeviceGetHandleByUUID(c"GPU-0".as_ptr(), &raw mut device));
    assert_eq!(code, Code::NOT_FOUND);
}

#[test]
fn null_small_and_old_arguments_are_refused() {
    let library = started(T4);
    let device = gpu(&library, 0);
    let mut name = [0 as c_char; 96];
    assert_eq!(call!(library.nvmlDeviceGetName(device, null_mut(), 96)), Code::INVALID_ARGUMENT);
    // "Tesla T4" and its zero.
    for (length, code) in [(8, Code::INSUFFICIENT_SIZE), (9, Code::SUCCESS)] {
        assert_eq!(call!(library.nvmlDeviceGetName(device, name.as_mut_ptr(), length)), code);
    }
    // SAFETY: the library has just written a string there.
    assert_eq!(unsafe { CStr::from_ptr(name.as_ptr()) }, c"Tesla T4");
    assert_eq!(call!(library.nvmlDeviceGetMinorNumber(device, null_mut())), Code::INVALID_ARGUMENT);
    let mut memory = nvmlMemory_v2_t { version: 0, total: 0, reserved: 0, free: 0, used: 0 };
    assert_eq!(
        call!(library.nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory)),
        Code::ARGUMENT_VERSION_MISMATCH
    );
}

#[test]
fn lists_say_how_long_they_are() {
    let library = started(T4);
    let device = gpu(&library, 0);
    library.node.set_used(0, None, Some(std::process::id()), 1 << 20).unwrap();
    let mut count: c_uint = 0;
    assert_eq!(
        call!(library.nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut count, null_mut())),
        Code::INSUFFICIENT_SIZE
    );
    assert_eq!(count, 1);
    assert_eq!(
        call!(library.nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut count, null_mut())),
        Code::INVALID_ARGUMENT
    );
}

#[test]
fn what_a_model_lacks_is_not_supported() {
    let library = started(T4);
    let device = gpu(&library, 0);
    let (mut one, mut other) = (0, 0);
    assert_eq!(
        call!(library.nvmlDeviceGetMigMode(device, &raw mut one, &raw mut other)),
        Code::NOT_SUPPORTED
    );
    let mut slice = null_mut();
    assert_eq!(
        call!(library.nvmlDeviceGetMigDeviceHandleByIndex(device, 0, &raw mut slice)),
        Code::NOT_SUPPORTED
    );
    assert_eq!(
        call!(library.nvmlDeviceGetNvLinkState(device, 0, &raw mut one)),
        Code::NOT_SUPPORTED
    );
}

#[test]
fn slices_are_of_gpus_with_mig_on() {
    let library = started(A100);
    let (with, without) = (gpu(&library, 0), gpu(&library, 1));
    let (mut slice, mut parent) = (null_mut(), null_mut());
    let handle = |gpu, index, slice: &mut nvmlDevice_t| {
        call!(library.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index, slice))
    };
    assert_eq!(handle(without, 0, &mut slice), Code::NOT_SUPPORTED);
    assert_eq!(handle(with, 1, &mut slice), Code::NOT_FOUND);
    assert_eq!(handle(with, 7, &mut slice), Code::INVALID_ARGUMENT);
    assert_eq!(handle(with, 0, &mut slice), Code::SUCCESS);
    let mut id = 0;
    assert_eq!(call!(library.nvmlDeviceGetGpuInstanceId(with, &raw mut id)), Code::NOT_SUPPORTED);
    assert_eq!(call!(library.nvmlDeviceGetGpuInstanceId(slice, &raw mut id)), Code::SUCCESS);
    assert_eq!(id, 1);
    // A slice is no GPU.
    assert_eq!(call!(library.nvmlDeviceGetMinorNumber(slice, &raw mut id)), Code::NOT_SUPPORTED);
    assert_eq!(handle(slice, 0, &mut parent), Code::NOT_SUPPORTED);
    let of = |device, parent: &mut nvmlDevice_t| {
        call!(library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device, parent))
    };
    assert_eq!(of(with, &mut parent), Code::INVALID_ARGUMENT);
    assert_eq!(of(slice, &mut parent), Code::SUCCESS);
    assert_eq!(parent, with);
}

#[test]
fn a_lost_gpu_answers_nothing_and_takes_its_slices_along() {
    let library = started(A100);
    let (lost, other) = (gpu(&library, 0), gpu(&library, 1));
    let mut slice = null_mut();
    let code = call!(library.nvmlDeviceGetMigDeviceHandleByIndex(lost, 0, &raw mut slice));
    assert_eq!(code, Code::SUCCESS);
    library.node.set_faults(&[Fault::lost(0)]).unwrap();
    let mut uuid = [0 as c_char; 96];
    for (device, code) in
        [(lost, Code::GPU_IS_LOST), (slice, Code::GPU_IS_LOST), (other, Code::SUCCESS)]
    {
        assert_eq!(call!(library.nvmlDeviceGetUUID(device, uuid.as_mut_ptr(), 96)), code);
    }
    assert_eq!(gpu(&library, 0), lost);
}

#[test]
fn a_call_hangs_until_its_fault_ends() {
    let library = started(T4);
    let hang = Fault::new(None, Action::Hang).of("nvmlDeviceGetCount_v2");
    library.node.set_faults(&[hang]).unwrap();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| {
            let mut count = 0;
            (call!(library.nvmlDeviceGetCount_v2(&raw mut count)), count)
        });
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!call.is_finished());
        library.node.set_faults(&[]).unwrap();
        assert_eq!(call.join().unwrap(), (Code::SUCCESS, 1));
    });
}

#[test]
fn events_come_to_the_sets_that_want_them() {
    let library = started("[[gpu]]\nmodel = 't4'\ncount = 2");
    let mut set = null_mut();
    let mut data = nvmlEventData_t {
        device: null_mut(),
        eventType: 0,
        eventData: 0,
        gpuInstanceId: 0,
        computeInstanceId: 0,
    };
    let wait = |set, data: &mut nvmlEventData_t| call!(library.nvmlEventSetWait_v2(set, data, 20));
    assert_eq!(wait(set, &mut data), Code::INVALID_ARGUMENT);
    assert_eq!(call!(library.nvmlEventSetCreate(&raw mut set)), Code::SUCCESS);
    let second = gpu(&library, 1);
    library.node.raise_xid(1, 13).unwrap();
    assert_eq!(call!(library.nvmlDeviceRegisterEvents(second, 1, set)), Code::NOT_SUPPORTED);
    assert_eq!(call!(library.nvmlDeviceRegisterEvents(second, 8, set)), Code::SUCCESS);
    // What happened before, or elsewhere, is not for this set.
    library.node.raise_xid(0, 31).unwrap();
    assert_eq!(wait(set, &mut data), Code::TIMEOUT);
    library.node.raise_xid(1, 79).unwrap();
    assert_eq!(wait(set, &mut data), Code::SUCCESS);
    assert_eq!((data.device, data.eventType, data.eventData), (second, 8, 79));
    assert_eq!(call!(library.nvmlEventSetFree(set)), Code::SUCCESS);
    assert_eq!(wait(set, &mut data), Code::INVALID_ARGUMENT);
}

#[test]
fn errors_have_the_drivers_words() {
    let library = library(T4);
    let function = library.nvml.nvmlErrorString.as_ref().unwrap();
    let words = |code: Code| {
        // SAFETY: the function takes any number and returns a static string.
        unsafe { CStr::from_ptr(function(code.0)) }.to_str().unwrap()
    };
    assert_eq!(words(Code::LIB_RM_VERSION_MISMATCH), "Driver/library version mismatch");
    assert_eq!(words(Code::GPU_IS_LOST), "GPU is lost");
    assert_eq!(words(Code(12345)), "Unknown Error");
}

#[test]
fn a_missing_function_is_no_symbol() {
    let library = library(&format!("missing_functions = ['nvmlDeviceGetMemoryInfo_v2']\n{T4}"));
    assert!(library.nvml.nvmlDeviceGetMemoryInfo_v2.is_err());
    assert!(library.nvml.nvmlDeviceGetMemoryInfo.is_ok());
    let directory = tempfile::tempdir().unwrap();
    let unknown = Topology::parse("missing_functions = ['nvmlMakeCoffee']").unwrap();
    assert!(Node::prepare(directory.path(), &unknown).is_err());
}

#[test]
fn a_node_without_its_topology_is_a_driver_that_fails() {
    let library = library(T4);
    let directory = library.node.library_path();
    std::fs::write(directory.parent().unwrap().join("topology.toml"), "gpu = 1").unwrap();
    assert_eq!(call!(library.nvmlInit_v2()), Code::UNKNOWN);
}
