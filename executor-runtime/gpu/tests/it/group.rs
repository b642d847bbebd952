//! Rows by key.

use std::collections::HashMap;

use creel_gpu::device::Region;
use creel_gpu::kernels::column::{Layout, bitmap_bytes};
use creel_gpu::primitives::filter::Predicate;
use creel_gpu::primitives::group::{self, Grouping, Keys, Memory};

use crate::gpu::{Gpu, Random, SIZES, on, on_node};
use crate::rows::{Rows, Value};

/// Groups' first rows, and each row's group.
pub(crate) fn groups(gpu: &Gpu, columns: &[Rows], mut slots: u64) -> (Vec<u32>, Vec<u32>) {
    let rows = columns[0].values.len() as u32;
    let described: Vec<u8> = columns.iter().flat_map(|it| it.put(gpu).to_bytes()).collect();
    let keys = Keys { columns: gpu.put(&described), count: columns.len() as u32, rows };
    let predicate = Predicate { truth: Region::new(0, 0), validity: None, rows };
    let mut memory = Memory {
        hashes: gpu.room(u64::from(rows) * 4),
        table: gpu.room(slots * 8),
        ids: gpu.room(u64::from(rows) * 4),
        leaders: gpu.room(bitmap_bytes(rows as usize) as u64),
        workspace: gpu.room(predicate.workspace_bytes()),
    };
    group::hash(&gpu.stream, &keys, memory.hashes).expect("hashes");
    let count = loop {
        match group::find(&gpu.stream, &keys, slots, &memory).expect("groups") {
            Grouping::Groups(count) => break count,
            Grouping::TableFull(larger) => {
                assert!(larger > slots);
                slots = larger;
                memory.table = gpu.room(slots * 8);
            }
        }
    };
    let leaders = gpu.room(u64::from(count) * 4);
    group::number(&gpu.stream, &keys, count, &memory, leaders).expect("numbers");
    (gpu.get(leaders, count as usize), gpu.get(memory.ids, rows as usize))
}

fn check(gpu: &Gpu, columns: &[Rows], slots: u64) {
    let rows = columns[0].values.len();
    let mut numbers: HashMap<String, u32> = HashMap::new();
    let mut leaders = vec![];
    let ids: Vec<u32> = (0..rows)
        .map(|row| {
            let key: Vec<Option<String>> =
                columns.iter().map(|it| it.values[row].as_ref().map(Value::key)).collect();
            *numbers.entry(format!("{key:?}")).or_insert_with(|| {
                leaders.push(row as u32);
                leaders.len() as u32 - 1
            })
        })
        .collect();
    let found = groups(gpu, columns, slots);
    assert!(found.0 == leaders, "{rows} rows, {} groups: {:?}", leaders.len(), columns[0].layout);
    assert!(found.1 == ids, "{rows} rows, {} groups: {:?}", leaders.len(), columns[0].layout);
}

/// A column of so many distinct values, every so many null.
pub(crate) fn column(
    random: &mut Random,
    layout: Layout,
    rows: usize,
    distinct: u64,
    null_one_in: u64,
) -> Rows {
    let values = (0..rows)
        .map(|_| {
            let number = random.below(distinct) as i64 - 3;
            let value = match layout {
                Layout::Bool => Value::Bool(number % 2 == 0),
                Layout::F32 => match number {
                    -3 => Value::F32(-0.0),
                    -2 => Value::F32(f32::NAN),
                    -1 => Value::F32(f32::INFINITY),
                    _ => Value::F32(number as f32 / 8.0),
                },
                Layout::F64 => match number {
                    -3 => Value::F64(-0.0),
                    -2 => Value::F64(f64::NAN),
                    -1 => Value::F64(f64::NEG_INFINITY),
                    _ => Value::F64(number as f64 / 8.0),
                },
                Layout::I128 => Value::I128(i128::from(number) << 70),
                Layout::I8 | Layout::I16 | Layout::I32 | Layout::I64 => Value::Integer(number),
                _ => Value::Text(
                    "x".repeat((number % 11).unsigned_abs() as usize) + &number.to_string(),
                ),
            };
            (!random.one_in(null_one_in)).then_some(value)
        })
        .collect();
    Rows::new(layout, values)
}

#[test]
fn every_type_is_a_key() {
    on("t4", |gpu| {
        let mut random = Random::new(6);
        let layouts = [
            (Layout::Bool, 2),
            (Layout::I8, 100),
            (Layout::I16, 1000),
            (Layout::I32, 1000),
            (Layout::I64, 1000),
            (Layout::F32, 1000),
            (Layout::F64, 1000),
            (Layout::I128, 1000),
            (Layout::String, 1000),
            (Layout::Dictionary8, 200),
            (Layout::Dictionary16, 1000),
            (Layout::Dictionary32, 1000),
            (Layout::Dictionary64, 1000),
        ];
        for (layout, distinct) in layouts {
            for (distinct, nulls) in [(distinct, 10), (1, u64::MAX), (distinct, 1), (4, 2)] {
                check(gpu, &[column(&mut random, layout, 1025, distinct, nulls)], 4096);
            }
        }
    });
}

#[test]
fn sizes_and_shares() {
    on("t4", |gpu| {
        let mut random = Random::new(7);
        for size in SIZES {
            for distinct in [1, 5, 1 << 40] {
                let key = column(&mut random, Layout::I64, size, distinct, 20);
                check(gpu, &[key], group::slots(size as u32));
            }
            // One key has nearly all rows.
            let mut skewed = column(&mut random, Layout::I32, size, 1 << 20, u64::MAX);
            for (row, value) in skewed.values.iter_mut().enumerate() {
                if row % 100 != 0 {
                    *value = Some(Value::Integer(7));
                }
            }
            check(gpu, &[skewed], group::slots(size as u32));
        }
    });
}

#[test]
fn several_columns_are_one_key() {
    on("t4", |gpu| {
        let mut random = Random::new(8);
        let columns = [
            column(&mut random, Layout::Dictionary8, 5000, 5, 10),
            column(&mut random, Layout::String, 5000, 6, 10),
            column(&mut random, Layout::I128, 5000, 7, 10),
            column(&mut random, Layout::Bool, 5000, 2, 10),
        ];
        check(gpu, &columns, group::slots(5000));
    });
}

#[test]
fn a_table_too_small_is_noticed() {
    on("t4", |gpu| {
        let mut random = Random::new(9);
        // Fewer slots than groups, and so few that blocks fill it before one is counted.
        check(gpu, &[column(&mut random, Layout::I64, 20_000, 1 << 40, 30)], 64);
        check(gpu, &[column(&mut random, Layout::I64, 20_000, 30, 30)], 64);
        check(gpu, &[column(&mut random, Layout::I64, 20_000, 33, 30)], 64);
    });
}

#[test]
fn threads_in_any_order_find_the_same_groups() {
    for seed in ["1", "2", "3"] {
        on_node("[[gpu]]\nmodel = 't4'", &[("SIMULATED_GPU_SEED", seed)], |_| {
            let mut random = Random::new(10);
            let keys = column(&mut random, Layout::I32, 5000, 3000, 30);
            check(&Gpu::open(), &[keys], 8192);
        });
    }
}
