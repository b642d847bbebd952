//! What is answered, and what is refused with which code.

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult as Code};
use cudarc::driver::sys::{CUevent_flags, CUfunction_attribute_enum as FunctionAttribute};
use cudarc::driver::{CudaContext, DriverError, result};
use simulated_cuda::harness::{alone, log, with};

use crate::device::{Module, PTX, Words, arg, code, load};

const T4: &str = "[[gpu]]\nmodel = 't4'";
const H200: &str = "[[gpu]]\nmodel = 'h200'";

#[test]
fn nothing_works_before_init() {
    alone(T4, |_| {
        assert_eq!(code(result::device::get_count()), Code::CUDA_ERROR_NOT_INITIALIZED);
        let mut version = 0;
        assert_eq!(unsafe { sys::cuDriverGetVersion(&raw mut version) }, Code::CUDA_SUCCESS);
        assert_eq!(version, 13000);
        assert_eq!(unsafe { sys::cuInit(1) }, Code::CUDA_ERROR_INVALID_VALUE);
        result::init().unwrap();
        assert_eq!(result::device::get_count().unwrap(), 1);
        assert_eq!(code(result::device::get(1)), Code::CUDA_ERROR_INVALID_DEVICE);
        assert_eq!(code(result::mem_get_info()), Code::CUDA_ERROR_INVALID_CONTEXT);
    });
}

#[test]
fn without_a_visible_device_there_is_none() {
    with(T4, &[("CUDA_VISIBLE_DEVICES", "")], |_| {
        assert_eq!(code(result::init()), Code::CUDA_ERROR_NO_DEVICE);
    });
}

