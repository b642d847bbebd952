//! Aggregates of groups.

use creel_gpu::device::Region;
use creel_gpu::kernels::column::{Layout, bitmap_bytes};
use creel_gpu::primitives::NO_ROW;
use creel_gpu::primitives::aggregate::{self, Function, Input, Way};

use crate::gpu::{Gpu, Random, SIZES, on, on_node};
use crate::group::column;
use crate::rows::{Rows, Value};

/// Rows, the group of each, and how they lie on the device.
struct Case {
    rows: Rows,
    ids: Vec<u32>,
    groups: u32,
    input: Input,
}

impl Case {
    fn new(gpu: &Gpu, rows: Rows, ids: Vec<u32>, groups: u32) -> Self {
        let input = Input {
            column: rows.put(gpu),
            ids: (groups > 1).then(|| gpu.put(&ids)),
            rows: ids.len() as u32,
            groups,
        };
        Case { rows, ids, groups, input }
    }

    /// The values of each group, in the order of rows.
    fn values(&self) -> Vec<Vec<(u32, &Value)>> {
        let mut groups = vec![vec![]; self.groups as usize];
        for (row, (value, &group)) in self.rows.values.iter().zip(&self.ids).enumerate() {
            if let Some(value) = value {
                groups[group as usize].push((row as u32, value));
            }
        }
        groups
    }

    /// The ways that there are for so many groups.
    fn ways(&self, function: Function) -> Vec<Way> {
        let shared = u64::from(self.groups) * u64::from(function.state_bytes()) <= 48 << 10;
        let mut ways = vec![Way::Global];
        ways.extend((self.groups <= 8).then_some(Way::Few));
        ways.extend(shared.then_some(Way::Shared));
        ways
    }

    fn states(&self, gpu: &Gpu, function: Function, way: Way) -> Region {
        let states = gpu.room(u64::from(self.groups) * u64::from(function.state_bytes()));
        aggregate::aggregate(&gpu.stream, function, way, &self.input, states).expect("states");
        states
    }
}

fn number(value: &Value) -> i128 {
    match value {
        Value::Bool(value) => i128::from(*value),
        Value::Integer(value) => i128::from(*value),
        Value::I128(value) => *value,
        other => panic!("{other:?} is no number"),
    }
}

fn double(value: &Value) -> f64 {
    match value {
        Value::F32(value) => f64::from(*value),
        Value::F64(value) => *value,
        other => panic!("{other:?} is no float"),
    }
}

/// What it is tested with: sizes, groups few, more, many; some rows null, none, all.
fn cases(gpu: &Gpu, seed: u64, layout: Layout, distinct: u64, mut check: impl FnMut(&Case)) {
    let mut random = Random::new(seed);
    for size in SIZES {
        let many = (size as u32).max(9);
        for groups in [1, 4, 8, 9, 500, many] {
            for null_one_in in [10, u64::MAX, 1] {
                if size > 50_000 && (null_one_in != 10 || groups == 8) {
                    continue;
                }
                let ids = (0..size).map(|_| {
                    // The first group has most rows.
                    if random.one_in(3) { random.below(u64::from(groups)) as u32 } else { 0 }
                });
                let ids: Vec<u32> = ids.collect();
                let rows = column(&mut random, layout, size, distinct, null_one_in);
                check(&Case::new(gpu, rows, ids, groups));
            }
        }
    }
}

#[test]
fn counts_and_their_validity() {
    on("t4", |gpu| {
        cases(gpu, 11, Layout::I32, 100, |case| {
            let expected: Vec<u64> = case.values().iter().map(|it| it.len() as u64).collect();
            for way in case.ways(Function::Count) {
                let counts = case.states(gpu, Function::Count, way);
                let groups = case.groups as usize;
                assert!(gpu.get::<u64>(counts, groups) == expected, "{way:?}");
                let bitmap = gpu.room(bitmap_bytes(groups) as u64);
                aggregate::validity(&gpu.stream, counts, case.groups, bitmap).expect("a bitmap");
                let valid: Vec<bool> = expected.iter().map(|&it| it != 0).collect();
                assert!(gpu.get_bits(bitmap, groups) == valid, "{way:?}");
            }
        });
    });
}

