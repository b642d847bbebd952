//! Programs of expressions (`kernels/expression/evaluate.cu`).

use std::fmt;

use crate::device::{Arguments, DeviceError, Region, Stream};
use crate::kernels::column::{Column, Output, bitmap_bytes};
use crate::program::compile::THREADS;
use crate::program::{DataType, Program};

/// Why a row has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A decimal, or a number that is checked, has more bits than its type.
    Overflow,
    /// A division by zero.
    DivideByZero,
    /// A cast to a type that doesn't have the value.
    OutOfRange,
}

impl fmt::Display for Fault {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Fault::Overflow => "arithmetic overflow",
            Fault::DivideByZero => "divide by zero",
            Fault::OutOfRange => "the value is out of the range of the type that it is cast to",
        })
    }
}

/// Bytes of the word that takes the first fault.
pub const ERROR_BYTES: u64 = 8;

/// Columns and outputs as the kernel reads them, to be uploaded: the columns, then the outputs.
pub fn descriptors(columns: &[Column], outputs: &[Output]) -> Vec<u8> {
    let columns = columns.iter().flat_map(Column::to_bytes);
    columns.chain(outputs.iter().flat_map(Output::to_bytes)).collect()
}

/// Bytes of an output's values for so many rows.
pub fn output_bytes(data_type: DataType, rows: u32) -> u64 {
    match data_type.layout().width() {
        Some(width) => width as u64 * u64::from(rows),
        None => bitmap_bytes(rows as usize) as u64,
    }
}

/// Where everything of an evaluation lies.
#[derive(Clone, Copy, Debug)]
pub struct Evaluation<'a> {
    /// What is computed.
    pub program: &'a Program,
    /// [`Program::to_bytes`], uploaded.
    pub code: Region,
    /// [`descriptors`], uploaded. Its columns have as many rows as the selection names, and its
    /// outputs [`output_bytes`] and a bitmap each.
    pub descriptors: Region,
    /// How many columns are described.
    pub columns: u32,
    /// Rows of the outputs.
    pub rows: u32,
    /// The columns' row for each of them; absent if they are the same.
    pub selection: Option<Region>,
    /// [`ERROR_BYTES`], which [`start`] clears.
    pub error: Region,
}

/// Evaluates the program for all rows. [`fault`] says what came of it.
pub fn start(stream: &Stream, evaluation: &Evaluation<'_>) -> Result<(), DeviceError> {
    let Evaluation { program, code, descriptors, columns, rows, selection, error } = *evaluation;
    let error = error.part(0, ERROR_BYTES)?;
    stream.fill(error, 0xFF)?;
    let text = program.text_offset() as u64;
    let code = code.holds("a program", text, 1)?;
    let outputs = u64::from(columns) * 56;
    let described = outputs + program.outputs().len() as u64 * 24;
    let descriptors = descriptors.holds("columns and outputs", described, 1)?;
    let selection = selection.map(|it| it.holds("a selection", rows, 4)).transpose()?;
    Arguments::new()
        .u64(code)
        .u32(program.instructions().len() as u32)
        .u32(program.stride() as u32)
        .u64(code + program.constants_offset() as u64)
        .u64(code + text)
        .u64(descriptors)
        .u64(descriptors + outputs)
        .u32(rows)
        .u64(selection.unwrap_or(0))
        .u64(error.address())
        .launch(
            stream,
            "evaluate",
            Program::blocks(rows as usize) as u64,
            THREADS as u32,
            program.shared_bytes() as u32,
        )
}

/// The first of the columns' rows that has no result, and why; waits for the evaluation.
pub fn fault(stream: &Stream, error: Region) -> Result<Option<(u32, Fault)>, DeviceError> {
    let word = stream.download_u64(error)?;
    let fault = match word & 0xFF {
        1 => Fault::Overflow,
        2 => Fault::DivideByZero,
        3 => Fault::OutOfRange,
        _ => return Ok(None),
    };
    Ok(Some(((word >> 8) as u32, fault)))
}
