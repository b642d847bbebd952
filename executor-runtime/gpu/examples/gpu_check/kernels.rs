//! Kernels: how fast the bytes move that they must move, beside a copy within the device.

use std::error::Error;

use creel_gpu::device::{DeviceError, Region};
use creel_gpu::kernels::column::{Column, Layout, Output, bitmap_bytes};
use creel_gpu::memory::pool::DeviceMemory;
use creel_gpu::primitives::aggregate::{self, Function, Input, Way};
use creel_gpu::primitives::evaluate::{self, ERROR_BYTES, Evaluation};
use creel_gpu::primitives::filter::{self, Predicate};
use creel_gpu::primitives::group::{self, Grouping, Keys, Memory};
use creel_gpu::program::{Arithmetic, Comparison, DataType, Expression, Scalar, compile};

use crate::bench::Bench;
use crate::report::{Report, Unit, rate};

/// One in so many rows is selected.
const SELECTED: u32 = 10;

/// Measures all kernels; `copy` is the rate of a copy within the device.
pub(crate) fn run(
    bench: &Bench,
    rows: u32,
    copy: f64,
    report: &mut Report,
) -> Result<(), Box<dyn Error>> {
    let mut add = |name: &str, bytes: u64, time| {
        let rate = rate(bytes, time);
        report.add(name, Unit::Rate, rate, Some(rate / copy));
    };
    let count = u64::from(rows);

    let truth: Vec<u8> = (0..bitmap_bytes(rows as usize) as u32)
        .map(|byte| {
            (0..8).fold(0, |bits, bit| bits | u8::from(draw(byte * 8 + bit, SELECTED) == 0) << bit)
        })
        .collect();
    let truth = bench.put(&truth)?;
    let predicate = Predicate { truth: Region::from(&truth), validity: None, rows };
    let workspace = bench.room(predicate.workspace_bytes())?;
    let workspace = Region::from(&workspace);
    let selected = filter::count(&bench.stream, &predicate, workspace)?;
    let selection = bench.room(u64::from(selected) * 4)?;
    let time = bench.time(|| {
        filter::count(&bench.stream, &predicate, workspace)?;
        filter::rows(&bench.stream, &predicate, workspace, selected, Region::from(&selection))
    })?;
    add("filter, one row in ten", count / 4 + u64::from(selected) * 4, time);

    for (name, expression, outputs) in
        [("expression, a < 50", less()?, 1.0 / 8.0), ("expression, a * b + a", product()?, 8.0)]
    {
        let time = evaluation(bench, rows, expression)?;
        let bytes = if name.contains('b') { 16.0 } else { 8.0 } + outputs + 1.0 / 8.0;
        add(name, (bytes * f64::from(rows)) as u64, time);
    }

    let values = column(bench, rows, 100)?;
    let ids = |groups: u32| {
        let bytes: Vec<u8> = (0..rows).flat_map(|row| draw(row, groups).to_le_bytes()).collect();
        bench.put(&bytes)
    };
    for (name, groups, way) in [
        ("sum, 4 groups (registers)", 4, Way::Few),
        ("sum, 1000 groups (shared memory)", 1000, Way::Shared),
        ("sum, 1000000 groups (global memory)", 1_000_000, Way::Global),
    ] {
        let ids = ids(groups)?;
        let column = Column::fixed(Layout::I64, values.address());
        let input = Input { column, ids: Some(Region::from(&ids)), rows, groups };
        let states = bench.room(u64::from(groups) * 8)?;
        let time = bench.time(|| {
            let (stream, states) = (&bench.stream, Region::from(&states));
            aggregate::aggregate(stream, Function::SumI64, way, &input, states)
        })?;
        add(name, count * 12, time);
    }

    for (name, distinct) in
        [("group, 1000 keys", 1000), ("group, as many keys as one row in four", (rows / 4).max(1))]
    {
        let keys = column(bench, rows, distinct)?;
        let time = grouping(bench, rows, &keys)?;
        add(name, count * (2 * 8 + 28 + 24), time);
    }
    Ok(())
}

