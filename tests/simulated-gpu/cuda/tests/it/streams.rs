//! Streams are asynchronous, and what waits, waits.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys::{CUevent_flags, CUevent_wait_flags, CUresult as Code, CUstream};
use cudarc::driver::{CudaContext, result};
use simulated_cuda::harness::{alone, with};

use crate::device::{Module, Words, arg, code};

const T4: &str = "[[gpu]]\nmodel = 't4'";
/// Nothing is done for so long, unless somebody waits for it.
const HELD: &[(&str, &str)] = &[("SIMULATED_GPU_HOLD_MS", "5000")];

fn stream() -> CUstream {
    result::stream::create(result::stream::StreamKind::NonBlocking).unwrap()
}

#[test]
fn a_copy_that_nobody_waits_for_is_not_done() {
    with(T4, HELD, |_| unsafe {
        let _context = CudaContext::new(0).unwrap();
        let words = Words::new(&[7_u32; 4]);
        let stream = stream();
        let pinned = result::malloc_host(16, 0).unwrap().cast::<u32>();
        let target = std::slice::from_raw_parts_mut(pinned, 4);
        result::memcpy_dtoh_async(target, words.address, stream).unwrap();
        assert_eq!(pinned.read_volatile(), 0xa5a5_a5a5);
        result::stream::synchronize(stream).unwrap();
        assert_eq!(pinned.read_volatile(), 7);
        // From pinned memory a copy reads when it is done: what changes meanwhile is copied.
        pinned.write_volatile(1);
        result::memcpy_htod_async(words.address, std::slice::from_raw_parts(pinned, 1), stream)
            .unwrap();
        pinned.write_volatile(2);
        result::stream::synchronize(stream).unwrap();
        assert_eq!(words.get()[0], 2);
        // From other memory it reads at once, and to other memory it is done when it comes back.
        let mut other = [3_u32];
        result::memcpy_htod_async(words.address, &other, stream).unwrap();
        other[0] = 4;
        result::memcpy_dtoh_async(&mut other, words.address, stream).unwrap();
        assert_eq!(other, [3]);
    });
}

#[test]
fn work_goes_on_by_itself_in_the_end() {
    alone(T4, |_| unsafe {
        let _context = CudaContext::new(0).unwrap();
        let words = Words::new(&[7_u32; 4]);
        let stream = stream();
        let pinned = result::malloc_host(16, 0).unwrap().cast::<u32>();
        let target = std::slice::from_raw_parts_mut(pinned, 4);
        result::memcpy_dtoh_async(target, words.address, stream).unwrap();
        while pinned.read_volatile() != 7 {
            std::thread::yield_now();
        }
    });
}

#[test]
fn streams_wait_for_events_alone() {
    with(T4, HELD, |_| unsafe {
        let module = Module::load();
        let (first, second) = (stream(), stream());
        let event = result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap();
        let (source, target) = (Words::new(&[0_u32]), Words::new(&[0_u32]));
        let (value, turns) = (9_u32, 1000_u32);
        let mut arguments = [arg(&source.address), arg(&value), arg(&turns)];
        let shape = (1, 1, 0);
        // Without a wait the second stream doesn't see what the first has not done.
        module.run_in(first, "slow_write", shape, &mut arguments).unwrap();
        result::memcpy_dtod_async(target.address, source.address, 4, second).unwrap();
        result::stream::synchronize(second).unwrap();
        assert_eq!(target.get(), [0]);
        // With it, waiting for the second is waiting for the first.
        result::event::record(event, first).unwrap();
        assert_eq!(code(result::event::query(event)), Code::CUDA_ERROR_NOT_READY);
        let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        result::stream::wait_event(second, event, flags).unwrap();
        result::memcpy_dtod_async(target.address, source.address, 4, second).unwrap();
        result::stream::synchronize(second).unwrap();
        assert_eq!(target.get(), [9]);
        result::event::query(event).unwrap();
    });
}

#[test]
fn an_event_that_is_polled_comes() {
    with(T4, HELD, |_| unsafe {
        let _context = CudaContext::new(0).unwrap();
        let stream = stream();
        let flags = CUevent_flags::CU_EVENT_DEFAULT;
        let (start, end) =
            (result::event::create(flags).unwrap(), result::event::create(flags).unwrap());
        result::event::record(start, stream).unwrap();
        result::stream::launch_host_function(stream, sleep, std::ptr::null_mut()).unwrap();
        result::event::record(end, stream).unwrap();
        let mut asked = 0;
        while code(result::event::query(end)) == Code::CUDA_ERROR_NOT_READY {
            asked += 1;
            std::thread::yield_now();
        }
        assert!(asked > 0);
        let milliseconds = result::event::elapsed(start, end).unwrap();
        assert!((20.0..5000.0).contains(&milliseconds), "{milliseconds}");
        assert!(result::event::elapsed(end, start).unwrap() < 0.0);
    });
}

unsafe extern "C" fn sleep(_: *mut c_void) {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

#[test]
fn the_default_stream_waits_for_blocking_streams() {
    with(T4, HELD, |_| unsafe {
        let _context = CudaContext::new(0).unwrap();
        let count = AtomicU32::new(0);
        let data = (&raw const count).cast_mut().cast();
        let blocking = result::stream::create(result::stream::StreamKind::Default).unwrap();
        let apart = stream();
        result::stream::launch_host_function(blocking, add_one, data).unwrap();
        result::stream::launch_host_function(apart, add_one, data).unwrap();
        result::stream::synchronize(result::stream::null()).unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 1);
        result::ctx::synchronize().unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 2);
    });
}

unsafe extern "C" fn add_one(count: *mut c_void) {
    let count = unsafe { &*count.cast::<AtomicU32>() };
    count.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn memory_of_a_pool_is_of_its_stream_in_its_order() {
    with(T4, HELD, |_| unsafe {
        let _context = CudaContext::new(0).unwrap();
        let (first, second) = (stream(), stream());
        // Used in another stream that doesn't wait for the allocation: poison comes over it.
        let address = result::malloc_async(first, 4096).unwrap();
        result::memset_d8_async(address, 1, 4096, second).unwrap();
        result::stream::synchronize(second).unwrap();
        result::stream::synchronize(first).unwrap();
        let mut bytes = [0_u8; 4096];
        result::memcpy_dtoh_sync(&mut bytes, address).unwrap();
        assert_eq!(bytes, [0xa5; 4096]);
        // Freed while another stream still writes: another has it by then.
        result::free_async(address, first).unwrap();
        assert_ne!(result::malloc_async(second, 4096).unwrap(), address);
        assert_eq!(result::malloc_async(first, 4096).unwrap(), address);
    });
}

#[test]
fn cudarcs_own_layer_works_on_many_streams() {
    alone(T4, |_| {
        let context = CudaContext::new(0).unwrap();
        let default = context.default_stream();
        let data: Vec<u32> = (0..100_000).collect();
        let slice = default.clone_htod(&data).unwrap();
        let results: Vec<Vec<u32>> = (0..8)
            .map(|_| {
                let stream = context.new_stream().unwrap();
                stream.join(&default).unwrap();
                let copy = stream.clone_dtod(&slice).unwrap();
                stream.clone_dtoh(&copy).unwrap()
            })
            .collect();
        assert!(results.iter().all(|result| *result == data));
        drop(slice);
        context.synchronize().unwrap();
        context.check_err().unwrap();
    });
}
