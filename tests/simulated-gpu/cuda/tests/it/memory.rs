//! Memory: who has it, what is in it, and who may touch it.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::ptr::null_mut;

use cudarc::driver::sys::{
    self, CUmemAllocationType, CUmemLocation, CUmemLocationType,
    CUmemPool_attribute as PoolAttribute, CUmemPoolProps, CUresult as Code,
};
use cudarc::driver::{CudaContext, result};
use simulated_cuda::harness::{alone, is_other, log, other, with};

use crate::device::{Module, Words, arg, code};

/// 24220.3125 MiB of which 701 are in use.
const RTX6000: &str = "[[gpu]]\nmodel = 'rtx6000'\nmemory = { used_mib = 701 }";
const T4: &str = "[[gpu]]\nmodel = 't4'";
const MIB: usize = 1 << 20;

#[test]
fn memory_is_what_the_node_says() {
    alone(RTX6000, |node| {
        let context = CudaContext::new(0).unwrap();
        let (free, total) = context.mem_get_info().unwrap();
        assert_eq!(total, 24220 * MIB + 5 * MIB / 16);
        assert_eq!(free, 23519 * MIB + 5 * MIB / 16);
        let refused = unsafe { result::malloc_sync(free + 1) };
        assert_eq!(code(refused), Code::CUDA_ERROR_OUT_OF_MEMORY);
        let all = unsafe { result::malloc_sync(free) }.unwrap();
        assert_eq!(context.mem_get_info().unwrap().0, 0);
        assert_eq!(node.state.uses(0)[0].bytes, free as u64);
        // So much is only addresses; any part of it can be used.
        let mut last = [0_u8; 2];
        unsafe { result::memset_d8_sync(all + free as u64 - 1, 7, 1) }.unwrap();
        unsafe { result::memcpy_dtoh_sync(&mut last, all + free as u64 - 2) }.unwrap();
        assert_eq!(last, [0xa5, 7]);
        unsafe { result::free_sync(all) }.unwrap();
        assert_eq!(context.mem_get_info().unwrap().0, free);
    });
}

#[test]
fn another_process_takes_and_a_kill_gives_back() {
    alone(RTX6000, |node| {
        let context = CudaContext::new(0).unwrap();
        if is_other() {
            let address = unsafe { result::malloc_sync(20_000 * MIB) };
            println!("took {}", address.is_ok());
            std::io::stdout().flush().unwrap();
            std::thread::sleep(std::time::Duration::from_mins(10));
            return;
        }
        let before = context.mem_get_info().unwrap().0;
        let name = "memory::another_process_takes_and_a_kill_gives_back";
        let mut child = other(node, name).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.ends_with("took true")));
        assert_eq!(context.mem_get_info().unwrap().0, before - 20_000 * MIB);
        assert!(node.state.uses(0).iter().any(|claim| claim.pid == child.id()));
        let refused = unsafe { result::malloc_sync(4_000 * MIB) };
        assert_eq!(code(refused), Code::CUDA_ERROR_OUT_OF_MEMORY);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(context.mem_get_info().unwrap().0, before);
        unsafe { result::malloc_sync(4_000 * MIB) }.unwrap();
    });
}

#[test]
fn an_exclusive_device_lets_one_process_in() {
    let topology = "[[gpu]]\nmodel = 't4'\ncompute_mode = 'exclusive_process'";
    alone(topology, |node| {
        let entered = CudaContext::new(0);
        if is_other() {
            assert_eq!(code(entered), Code::CUDA_ERROR_DEVICE_UNAVAILABLE);
            println!("kept out");
            return;
        }
        let _context = entered.unwrap();
        let name = "memory::an_exclusive_device_lets_one_process_in";
        let output = other(node, name).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("kept out"), "{text}");
    });
}

#[test]
fn copies_and_fills_are_checked() {
    alone(T4, |_| {
        let _context = CudaContext::new(0).unwrap();
        let a = Words::new(&[1_u32, 2, 3, 4]);
        let b = Words::new(&[0_u32; 4]);
        let invalid = Code::CUDA_ERROR_INVALID_VALUE;
        let mut host = [0_u32; 8];
        unsafe {
            result::memcpy_dtod_sync(b.address, a.address, 16).unwrap();
            assert_eq!(b.get(), [1, 2, 3, 4]);
            result::memcpy_dtod_sync(b.address + 4, b.address, 12).unwrap();
            assert_eq!(b.get(), [1, 1, 2, 3]);
            assert_eq!(code(result::memcpy_dtod_sync(b.address, a.address + 4, 16)), invalid);
            assert_eq!(code(result::memcpy_dtoh_sync(&mut host, a.address)), invalid);
            assert_eq!(code(result::memcpy_htod_sync(a.address + 8, &host[..4])), invalid);
            assert_eq!(code(result::memcpy_htod_sync(host.as_ptr() as u64, &[1])), invalid);
            assert_eq!(code(result::memset_d8_sync(a.address, 0, 17)), invalid);
            let odd = sys::cuMemsetD32_v2(a.address + 2, 0, 1);
            assert_eq!(odd, invalid);
            assert_eq!(sys::cuMemsetD32_v2(a.address + 4, 9, 2), Code::CUDA_SUCCESS);
            assert_eq!(a.get(), [1, 9, 9, 4]);
            assert_eq!(code(result::malloc_sync(0)), invalid);
            assert_eq!(code(result::free_sync(a.address + 4)), invalid);
            result::free_sync(a.address).unwrap();
            assert_eq!(code(result::free_sync(a.address)), invalid);
            assert_eq!(code(a.try_get()), invalid);
        }
    });
}

