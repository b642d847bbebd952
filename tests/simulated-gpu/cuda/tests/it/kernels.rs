//! What kernels do: threads, barriers, warps, atomics, arguments, and what goes wrong in them.

use cudarc::driver::result;
use cudarc::driver::sys::CUresult as Code;
use simulated_cuda::harness::{alone, with};

use crate::device::{Module, Words, arg, code};

const T4: &str = "[[gpu]]\nmodel = 't4'";

#[test]
fn each_thread_has_its_place() {
    alone(T4, |_| {
        adds(&Module::load());
    });
}

pub(crate) fn adds(module: &Module) {
    let n = 100_003_u32;
    let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let b: Vec<f32> = (0..n).map(|i| 0.5 * i as f32).collect();
    let (a, b, out) = (Words::new(&a), Words::new(&b), Words::new(&vec![0_f32; n as usize]));
    let mut arguments = [arg(&out.address), arg(&a.address), arg(&b.address), arg(&n)];
    module.run("add", (n.div_ceil(256), 256, 0), &mut arguments).unwrap();
    let right = |i: usize, sum: f32| sum.to_bits() == (1.5 * i as f32).to_bits();
    let wrong = out.get().into_iter().enumerate().find(|(i, sum)| !right(*i, *sum));
    assert_eq!(wrong, None);
}

#[test]
fn barriers_and_shared_memory() {
    alone(T4, |_| {
        let module = Module::load();
        reverses_blocks(&module);
        adds_up_blocks(&module);
    });
}

pub(crate) fn reverses_blocks(module: &Module) {
    let data: Vec<u32> = (0..1024).collect();
    let words = Words::new(&data);
    module.run("reverse_blocks", (4, 256, 0), &mut [arg(&words.address)]).unwrap();
    let expected: Vec<u32> =
        data.chunks(256).flat_map(|block| block.iter().rev().copied()).collect();
    assert_eq!(words.get(), expected);
}

pub(crate) fn adds_up_blocks(module: &Module) {
    for block in [1, 31, 32, 33, 1000, 1024_u32] {
        let sums = Words::new(&vec![1_u64; 3 * block as usize]);
        let shape = (3, block, block * 8);
        module.run("block_prefix_sums", shape, &mut [arg(&sums.address)]).unwrap();
        let expected: Vec<u64> = (0..3).flat_map(|_| 1..=u64::from(block)).collect();
        assert_eq!(sums.get(), expected, "{block}");
    }
}

#[test]
fn warps_exchange_and_vote() {
    for seed in ["1", "2", "3"] {
        with(T4, &[("SIMULATED_GPU_SEED", seed)], |_| {
            exchanges_in_warps(&Module::load());
        });
    }
}

pub(crate) fn exchanges_in_warps(module: &Module) {
    let words = Words::new(&[0_u32; 64 * 16]);
    module.run("warp_functions", (1, 64, 0), &mut [arg(&words.address)]).unwrap();
    let rows = words.get();
    for (thread, row) in rows.chunks(16).enumerate() {
        let (thread, lane) = (thread as u32, thread as u32 % 32);
        let first = thread - lane;
        let value = |lane: u32| (first + lane) * 10;
        let expected = [
            value(5),
            value(if lane < 3 { lane } else { lane - 3 }),
            value(if lane + 3 > 31 { lane } else { lane + 3 }),
            value(lane ^ 16),
            value(lane / 8 * 8 + 1),
            (0..32).filter(|lane| lane % 3 == 0).map(|lane| 1 << lane).sum(),
            1,
            0,
            0xf << (lane / 4 * 4),
            if lane < 16 { 0xaaaa } else { 0xffff_0000 },
            32,
            1,
            1,
            value(if lane == 31 { lane } else { lane + 1 }),
        ];
        assert_eq!(row[..14], expected, "{thread}");
        let last = if lane < 30 { 0x3fff_ffff } else { 0 };
        assert_eq!(row[14], last, "{thread}");
        // Of those that have not ended when this one asks.
        assert_eq!(row[15] >> lane & 1, u32::from(lane < 30), "{thread}");
    }
}

#[test]
fn atomics_lose_nothing() {
    alone(T4, |_| {
        counts(&Module::load());
    });
}

pub(crate) fn counts(module: &Module) {
    let n = 16_u32 * 256;
    let words = Words::new(&[0, 0, u32::MAX, 0, 0, u32::MAX, 0, 0, 0]);
    let wide = Words::new(&[0_u64; 3]);
    let (sum, wide_sum) = (Words::new(&[0_f32]), Words::new(&[0_f64]));
    let mut arguments =
        [arg(&words.address), arg(&wide.address), arg(&sum.address), arg(&wide_sum.address)];
    module.run("atomics", (16, 256, 0), &mut arguments).unwrap();
    let expected =
        [n * (n - 1) / 2, 0_u32.wrapping_sub(n), 0, n - 1, u32::MAX, 0, 0, n % 100, 2 * n];
    assert_eq!(words.get(), expected);
    let total = u64::from(n * (n - 1) / 2) << 32;
    assert_eq!(wide.get(), [total, u64::from(n - 1) << 32, 7]);
    let sums = (sum.get()[0].to_bits(), wide_sum.get()[0].to_bits());
    assert_eq!(sums, ((n as f32).to_bits(), (f64::from(n) / 2.0).to_bits()));
    let (lock, count) = (Words::new(&[0_u32]), Words::new(&[0_u32]));
    let mut arguments = [arg(&lock.address), arg(&count.address)];
    module.run("locked_count", (4, 128, 0), &mut arguments).unwrap();
    assert_eq!(count.get(), [512]);
}

