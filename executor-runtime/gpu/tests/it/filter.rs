//! Selections.

use creel_gpu::primitives::filter::{self, Predicate};

use crate::gpu::{Gpu, Random, SIZES, on};

fn check(gpu: &Gpu, truth: &[bool], validity: Option<&[bool]>) {
    let rows = truth.len() as u32;
    // Bits behind the last row may be anything: all that follow are set here.
    let behind = truth.len().next_multiple_of(32) - truth.len();
    let bits = |bits: &[bool]| {
        gpu.put_bits(0, bits.iter().copied().chain(std::iter::repeat_n(true, behind)))
    };
    let predicate = Predicate { truth: bits(truth), validity: validity.map(bits), rows };
    let workspace = gpu.room(predicate.workspace_bytes());
    let count = filter::count(&gpu.stream, &predicate, workspace).expect("a count");
    let expected: Vec<u32> = (0..rows)
        .filter(|&row| truth[row as usize] && validity.is_none_or(|it| it[row as usize]))
        .collect();
    assert_eq!(count as usize, expected.len());
    let selection = gpu.room(u64::from(count) * 4);
    filter::rows(&gpu.stream, &predicate, workspace, count, selection).expect("rows");
    assert!(gpu.get::<u32>(selection, expected.len()) == expected, "{rows} rows");
}

#[test]
fn rows_that_are_true_and_not_null_are_selected_in_order() {
    on("t4", |gpu| {
        let mut random = Random::new(2);
        for size in SIZES.into_iter().chain([8191, 8192, 8193]) {
            for one_in in [1, 2, 50, u64::MAX] {
                let truth: Vec<bool> = (0..size).map(|_| random.one_in(one_in)).collect();
                check(gpu, &truth, None);
                let validity: Vec<bool> = (0..size).map(|_| !random.one_in(3)).collect();
                check(gpu, &truth, Some(&validity));
            }
            let late: Vec<bool> = (0..size).map(|row| row + 40 >= size).collect();
            check(gpu, &late, Some(&vec![true; size]));
            check(gpu, &vec![true; size], Some(&vec![false; size]));
        }
    });
}