#[test]
fn a_device_says_what_it_is() {
    alone(H200, |node| {
        let context = CudaContext::new(0).unwrap();
        assert_eq!(context.name().unwrap(), "NVIDIA H200");
        assert_eq!(context.compute_capability().unwrap(), (9, 0));
        assert_eq!(context.total_mem().unwrap() as u64, (143_771 - 600) << 20);
        let bytes = context.uuid().unwrap().bytes.map(i8::cast_unsigned);
        let uuid = format!("{:032x}", u128::from_be_bytes(bytes));
        assert_eq!(uuid, node.gpus[0].uuid[4..].replace('-', ""));
        for (attribute, value) in [
            (Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132),
            (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152),
            (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232_448),
            (Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 60 << 20),
            (Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
            (Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 7),
        ] {
            assert_eq!(context.attribute(attribute).unwrap(), value, "{attribute:?}");
        }
    });
}

#[test]
fn a_process_sees_one_slice() {
    let topology = "[[gpu]]\nmodel = 'a100'\nmig = '2x3g.20gb'";
    alone(topology, |node| {
        let context = CudaContext::new(0).unwrap();
        assert_eq!(CudaContext::device_count().unwrap(), 1);
        assert_eq!(context.name().unwrap(), "NVIDIA A100-SXM4-40GB MIG 3g.20gb");
        let _block = Words::new(&vec![0_u64; 1 << 17]);
        let uses = node.state.uses(0);
        assert_eq!((uses.len(), uses[0].slice, uses[0].bytes), (1, Some(0), 1 << 20));
        assert_eq!(context.mem_get_info().unwrap(), ((20096 << 20) - (1 << 20), 20096 << 20));
    });
}

#[test]
fn errors_have_names() {
    alone(T4, |_| {
        let error = DriverError(Code::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(error.error_name().unwrap(), c"CUDA_ERROR_ILLEGAL_ADDRESS");
        assert_eq!(error.error_string().unwrap(), c"an illegal memory access was encountered");
        let mut name = null();
        let get: unsafe extern "C" fn(u32, *mut *const i8) -> Code =
            unsafe { *sys::culib().get(b"cuGetErrorName").unwrap() };
        assert_eq!(unsafe { get(54321, &raw mut name) }, Code::CUDA_ERROR_INVALID_VALUE);
        assert!(name.is_null());
    });
}

#[test]
fn functions_are_found_by_name() {
    alone(T4, |_| {
        let mut function = null_mut();
        let find = |name: &CStr, function: &mut *mut _| unsafe {
            sys::cuGetProcAddress_v2(name.as_ptr(), function, 12000, 0, null_mut())
        };
        assert_eq!(find(c"cuMemAlloc", &mut function), Code::CUDA_SUCCESS);
        let direct = unsafe {
            sys::culib().get::<unsafe extern "C" fn()>(b"cuMemAlloc_v2").unwrap().into_raw()
        };
        assert_eq!(function, direct.into_raw());
        assert_eq!(find(c"cuMakeCoffee", &mut function), Code::CUDA_ERROR_NOT_FOUND);
        assert!(function.is_null());
    });
}

#[test]
fn the_primary_context_is_counted() {
    alone(T4, |node| {
        let first = CudaContext::new(0).unwrap();
        let second = CudaContext::new(0).unwrap();
        assert_eq!(first.cu_ctx(), second.cu_ctx());
        assert_eq!(node.state.uses(0).len(), 1);
        drop(first);
        second.synchronize().unwrap();
        let address = unsafe { result::malloc_sync(4096) }.unwrap();
        drop(second);
        // What was left in it went with it, and so did the process's entry.
        assert_eq!(node.state.uses(0), []);
        assert_eq!(
            code(unsafe { result::free_sync(address) }),
            Code::CUDA_ERROR_CONTEXT_IS_DESTROYED
        );
        let third = CudaContext::new(0).unwrap();
        assert_eq!(code(unsafe { result::free_sync(address) }), Code::CUDA_ERROR_INVALID_VALUE);
        third.synchronize().unwrap();
    });
}

#[test]
fn contexts_keep_their_own() {
    alone(T4, |_| {
        let one = CudaContext::new(0).unwrap();
        let stream = one.new_stream().unwrap();
        let other = CudaContext::new_non_primary(0, 0).unwrap();
        assert_eq!(
            code(unsafe { result::stream::synchronize(stream.cu_stream()) }),
            Code::CUDA_ERROR_INVALID_HANDLE
        );
        one.bind_to_thread().unwrap();
        unsafe { result::stream::synchronize(stream.cu_stream()) }.unwrap();
        drop(other);
        one.synchronize().unwrap();
    });
}

#[test]
fn handles_of_nothing_are_refused() {
    alone(T4, |_| {
        let _context = CudaContext::new(0).unwrap();
        let stream = 0x7777_usize as sys::CUstream;
        let event = 0x7777_usize as sys::CUevent;
        let module = 0x7777_usize as sys::CUmodule;
        let invalid = Code::CUDA_ERROR_INVALID_HANDLE;
        unsafe {
            assert_eq!(code(result::stream::synchronize(stream)), invalid);
            assert_eq!(code(result::stream::destroy(stream)), invalid);
            assert_eq!(code(result::event::query(event)), invalid);
            assert_eq!(code(result::module::unload(module)), invalid);
            assert_eq!(code(result::module::get_function(module, c"add".into())), invalid);
        }
        let timed = result::event::create(CUevent_flags::CU_EVENT_DEFAULT).unwrap();
        let untimed = result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap();
        assert_eq!(code(unsafe { result::event::elapsed(timed, untimed) }), invalid);
        unsafe { result::event::query(timed) }.unwrap();
    });
}

#[test]
fn modules_are_for_a_driver_and_a_chip() {
    let topology = format!("driver_version = '525.60.13'\ncuda_version = '12.0'\n{T4}");
    alone(&topology, |_| {
        let _context = CudaContext::new(0).unwrap();
        load(PTX).unwrap();
        let newer = PTX.replace(".version 8.0", ".version 8.1");
        assert_eq!(code(load(&newer)), Code::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
        let other = PTX.replace(".target sm_70", ".target sm_80");
        assert_eq!(code(load(&other)), Code::CUDA_ERROR_INVALID_PTX);
        assert_eq!(code(load("")), Code::CUDA_ERROR_INVALID_PTX);
        assert_eq!(code(load("\u{7f}ELF\u{2}")), Code::CUDA_ERROR_NO_BINARY_FOR_GPU);
        // Not made of the source that is built in.
        let stale = PTX.replace("add_param_3", "add_param_3,\n.param .u64 add_param_4");
        assert_eq!(code(load(&stale)), Code::CUDA_ERROR_INVALID_IMAGE);
        let module = load(".version 8.0\n.target sm_70\n.visible .entry who() { ret; }").unwrap();
        unsafe {
            assert_eq!(
                code(result::module::get_function(module, c"add".into())),
                Code::CUDA_ERROR_NOT_FOUND
            );
            assert_eq!(
                code(result::module::get_function(module, c"who".into())),
                Code::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND
            );
        }
    });
}

#[test]
fn launches_have_limits() {
    alone(T4, |node| {
        let module = Module::load();
        let data = Words::new(&[1_u64; 1024]);
        let mut arguments = [arg(&data.address)];
        let mut run = |name, shape| code(module.run(name, shape, &mut arguments));
        let name = "block_prefix_sums";
        assert_eq!(run(name, (0, 32, 256)), Code::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(run(name, (1, 1025, 0)), Code::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(run(name, (1, 32, (48 << 10) + 1)), Code::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(run("reverse_blocks", (1, 512, 0)), Code::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        // A T4 has 64 KiB for who opts in.
        let function = module.function(name);
        let most = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let opt_in =
            |bytes| unsafe { result::function::set_function_attribute(function, most, bytes) };
        assert_eq!(code(opt_in((64 << 10) + 1)), Code::CUDA_ERROR_INVALID_VALUE);
        opt_in(64 << 10).unwrap();
        let (grid, block, bytes) = ((1, 1, 1), (1024, 1, 1), 64 << 10);
        let stream = result::stream::null();
        let launch = |arguments: &mut [_]| unsafe {
            result::launch_kernel(function, grid, block, bytes, stream, arguments)
        };
        launch(&mut [arg(&data.address)]).unwrap();
        assert_eq!(data.get()[1023], 1024);
        let no_arguments = unsafe {
            sys::cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 256, stream, null_mut(), null_mut())
        };
        assert_eq!(no_arguments, Code::CUDA_ERROR_INVALID_VALUE);
        // Only what was launched is in the log.
        let log = log(node, "cuLaunchKernel");
        assert_eq!(log.len(), 1);
        assert_eq!(log[0]["kernel"], name);
        assert_eq!(log[0]["module"], "probe");
        assert_eq!(log[0]["block"], serde_json::json!([1024, 1, 1]));
        assert_eq!(log[0]["shared"], 64 << 10);
    });
}

#[test]
fn functions_have_attributes_and_an_occupancy() {
    alone(H200, |_| {
        let module = Module::load();
        let of = |name, attribute| unsafe {
            result::function::get_function_attribute(module.function(name), attribute).unwrap()
        };
        let threads = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        let shared = FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        let ptx = FunctionAttribute::CU_FUNC_ATTRIBUTE_PTX_VERSION;
        assert_eq!((of("add", threads), of("reverse_blocks", threads)), (1024, 256));
        assert_eq!((of("add", shared), of("reverse_blocks", shared)), (0, 1024));
        assert_eq!(of("add", ptx), 80);
        let blocks = |name, threads, shared| unsafe {
            let function = module.function(name);
            result::occupancy::max_active_block_per_multiprocessor(function, threads, shared)
        };
        assert_eq!(blocks("add", 256, 0).unwrap(), 8);
        assert_eq!(blocks("block_prefix_sums", 256, 100 << 10).unwrap(), 2);
        assert_eq!(code(blocks("add", 0, 0)), Code::CUDA_ERROR_INVALID_VALUE);
        let (grid, block) = unsafe {
            let function = module.function("reverse_blocks");
            result::occupancy::max_potential_block_size(function, None, 0, 0)
        }
        .unwrap();
        assert_eq!((grid, block), (8 * 132, 256));
    });
}