#[repr(C)]
struct Plan {
    factor: u64,
    terms: u64,
    count: u32,
    divide: u8,
}

#[test]
fn arguments_of_all_kinds() {
    alone(T4, |_| {
        let module = Module::load();
        let terms = Words::new(&[3_u64, 5]);
        let out = Words::new(&[0_u64; 8]);
        let factor = 0x1234_5678_9abc_def0_u64;
        let plan = Plan { factor, terms: terms.address, count: 2, divide: 1 };
        let (scale, flag) = (1.5_f64, 200_u8);
        let mut arguments = [arg(&out.address), arg(&plan), arg(&scale), arg(&flag)];
        module.run("arguments", (1, 1, 0), &mut arguments).unwrap();
        let product = (u128::from(factor) + 3).wrapping_mul(u128::from(factor)) + 5;
        let square = u128::from(factor) * u128::from(factor);
        assert_eq!(
            out.get(),
            [
                product as u64,
                (product >> 64) as u64,
                (square >> 64) as u64,
                scale.to_bits(),
                u64::from(factor.count_ones()) << 32 | u64::from(factor.leading_zeros()),
                5 << 32 | 0x8000_0000,
                200,
                3 + factor / 3,
            ]
        );
    });
}

#[test]
fn a_missing_barrier_shows_with_any_seed() {
    for seed in ["1", "2", "3", "4", "5", "6"] {
        with(T4, &[("SIMULATED_GPU_SEED", seed)], |_| {
            let module = Module::load();
            let data: Vec<u32> = (0..256).collect();
            let words = Words::new(&data);
            module.run("without_barrier", (1, 256, 0), &mut [arg(&words.address)]).unwrap();
            let expected: Vec<u32> = data.into_iter().rev().collect();
            assert_ne!(words.get(), expected);
        });
    }
}

#[test]
fn unwritten_shared_memory_is_poison() {
    alone(T4, |_| {
        let module = Module::load();
        let words = Words::new(&[1_u32; 32]);
        module.run("unwritten_shared", (1, 32, 0), &mut [arg(&words.address)]).unwrap();
        assert_eq!(words.get()[..16], [0; 16]);
        assert_eq!(words.get()[16..], [0xa5a5_a5a5; 16]);
    });
}

#[test]
fn blocks_run_in_the_order_of_the_seed() {
    let mut orders = Vec::new();
    for seed in ["1", "2", "3", "4"] {
        let order = tempfile::NamedTempFile::new().unwrap();
        let path = order.path().to_str().unwrap().to_owned();
        with(T4, &[("SIMULATED_GPU_SEED", seed), ("ORDER", &path)], |_| {
            let module = Module::load();
            let (next, order) = (Words::new(&[0_u32]), Words::new(&[0_u32; 64]));
            let mut arguments = [arg(&next.address), arg(&order.address)];
            module.run("block_order", (64, 1, 0), &mut arguments).unwrap();
            let order = order.get();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..64).collect::<Vec<_>>());
            std::fs::write(std::env::var("ORDER").unwrap(), format!("{order:?}")).unwrap();
        });
        orders.push(std::fs::read_to_string(&path).unwrap());
    }
    orders.sort();
    orders.dedup();
    assert!(orders.len() > 1);
}

#[test]
fn threads_that_wait_for_each_other_are_ended() {
    alone(T4, |_| {
        let module = Module::load();
        let words = Words::new(&[0_u32; 32]);
        module.run("wait_for_each_other", (1, 32, 0), &mut [arg(&words.address)]).unwrap();
        assert_eq!(code(result::ctx::synchronize()), Code::CUDA_ERROR_LAUNCH_TIMEOUT);
        assert_eq!(code(words.try_get()), Code::CUDA_ERROR_LAUNCH_TIMEOUT);
    });
}

#[test]
fn a_trap_and_a_division_by_zero_are_failures() {
    for which in ["trap", "divide"] {
        with(T4, &[("WHICH", which)], |_| {
            let module = Module::load();
            if std::env::var("WHICH").unwrap() == "trap" {
                module.run("trap", (1, 1, 0), &mut []).unwrap();
            } else {
                let (terms, out) = (Words::new(&[0_u64, 5]), Words::new(&[0_u64; 8]));
                let plan = Plan { factor: 7, terms: terms.address, count: 2, divide: 1 };
                let (scale, flag) = (1.5_f64, 200_u8);
                let mut arguments = [arg(&out.address), arg(&plan), arg(&scale), arg(&flag)];
                module.run("arguments", (1, 1, 0), &mut arguments).unwrap();
            }
            assert_eq!(code(result::ctx::synchronize()), Code::CUDA_ERROR_LAUNCH_FAILED);
        });
    }
}

#[test]
fn beyond_dynamic_shared_memory_is_nothing() {
    alone(T4, |_| {
        let module = Module::load();
        let words = Words::new(&[0_u32; 64]);
        let index = 64 + 63_u32;
        let mut arguments = [arg(&words.address), arg(&index)];
        module.run("read_shared_at", (1, 64, 256), &mut arguments).unwrap();
        assert_eq!(words.get(), [63; 64]);
        let index = 64 + 64_u32;
        let mut arguments = [arg(&words.address), arg(&index)];
        module.run("read_shared_at", (1, 64, 256), &mut arguments).unwrap();
        assert_eq!(code(words.try_get()), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}