#[test]
fn new_memory_is_poison_and_no_address_comes_back_soon() {
    alone(T4, |_| {
        let _context = CudaContext::new(0).unwrap();
        let mut seen = Vec::new();
        for size in [1, 255, 4096, 100_000] {
            let address = unsafe { result::malloc_sync(size) }.unwrap();
            assert!(address.is_multiple_of(256) && !seen.contains(&address));
            let mut bytes = vec![0_u8; size];
            unsafe { result::memcpy_dtoh_sync(&mut bytes, address) }.unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0xa5));
            unsafe { result::memset_d8_sync(address, 1, size) }.unwrap();
            unsafe { result::free_sync(address) }.unwrap();
            seen.push(address);
        }
    });
}

#[test]
fn pinned_memory_is_told_from_other() {
    alone(T4, |node| {
        let _context = CudaContext::new(0).unwrap();
        unsafe {
            let pinned = result::malloc_host(4096, 0).unwrap();
            assert_eq!(node.state.uses(0)[0].bytes, 0);
            let mut kind = 0_u32;
            let get: unsafe extern "C" fn(*mut u32, i32, u64) -> Code =
                *sys::culib().get(b"cuPointerGetAttribute").unwrap();
            assert_eq!(get(&raw mut kind, 2, pinned as u64 + 17), Code::CUDA_SUCCESS);
            assert_eq!(kind, 1);
            let here = 0_u32;
            let address = &raw const here as u64;
            assert_eq!(get(&raw mut kind, 2, address), Code::CUDA_ERROR_INVALID_VALUE);
            let code_of = code(result::free_sync(pinned as u64));
            assert_eq!(code_of, Code::CUDA_ERROR_INVALID_VALUE);
            result::free_host(pinned).unwrap();
            let code_of = code(result::free_host(null_mut()));
            assert_eq!(code_of, Code::CUDA_ERROR_INVALID_VALUE);
        }
    });
}

#[test]
fn a_tiny_device_has_addresses_for_all_that_fits() {
    let tiny = "memory = { total_mib = 2, reserved_mib = 0, used_mib = 0, context_mib = 0 }";
    alone(&format!("{T4}\n{tiny}"), |_| {
        let context = CudaContext::new(0).unwrap();
        unsafe {
            // What is pinned is the host's.
            for _ in 0..4 {
                result::malloc_host(4 * MIB, 0).unwrap();
            }
            for _ in 0..2048 {
                result::malloc_sync(512).unwrap();
            }
            assert_eq!(context.mem_get_info().unwrap().0, MIB);
            result::malloc_sync(MIB).unwrap();
        }
    });
}

