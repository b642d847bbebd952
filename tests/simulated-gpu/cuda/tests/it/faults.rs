//! Faults on demand.

use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUevent_flags, CUresult as Code};
use cudarc::driver::{CudaContext, result};
use simulated_cuda::harness::alone;
use simulated_nvml::{Action, CudaCode, Fault, Node};

use crate::device::{Module, Words, arg, code};

const T4: &str = "[[gpu]]\nmodel = 't4'";

fn set(node: &Node, fault: Fault) {
    node.set_faults(&[fault]).unwrap();
}

fn fails(function: &str, code: CudaCode) -> Fault {
    Fault::new(None, Action::FailCuda(code)).of(function)
}

#[test]
fn allocation_k_fails() {
    alone(T4, |node| unsafe {
        let _context = CudaContext::new(0).unwrap();
        set(node, fails("cuMemAlloc_v2", CudaCode::OUT_OF_MEMORY).at(3));
        let codes: Vec<Code> = (0..4).map(|_| code(result::malloc_sync(512))).collect();
        let (good, bad) = (Code::CUDA_SUCCESS, Code::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(codes, [good, good, bad, good]);
        assert_eq!(node.state.uses(0)[0].bytes, 3 * 512);
        set(node, fails("cuMemAllocAsync", CudaCode::OUT_OF_MEMORY).from(2));
        let stream = result::stream::null();
        let codes: Vec<Code> = (0..3).map(|_| code(result::malloc_async(stream, 512))).collect();
        assert_eq!(codes, [good, bad, bad]);
    });
}

#[test]
fn launch_k_fails_for_good() {
    alone(T4, |node| {
        let module = Module::load();
        let words = Words::new(&[0_u32; 256]);
        set(node, fails("cuLaunchKernel", CudaCode::LAUNCH_FAILED).at(2));
        let mut arguments = [arg(&words.address)];
        let mut run = || code(module.run("reverse_blocks", (1, 256, 0), &mut arguments));
        assert_eq!(run(), Code::CUDA_SUCCESS);
        // It is the call that counts, done or not.
        result::ctx::synchronize().unwrap();
        assert_eq!(run(), Code::CUDA_ERROR_LAUNCH_FAILED);
        assert_eq!(code(words.try_get()), Code::CUDA_ERROR_LAUNCH_FAILED);
        assert_eq!(code(result::ctx::synchronize()), Code::CUDA_ERROR_LAUNCH_FAILED);
    });
}

#[test]
fn a_copy_stalls_behind_the_call() {
    alone(T4, |node| unsafe {
        let _context = CudaContext::new(0).unwrap();
        let words = Words::new(&[5_u32]);
        let pinned = result::malloc_host(4, 0).unwrap().cast::<u32>();
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
        let event = result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap();
        set(node, Fault::new(None, Action::Hang).of("cuMemcpyDtoHAsync_v2"));
        let target = std::slice::from_raw_parts_mut(pinned, 1);
        result::memcpy_dtoh_async(target, words.address, stream).unwrap();
        result::event::record(event, stream).unwrap();
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            assert_eq!(code(result::event::query(event)), Code::CUDA_ERROR_NOT_READY);
        }
        node.set_faults(&[]).unwrap();
        result::event::synchronize(event).unwrap();
        assert_eq!(pinned.read_volatile(), 5);
    });
}

#[test]
fn a_copy_that_comes_back_when_it_is_done_is_counted_once() {
    alone(T4, |node| {
        let _context = CudaContext::new(0).unwrap();
        let words = Words::new(&[5_u32]);
        set(node, fails("cuMemcpyDtoH_v2", CudaCode::LAUNCH_TIMEOUT).at(3));
        assert_eq!((words.get(), words.get()), (vec![5], vec![5]));
        assert_eq!(code(words.try_get()), Code::CUDA_ERROR_LAUNCH_TIMEOUT);
    });
}

#[test]
fn a_lost_gpu_is_lost_to_all_its_work() {
    let topology = "[[gpu]]\nmodel = 't4'\ncount = 2";
    alone(topology, |node| {
        let first = CudaContext::new(0).unwrap();
        let _second = CudaContext::new(1).unwrap();
        let words = Words::new(&[5_u32]);
        set(node, Fault::lost(0).from(3));
        // Calls about the other GPU don't count.
        assert_eq!(words.get(), [5]);
        first.bind_to_thread().unwrap();
        result::mem_get_info().unwrap();
        result::mem_get_info().unwrap();
        assert_eq!(code(result::mem_get_info()), Code::CUDA_ERROR_UNKNOWN);
        assert_eq!(code(words.try_get()), Code::CUDA_ERROR_UNKNOWN);
        assert_eq!(code(CudaContext::new(1)), Code::CUDA_ERROR_UNKNOWN);
    });
}
