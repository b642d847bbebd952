//! Batches on a simulated device.

use std::sync::Arc;

use creel_gpu::program::{self, Expression, Truth};
use creel_settings::Settings;
use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal64Array, Decimal128Array, DictionaryArray,
    Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, LargeStringArray,
    RecordBatch, StringArray, StringViewArray, TimestampMicrosecondArray, TimestampSecondArray,
    UInt64Array,
};
use datafusion::arrow::compute::{concat_batches, filter_record_batch};
use datafusion::arrow::datatypes::{DataType, Field, Int8Type, Schema, SchemaRef, UInt16Type};
use datafusion::physical_plan::metrics::Time;
use simulated_cuda::harness::{name_of, named};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::download::download;
use super::upload::upload;
use super::*;
use crate::gpu::memory::Host;
use crate::gpu::{Gpu, GpuAttachment, GpuQuery};
use crate::operators::computation::{Computation, Operation, Output, Pass};

const T4: &str = "[[gpu]]\nmodel = 't4'";

/// Does something with the device of a simulated T4, with this kind of pool; at the end nothing of
/// it is in use.
fn on_device(settings: &[(&str, &str)], test: impl FnOnce(&mut Work<'_>)) {
    let spill = TempDir::new().unwrap();
    let mut all = Settings::default();
    for (name, value) in
        [("gpu.memory.reserve", "1g"), ("gpu.memory.host_limit", "2g")].iter().chain(settings)
    {
        all.set(name, value).unwrap();
    }
    let host = Host { available: 8 << 30, devices: 1, ..Host::default() };
    let driver = creel_gpu::device::Driver::start().unwrap();
    let uuid = driver.devices().unwrap().remove(0).uuid;
    let gpu = Gpu::open(&uuid, &all, &host, spill.path()).unwrap();
    let query: GpuQuery = GpuAttachment::new(&gpu, "a test".to_owned()).query("q");
    let task = query.task(0);
    let stream = Arc::new(gpu.context().stream().unwrap());
    let runtime = Runtime::new().unwrap();
    let (wanted, _reader) = mpsc::channel(1);
    let copiers = [gpu.copier(&stream), gpu.copier(&stream)];
    let threads = runtime.handle().clone();
    let mut work = Work::new(&gpu, &task, copiers, threads, wanted, Time::new());
    work.begin().unwrap();
    test(&mut work);
    drop(work);
    drop(task);
    drop(query);
    assert_eq!(gpu.leaks(), 0);
    assert_eq!(gpu.pool().statistics().live, 0);
}

/// Does it with each kind of pool.
fn on_each_pool(test: impl Fn(&mut Work<'_>)) {
    named(name_of(&test), T4, &[], |_| {
        for pool in ["ARENA", "NONE"] {
            on_device(&[("gpu.memory.pool", pool)], &test);
        }
    });
}

/// A column of each type that the device takes, some rows null.
fn rows(first: usize, count: usize) -> RecordBatch {
    fn some<T>(first: usize, count: usize, value: impl Fn(u32) -> T) -> Vec<Option<T>> {
        let rows = first as u32..(first + count) as u32;
        rows.map(|row| (row % 7 != 3).then(|| value(row))).collect()
    }
    let text = |row: u32| match row % 4 {
        0 => String::new(),
        1 => format!("row {}", row % 100),
        2 => "grüße aus dem webstuhl, und zwar lange genug für eine ganze warp".to_owned(),
        _ => "x".to_owned(),
    };
    let texts = some(first, count, text);
    let word = |row: u32| ["warp", "weft", "", "shuttle"][row as usize % 4];
    let words = some(first, count, word);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("bool", Arc::new(BooleanArray::from(some(first, count, |row| row % 3 == 0)))),
        ("i8", Arc::new(Int8Array::from(some(first, count, |row| (row as u8).cast_signed())))),
        (
            "i16",
            Arc::new(Int16Array::from(some(first, count, |row| i16::try_from(row).unwrap() - 100))),
        ),
        ("i32", Arc::new(Int32Array::from(some(first, count, |row| row.cast_signed() * 77)))),
        ("i64", Arc::new(Int64Array::from(some(first, count, |row| i64::from(row) - 5)))),
        (
            "whole",
            Arc::new(Int64Array::from_iter_values(
                (first as u32..(first + count) as u32).map(i64::from),
            )),
        ),
        ("u64", Arc::new(UInt64Array::from(some(first, count, u64::from)))),
        ("f32", Arc::new(Float32Array::from(some(first, count, |row| row as f32 / 3.0)))),
        ("f64", Arc::new(Float64Array::from(some(first, count, |row| f64::from(row) / 3.0)))),
        ("date", Arc::new(Date32Array::from(some(first, count, u32::cast_signed)))),
        ("s", Arc::new(TimestampSecondArray::from(some(first, count, i64::from)))),
        (
            "us",
            Arc::new(
                TimestampMicrosecondArray::from(some(first, count, i64::from))
                    .with_timezone("Europe/Berlin"),
            ),
        ),
        (
            "d64",
            Arc::new(
                Decimal64Array::from(some(first, count, i64::from))
                    .with_precision_and_scale(12, 2)
                    .unwrap(),
            ),
        ),
        (
            "d128",
            Arc::new(
                Decimal128Array::from(some(first, count, |row| i128::from(row) - (1 << 80)))
                    .with_precision_and_scale(38, 4)
                    .unwrap(),
            ),
        ),
        ("utf8", Arc::new(StringArray::from(texts.clone()))),
        ("large", Arc::new(LargeStringArray::from(texts.clone()))),
        ("view", Arc::new(StringViewArray::from_iter(texts))),
        ("dict8", Arc::new(words.iter().copied().collect::<DictionaryArray<Int8Type>>())),
        ("dict16", Arc::new(words.into_iter().collect::<DictionaryArray<UInt16Type>>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true)))
        .unwrap()
}

fn back(work: &Work<'_>, batch: &Batch, schema: &SchemaRef, chunk: usize) -> RecordBatch {
    let downloaded = download(work, batch, schema).unwrap();
    let chunks: Vec<_> = downloaded.batches(chunk).collect::<Result<_, _>>().unwrap();
    assert!(chunks.iter().all(|it| it.num_rows() > 0 && it.num_rows() <= chunk));
    concat_batches(schema, &chunks).unwrap()
}

/// Equal row by row; dictionaries may be others.
fn assert_same(found: &RecordBatch, expected: &RecordBatch) {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    let text = |batch: &RecordBatch| {
        pretty_format_batches(std::slice::from_ref(batch)).unwrap().to_string()
    };
    assert_eq!(found.schema(), expected.schema());
    assert!(text(found) == text(expected), "{}\n{}", text(found), text(expected));
}

#[test]
fn what_goes_up_comes_back() {
    on_each_pool(|work| {
        for pieces in [
            vec![rows(0, 0)],
            vec![rows(0, 1)],
            vec![rows(0, 33)],
            vec![rows(0, 33), rows(33, 0), rows(33, 1), rows(34, 1025)],
            vec![rows(0, 500).slice(13, 400), rows(9, 99).slice(1, 97)],
        ] {
            let schema = pieces[0].schema();
            let whole = concat_batches(&schema, &pieces).unwrap();
            let batch = upload(work, &schema, &pieces).unwrap();
            assert_same(&back(work, &batch, &schema, 100), &whole);
            if batch.rows() > 50 {
                let part = batch.slice(37, batch.rows() - 37 - 3);
                let expected = whole.slice(37, whole.num_rows() - 37 - 3);
                assert_same(&back(work, &part, &schema, usize::MAX), &expected);
            }
        }
    });
}

#[test]
fn batches_are_put_together() {
    on_each_pool(|work| {
        let schema = rows(0, 0).schema();
        let pieces = [rows(0, 70), rows(70, 1), rows(71, 0), rows(71, 200)];
        let batches: Vec<_> = pieces
            .iter()
            .map(|piece| upload(work, &schema, std::slice::from_ref(piece)).unwrap())
            .collect();
        let mut sliced: Vec<_> = batches.clone();
        sliced[0] = batches[0].slice(5, 60);
        sliced[3] = batches[3].slice(33, 100);
        for (batches, pieces) in [
            (batches, pieces.to_vec()),
            (
                sliced,
                vec![
                    pieces[0].slice(5, 60),
                    pieces[1].clone(),
                    pieces[2].clone(),
                    pieces[3].slice(33, 100),
                ],
            ),
        ] {
            let whole = concat::concat(work, &batches).unwrap();
            let expected = concat_batches(&schema, &pieces).unwrap();
            assert_same(&back(work, &whole, &schema, 64), &expected);
        }
    });
}

/// Whether a Boolean column is true.
fn is_true(place: usize) -> Computation {
    let column = Expression::column(0, program::DataType::Bool).unwrap();
    let program = program::compile(&[Expression::is(&column, Truth::True).unwrap()]).unwrap();
    Computation {
        passes: vec![Pass { program, columns: vec![place] }],
        outputs: vec![Output::Computed { pass: 0, output: 0, data_type: DataType::Boolean }],
    }
}

#[test]
fn rows_are_selected() {
    on_each_pool(|work| {
        for count in [1, 31, 33, 1025] {
            let all = rows(0, count);
            let schema = all.schema();
            let batch = upload(work, &schema, std::slice::from_ref(&all)).unwrap();
            // The first column, from a row on that doesn't begin a word.
            let first = count as u32 / 3;
            let part = batch.slice(first, batch.rows() - first);
            let columns: Vec<usize> = (0..part.columns().len()).collect();
            let condition = is_true(0);
            let found = select::select(work, &condition, &part, &columns).unwrap();
            let expected = all.slice(first as usize, count - first as usize);
            let mask = expected.column(0).as_any().downcast_ref::<BooleanArray>().unwrap();
            let expected = filter_record_batch(&expected, mask).unwrap();
            assert_eq!(found.as_ref().map_or(0, Batch::rows) as usize, expected.num_rows());
            let Some(found) = found else { continue };
            assert_same(&back(work, &found, &schema, 64), &expected);
        }
    });
}

#[test]
fn groups_of_no_rows_and_of_many() {
    on_each_pool(|work| {
        let reductions = [
            group::Reduction { argument: None, operation: Operation::Count },
            group::Reduction { argument: Some(1), operation: Operation::Sum },
            group::Reduction { argument: Some(2), operation: Operation::Max },
        ];
        let fields = |key: Option<DataType>| {
            let key = key.map(|data_type| Field::new("k", data_type, true));
            let states = [
                Field::new("count", DataType::Int64, false),
                Field::new("sum", DataType::Int64, true),
                Field::new("max", DataType::Utf8, true),
            ];
            Arc::new(Schema::new(key.into_iter().chain(states).collect::<Vec<_>>()))
        };
        let all = rows(0, 1000).project(&[3, 4, 14]).unwrap();
        let schema = all.schema();
        let batch = upload(work, &schema, std::slice::from_ref(&all)).unwrap();
        // One group.
        let whole = group::group(work, &batch, 0, &reductions, &fields(None)).unwrap();
        let found = back(work, &whole, &fields(None), 10);
        assert_eq!(found.num_rows(), 1);
        // Each row of its own, but for the nulls: far more than a table has room for at first.
        let keyed =
            group::group(work, &batch, 1, &reductions, &fields(Some(DataType::Int32))).unwrap();
        assert_eq!(keyed.rows() as usize, 1000 - 143 + 1);
        // None at all.
        let nothing = batch.slice(0, 0);
        let none =
            group::group(work, &nothing, 1, &reductions, &fields(Some(DataType::Int32))).unwrap();
        assert_eq!(none.rows(), 0);
        let one = group::group(work, &nothing, 0, &reductions, &fields(None)).unwrap();
        let found = back(work, &one, &fields(None), 10);
        assert_eq!(found.column(0).as_ref(), &Int64Array::from(vec![0]));
        assert_eq!(found.column(1).as_ref(), &Int64Array::from(vec![None]));
        assert_eq!(found.column(2).as_ref(), &StringArray::from(vec![None::<&str>]));
    });
}