#[test]
fn a_pool_keeps_what_its_threshold_says() {
    alone(T4, |node| {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let stream = stream.cu_stream();
        let used = || node.state.uses(0)[0].bytes as usize;
        let invalid = Code::CUDA_ERROR_INVALID_VALUE;
        unsafe {
            let pool = result::device::get_default_mem_pool(0).unwrap();
            let get = |attribute| {
                let mut value = 0_u64;
                result::mem_pool::get_attribute(pool, attribute, (&raw mut value).cast()).unwrap();
                value as usize
            };
            let first = result::malloc_async(stream, MIB).unwrap();
            assert_eq!(used(), MIB);
            result::free_async(first, stream).unwrap();
            // What is freed in a stream is the stream's again, with poison in it.
            let second = result::malloc_async(stream, MIB).unwrap();
            assert_eq!(second, first);
            result::free_async(second, stream).unwrap();
            assert_eq!(get(PoolAttribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
            assert_eq!(get(PoolAttribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH), MIB);
            assert_eq!(get(PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), MIB);
            assert_eq!(used(), MIB);
            // The threshold is 0: who waits gives it back.
            result::stream::synchronize(stream).unwrap();
            assert_eq!((used(), get(PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)), (0, 0));
            let mut all = u64::MAX;
            let threshold = PoolAttribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            result::mem_pool::set_attribute(pool, threshold, (&raw mut all).cast()).unwrap();
            let third = result::malloc_async(stream, MIB).unwrap();
            assert_eq!(code(result::free_async(third + 256, stream)), invalid);
            result::free_async(third, stream).unwrap();
            assert_eq!(code(result::free_async(third, stream)), invalid);
            result::stream::synchronize(stream).unwrap();
            assert_eq!(used(), MIB);
            result::mem_pool::trim_to(pool, 0).unwrap();
            assert_eq!(used(), 0);
            assert_eq!(code(result::mem_pool::destroy(pool)), invalid);
            // Room is made of what the pool keeps, when it doesn't fit.
            let large = (context.total_mem().unwrap() / 3) * 2;
            let fourth = result::malloc_async(stream, large).unwrap();
            result::free_async(fourth, stream).unwrap();
            result::stream::synchronize(stream).unwrap();
            assert_eq!(used(), large.next_multiple_of(512));
            result::malloc_async(stream, large + MIB).unwrap();
            let refused = result::malloc_async(stream, large);
            assert_eq!(code(refused), Code::CUDA_ERROR_OUT_OF_MEMORY);
            let sync = result::malloc_sync(512).unwrap();
            assert_eq!(code(result::free_async(sync, stream)), invalid);
        }
        assert!(log(node, "cuMemAllocAsync").len() >= 4);
        assert_eq!(log(node, "cuMemAlloc_v2").len(), 1);
    });
}

#[test]
fn a_pool_that_has_ended_gives_back_what_comes_back() {
    with(T4, &[("SIMULATED_GPU_HOLD_MS", "5000")], |node| unsafe {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let stream = stream.cu_stream();
        let properties = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: 0,
            },
            ..std::mem::zeroed()
        };
        let pool = result::mem_pool::create(&raw const properties).unwrap();
        let mut all = u64::MAX;
        let threshold = PoolAttribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        result::mem_pool::set_attribute(pool, threshold, (&raw mut all).cast()).unwrap();
        let memory = result::mem_pool::alloc_async(pool, MIB, stream).unwrap();
        result::free_async(memory, stream).unwrap();
        result::mem_pool::destroy(pool).unwrap();
        assert_eq!(node.state.uses(0)[0].bytes as usize, MIB);
        result::stream::synchronize(stream).unwrap();
        assert!(node.state.uses(0).iter().all(|held| held.bytes == 0));
    });
}

#[test]
fn a_kernel_that_leaves_its_memory_ends_the_process() {
    for offset in ["256", "5000", "-5000", "1099511627776"] {
        with(T4, &[("OFFSET", offset)], |_| {
            let offset: i64 = std::env::var("OFFSET").unwrap().parse().unwrap();
            let module = Module::load();
            let data = Words::new(&[0_u8; 256]);
            let mut arguments = [arg(&data.address), arg(&offset)];
            module.run("write_at", (1, 1, 0), &mut arguments).unwrap();
            sticky(&data, Code::CUDA_ERROR_ILLEGAL_ADDRESS);
        });
    }
}

/// All calls fail with the same code from now on.
fn sticky(data: &Words<u8>, expected: Code) {
    assert_eq!(code(result::ctx::synchronize()), expected);
    assert_eq!(code(data.try_get()), expected);
    assert_eq!(code(unsafe { result::malloc_sync(1) }), expected);
    assert_eq!(code(result::init()), expected);
    assert_eq!(code(result::device::get_count()), expected);
}

#[test]
fn what_is_written_beside_an_allocation_is_found_when_it_is_freed() {
    alone(T4, |_| {
        let module = Module::load();
        let data = Words::new(&[0_u8; 100]);
        let offset = 100_i64;
        let mut arguments = [arg(&data.address), arg(&offset)];
        module.run("write_at", (1, 1, 0), &mut arguments).unwrap();
        result::ctx::synchronize().unwrap();
        let freed = unsafe { result::free_sync(data.address) };
        assert_eq!(code(freed), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
        sticky(&data, Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn freed_memory_is_out_of_reach_for_kernels() {
    alone(T4, |_| {
        let module = Module::load();
        let data = Words::new(&[0_u8; 256]);
        let offset = 0_i64;
        unsafe { result::free_sync(data.address) }.unwrap();
        let mut arguments = [arg(&data.address), arg(&offset)];
        module.run("write_at", (1, 1, 0), &mut arguments).unwrap();
        sticky(&data, Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn memory_of_the_host_is_not_the_devices() {
    alone(T4, |_| {
        let module = Module::load();
        let data = Words::new(&[0_u8; 256]);
        let (host, offset) = ([0_u8; 16], 0_i64);
        let address = host.as_ptr() as u64;
        let mut arguments = [arg(&address), arg(&offset)];
        module.run("write_at", (1, 1, 0), &mut arguments).unwrap();
        sticky(&data, Code::CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(host, [0; 16]);
    });
}