#[test]
fn sums_of_integers_wrap() {
    on("t4", |gpu| {
        cases(gpu, 12, Layout::I16, 30_000, |case| {
            let sum = |values: &Vec<(u32, &Value)>| values.iter().map(|it| number(it.1)).sum();
            let expected: Vec<i128> = case.values().iter().map(sum).collect();
            for way in case.ways(Function::SumI64) {
                let sums = case.states(gpu, Function::SumI64, way);
                let found = gpu.get::<i64>(sums, case.groups as usize);
                assert!(found.iter().map(|&it| i128::from(it)).eq(expected.iter().copied()));
            }
        });
        let large = vec![Some(Value::Integer(i64::MAX)); 3];
        let case = Case::new(gpu, Rows::new(Layout::I64, large), vec![0; 3], 1);
        for way in case.ways(Function::SumI64) {
            let sums = case.states(gpu, Function::SumI64, way);
            assert_eq!(gpu.get::<i64>(sums, 1), [i64::MAX - 2]);
        }
    });
}

#[test]
fn sums_of_decimals_are_exact() {
    on("t4", |gpu| {
        let mut random = Random::new(13);
        let check = |case: &Case| {
            let sum = |values: &Vec<(u32, &Value)>| {
                values.iter().fold(0i128, |sum, it| sum.wrapping_add(number(it.1)))
            };
            let expected: Vec<i128> = case.values().iter().map(sum).collect();
            for way in case.ways(Function::SumI128) {
                let sums = case.states(gpu, Function::SumI128, way);
                assert!(gpu.get::<i128>(sums, case.groups as usize) == expected, "{way:?}");
            }
        };
        cases(gpu, 14, Layout::I128, 1 << 30, check);
        cases(gpu, 15, Layout::I64, 1 << 30, check);
        // Carries and borrows in every sum.
        for groups in [1, 7, 1000] {
            let ids: Vec<u32> = (0..20_000).map(|_| random.below(groups) as u32).collect();
            let values = ids
                .iter()
                .map(|_| {
                    let wide = i128::from(random.next()) << 62 | i128::from(random.next());
                    Some(Value::I128(if random.one_in(2) { wide } else { -wide }))
                })
                .collect();
            check(&Case::new(gpu, Rows::new(Layout::I128, values), ids, groups as u32));
        }
    });
}

#[test]
fn extremes_of_what_fits_into_64_bits() {
    on("t4", |gpu| {
        let layouts = [
            (Layout::Bool, 2),
            (Layout::I8, 100),
            (Layout::I16, 30_000),
            (Layout::I32, 1 << 20),
            (Layout::I64, 1 << 40),
            (Layout::F32, 1 << 20),
            (Layout::F64, 1 << 40),
        ];
        for (layout, distinct) in layouts {
            let mut random = Random::new(16);
            for (size, groups) in [(1, 1), (1000, 1), (1025, 8), (5000, 100), (5000, 9000)] {
                let ids: Vec<u32> = (0..size).map(|_| random.below(groups) as u32).collect();
                let rows = column(&mut random, layout, size, distinct, 5);
                let case = Case::new(gpu, rows, ids, groups as u32);
                for function in [Function::Min, Function::Max] {
                    for way in case.ways(function) {
                        check_extremes(gpu, &case, function, way);
                    }
                }
            }
        }
    });
}

/// By IEEE 754's total order.
fn compare(a: &Value, b: &Value) -> std::cmp::Ordering {
    match (a, b) {
        (Value::F32(a), Value::F32(b)) => a.total_cmp(b),
        (Value::F64(a), Value::F64(b)) => a.total_cmp(b),
        (Value::Text(a), Value::Text(b)) => a.cmp(b),
        _ => number(a).cmp(&number(b)),
    }
}

