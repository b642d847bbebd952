//! Prefix sums.

use creel_gpu::primitives::scan;

use crate::gpu::{Gpu, Random, SIZES, on};

fn check(gpu: &Gpu, lengths: &[u32]) {
    let count = lengths.len() as u64;
    let values = gpu.put(lengths);
    let workspace = gpu.room(scan::workspace_bytes(count));
    let total = scan::sum(&gpu.stream, values, count, workspace).expect("a sum");
    assert_eq!(total, lengths.iter().map(|&it| u64::from(it)).sum::<u64>());
    let offsets = gpu.room((count + 1) * 4);
    scan::offsets(&gpu.stream, values, count, workspace, offsets).expect("offsets");
    let mut expected = vec![0i32];
    for &length in lengths {
        expected.push(expected[expected.len() - 1].wrapping_add_unsigned(length));
    }
    assert!(gpu.get::<i32>(offsets, lengths.len() + 1) == expected, "{count} lengths");
}

#[test]
fn offsets_are_sums_of_what_is_before() {
    on("t4", |gpu| {
        let mut random = Random::new(1);
        for size in SIZES.into_iter().chain([2047, 2048, 2049, 600_000]) {
            check(gpu, &(0..size).map(|_| random.below(1000) as u32).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_sum_may_be_larger_than_offsets() {
    on("t4", |gpu| {
        let values = gpu.put(&vec![u32::MAX; 5000]);
        let workspace = gpu.room(scan::workspace_bytes(5000));
        let total = scan::sum(&gpu.stream, values, 5000, workspace).expect("a sum");
        assert_eq!(total, u64::from(u32::MAX) * 5000);
        assert!(scan::offsets(&gpu.stream, values, 5000, workspace, gpu.room(20_000)).is_err());
    });
}