/// A number below the limit for each row, that looks random.
fn draw(row: u32, limit: u32) -> u32 {
    let mut mixed = u64::from(row).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (((mixed >> 32) * u64::from(limit)) >> 32) as u32
}

/// A column of 64-bit integers below the limit.
fn column(bench: &Bench, rows: u32, limit: u32) -> Result<DeviceMemory, Box<dyn Error>> {
    let bytes: Vec<u8> =
        (0..rows).flat_map(|row| u64::from(draw(row, limit)).to_le_bytes()).collect();
    bench.put(&bytes)
}

fn less() -> Result<Expression, creel_gpu::program::Error> {
    let a = Expression::column(0, DataType::Int64)?;
    let limit = Expression::literal(&Scalar::Integer(50, DataType::Int64))?;
    Expression::compare(Comparison::Less, &a, &limit)
}

fn product() -> Result<Expression, creel_gpu::program::Error> {
    let (a, b) = (Expression::column(0, DataType::Int64)?, Expression::column(1, DataType::Int64)?);
    let product = Expression::arithmetic(Arithmetic::Multiply, &a, &b)?;
    Expression::arithmetic(Arithmetic::Add, &product, &a)
}

fn evaluation(
    bench: &Bench,
    rows: u32,
    expression: Expression,
) -> Result<std::time::Duration, Box<dyn Error>> {
    let program = compile(&[expression])?;
    let columns = [column(bench, rows, 100)?, column(bench, rows, 1000)?];
    let described = columns.each_ref().map(|it| Column::fixed(Layout::I64, it.address()));
    let data_type = program.outputs()[0];
    let values = bench.room(evaluate::output_bytes(data_type, rows))?;
    let validity = bench.room(bitmap_bytes(rows as usize) as u64)?;
    let output = Output {
        values: values.address(),
        validity: validity.address(),
        layout: data_type.layout(),
    };
    let code = bench.put(&program.to_bytes())?;
    let descriptors = bench.put(&evaluate::descriptors(&described, &[output]))?;
    let error = bench.room(ERROR_BYTES)?;
    let evaluation = Evaluation {
        program: &program,
        code: Region::from(&code),
        descriptors: Region::from(&descriptors),
        columns: 2,
        rows,
        selection: None,
        error: Region::from(&error),
    };
    Ok(bench.time(|| evaluate::start(&bench.stream, &evaluation))?)
}

/// From keys to the number of each row's group.
fn grouping(
    bench: &Bench,
    rows: u32,
    keys: &DeviceMemory,
) -> Result<std::time::Duration, Box<dyn Error>> {
    let described = bench.put(&Column::fixed(Layout::I64, keys.address()).to_bytes())?;
    let keys = Keys { columns: Region::from(&described), count: 1, rows };
    let count = u64::from(rows);
    // Its size alone is asked for.
    let predicate = Predicate { truth: Region::new(0, 0), validity: None, rows };
    let slots = group::slots(rows / 2);
    let room = [
        count * 4,
        slots * 8,
        count * 4,
        bitmap_bytes(rows as usize) as u64,
        predicate.workspace_bytes(),
        count * 4,
    ];
    let room = room.into_iter().map(|bytes| bench.room(bytes)).collect::<Result<Vec<_>, _>>()?;
    let region = |place: usize| Region::from(&room[place]);
    let memory = Memory {
        hashes: region(0),
        table: region(1),
        ids: region(2),
        leaders: region(3),
        workspace: region(4),
    };
    let stream = &bench.stream;
    Ok(bench.time(|| {
        group::hash(stream, &keys, memory.hashes)?;
        match group::find(stream, &keys, slots, &memory)? {
            Grouping::Groups(groups) => group::number(stream, &keys, groups, &memory, region(5)),
            Grouping::TableFull(count) => {
                Err(DeviceError::TooMany { what: "groups", count, limit: slots })
            }
        }
    })?)
}