fn check_extremes(gpu: &Gpu, case: &Case, function: Function, way: Way) {
    let groups = case.groups as usize;
    let layout = case.rows.layout;
    let states = case.states(gpu, function, way);
    let bytes = layout.width().map_or(bitmap_bytes(groups), |width| width * groups);
    let out = gpu.room(bytes as u64);
    aggregate::extremes(&gpu.stream, states, case.groups, layout, out).expect("extremes");
    let found: Vec<Value> = match layout {
        Layout::Bool => gpu.get_bits(out, groups).into_iter().map(Value::Bool).collect(),
        Layout::I8 => {
            gpu.get::<i8>(out, groups).iter().map(|&it| Value::Integer(it.into())).collect()
        }
        Layout::I16 => {
            gpu.get::<i16>(out, groups).iter().map(|&it| Value::Integer(it.into())).collect()
        }
        Layout::I32 => {
            gpu.get::<i32>(out, groups).iter().map(|&it| Value::Integer(it.into())).collect()
        }
        Layout::I64 => gpu.get::<i64>(out, groups).into_iter().map(Value::Integer).collect(),
        Layout::F32 => gpu.get::<f32>(out, groups).into_iter().map(Value::F32).collect(),
        _ => gpu.get::<f64>(out, groups).into_iter().map(Value::F64).collect(),
    };
    for (values, found) in case.values().into_iter().zip(found) {
        let values = values.into_iter().map(|it| it.1);
        let expected = match function {
            Function::Min => values.min_by(|a, b| compare(a, b)),
            _ => values.max_by(|a, b| compare(a, b)),
        };
        if let Some(expected) = expected {
            let is_it = compare(&found, expected).is_eq();
            assert!(is_it, "{found:?} for {expected:?}: {function:?} {way:?} {layout:?}");
        }
    }
}

#[test]
fn extremes_of_decimals_and_strings_are_rows() {
    on("t4", |gpu| {
        for layout in [Layout::I128, Layout::String, Layout::Dictionary16] {
            let mut random = Random::new(17);
            for (size, groups) in [(1, 1), (33, 1), (1025, 8), (20_000, 100), (1025, 3000)] {
                let ids: Vec<u32> = (0..size).map(|_| random.below(groups) as u32).collect();
                let rows = column(&mut random, layout, size, 300, 5);
                let case = Case::new(gpu, rows, ids, groups as u32);
                for largest in [false, true] {
                    let rows = gpu.room(groups * 4);
                    aggregate::extreme_rows(&gpu.stream, largest, &case.input, rows).expect("rows");
                    let expected: Vec<u32> = case
                        .values()
                        .into_iter()
                        .map(|values| {
                            let first = values.into_iter().reduce(|best, it| {
                                let order = compare(it.1, best.1);
                                let better = if largest { order.is_gt() } else { order.is_lt() };
                                if better { it } else { best }
                            });
                            first.map_or(NO_ROW, |it| it.0)
                        })
                        .collect();
                    assert!(gpu.get::<u32>(rows, groups as usize) == expected, "{layout:?}");
                }
            }
        }
    });
}

fn float_sums(gpu: &Gpu, case: &Case, way: Way) -> Vec<f64> {
    let bytes = aggregate::float_workspace_bytes(way, case.input.rows, case.groups);
    let sums = gpu.room(u64::from(case.groups) * 8);
    let workspace = gpu.room(bytes);
    aggregate::sum_floats(&gpu.stream, way, &case.input, workspace, sums).expect("sums");
    gpu.get(sums, case.groups as usize)
}

/// Within 1e-12 of the sum of absolute values, or the same where it isn't finite.
fn check_float_sums(gpu: &Gpu, case: &Case) {
    for way in case.ways(Function::SumI128) {
        let found = float_sums(gpu, case, way);
        for (values, found) in case.values().iter().zip(found) {
            let values: Vec<f64> = values.iter().map(|it| double(it.1)).collect();
            let expected: f64 = values.iter().sum();
            let scale: f64 = values.iter().map(|it| it.abs()).sum();
            let same = if expected.is_finite() {
                (found - expected).abs() <= 1e-12 * scale
            } else {
                found.is_nan() == expected.is_nan() && (found.is_nan() || found == expected)
            };
            assert!(same, "{way:?}: {found} is not {expected}");
        }
    }
}

#[test]
fn sums_of_floats() {
    on("t4", |gpu| {
        cases(gpu, 18, Layout::F64, 1 << 40, |case| check_float_sums(gpu, case));
        cases(gpu, 19, Layout::F32, 1 << 20, |case| check_float_sums(gpu, case));
        let mut random = Random::new(20);
        let special = [0.0, -0.0, 5e-324, -1e-310, 1e300, -1e300, 1.0, 1e-300];
        for groups in [1, 8, 200] {
            let ids: Vec<u32> = (0..5000).map(|_| random.below(groups) as u32).collect();
            let values =
                ids.iter().map(|_| Some(Value::F64(special[random.below(8) as usize]))).collect();
            let case = Case::new(gpu, Rows::new(Layout::F64, values), ids, groups as u32);
            check_float_sums(gpu, &case);
        }
        // Each group has what another has not.
        let values = [
            vec![f64::INFINITY, 1.0],
            vec![f64::INFINITY, f64::NEG_INFINITY],
            vec![f64::NEG_INFINITY, 2.0],
            vec![f64::NAN, f64::INFINITY],
            vec![1e308, 1e308],
            vec![5e-324, 5e-324],
            vec![],
            vec![0.1, 0.2],
        ];
        let ids = values.iter().enumerate().flat_map(|(group, it)| vec![group as u32; it.len()]);
        let ids: Vec<u32> = ids.collect();
        let values = values.iter().flatten().map(|&it| Some(Value::F64(it))).collect();
        check_float_sums(gpu, &Case::new(gpu, Rows::new(Layout::F64, values), ids, 8));
    });
}

#[test]
fn sums_of_floats_are_the_same_whatever_the_order_of_threads() {
    let mut random = Random::new(21);
    let row =
        |random: &mut Random| (random.next() as f64 - 9e18) * 10f64.powi(random.below(30) as i32);
    let values: Vec<f64> = (0..20_000).map(|_| row(&mut random)).collect();
    for seed in ["1", "2", "3"] {
        on_node("[[gpu]]\nmodel = 't4'", &[("SIMULATED_GPU_SEED", seed)], |_| {
            let gpu = Gpu::open();
            for groups in [1, 8, 300u32] {
                let ids: Vec<u32> = (0..values.len() as u32).map(|it| it % groups).collect();
                let rows = values.iter().map(|&it| Some(Value::F64(it))).collect();
                let case = Case::new(&gpu, Rows::new(Layout::F64, rows), ids, groups);
                for way in case.ways(Function::SumI128) {
                    let bits: Vec<u64> =
                        float_sums(&gpu, &case, way).iter().map(|it| it.to_bits()).collect();
                    // Every run has its own process, so the first one's answer is computed anew.
                    let expected = match way {
                        Way::Few => tree(&values, groups),
                        Way::Shared | Way::Global => exact(&values, groups),
                    };
                    assert!(bits == expected, "{way:?} of {groups} groups");
                }
            }
        });
    }
}

/// The tree that the kernel has: threads by stride, warps and blocks by halves.
fn tree(values: &[f64], groups: u32) -> Vec<u64> {
    const THREADS: usize = 256;
    let blocks = values.len().div_ceil(THREADS * 16);
    let by_halves = |mut sums: Vec<f64>| {
        while sums.len() > 1 {
            let half = sums.len() / 2;
            sums = (0..half).map(|at| sums[at] + sums[at + half]).collect();
        }
        sums[0]
    };
    let block = |threads: Vec<f64>| {
        let mut warps: Vec<f64> = threads.chunks(32).map(|warp| by_halves(warp.to_vec())).collect();
        warps.resize(32, 0.0);
        by_halves(warps)
    };
    (0..groups as usize)
        .map(|group| {
            let partials: Vec<f64> = (0..blocks)
                .map(|number| {
                    let thread = |thread: usize| {
                        (number * THREADS + thread..values.len())
                            .step_by(blocks * THREADS)
                            .filter(|row| row % groups as usize == group)
                            .fold(0.0, |sum, row| sum + values[row])
                    };
                    block((0..THREADS).map(thread).collect())
                })
                .collect();
            let thread = |thread: usize| {
                partials.iter().skip(thread).step_by(THREADS).fold(0.0, |sum, it| sum + it)
            };
            block((0..THREADS).map(thread).collect()).to_bits()
        })
        .collect()
}

/// Whole numbers of 128 bits, in units of the largest exponent less 42 bits.
fn exact(values: &[f64], groups: u32) -> Vec<u64> {
    let exponent = |value: f64| (value.to_bits() >> 52 & 0x7FF).max(1) as i32;
    (0..groups as usize)
        .map(|group| {
            let own = || values.iter().copied().skip(group).step_by(groups as usize);
            let largest = own().map(exponent).max().unwrap_or(0);
            let sum: i128 = own()
                .map(|value| {
                    let fraction = value.to_bits() & ((1 << 52) - 1);
                    let mantissa = i128::from(fraction | 1 << 52) << 42;
                    let whole = mantissa >> (largest - exponent(value)).min(127);
                    if value < 0.0 { -whole } else { whole }
                })
                .sum();
            (sum as f64 * 2f64.powi(largest - 1075 - 42)).to_bits()
        })
        .collect()
}
