//! Columns that are computed of others.

use creel_gpu::device::Region;
use creel_gpu::kernels::column::{self, Layout};
use creel_gpu::primitives::evaluate::{
    ERROR_BYTES, Evaluation, descriptors, fault, output_bytes, start,
};
use creel_gpu::primitives::filter::Predicate;
use creel_gpu::program::Program;

use super::draft::{Draft, DraftColumn, New, Strings};
use super::{Batch, Column, Held, hold};
use crate::gpu::{GpuError, Work};
use crate::operators::computation::{Computation, Output};

const PURPOSE: &str = "computed columns";

/// A program's result, in a draft.
#[derive(Clone, Copy)]
enum Computed {
    Values(Layout, New, New),
    Strings(Strings, New),
}

/// What the computation makes of a batch.
pub fn compute(
    work: &Work<'_>,
    computation: &Computation,
    batch: &Batch,
) -> Result<Batch, GpuError> {
    let held = hold(computation.reads().map(|place| &batch.columns()[place]), work)?;
    let mut draft = Draft::default();
    evaluate(work, computation, &held, batch.columns(), batch.rows(), &mut draft)?;
    Ok(draft.finish(work, batch.rows()))
}

/// Adds to the draft what the computation makes of the columns, which are held.
pub fn evaluate(
    work: &Work<'_>,
    computation: &Computation,
    held: &Held<'_>,
    columns: &[Column],
    rows: u32,
    draft: &mut Draft,
) -> Result<(), GpuError> {
    let mut passes = Vec::with_capacity(computation.passes.len());
    for pass in &computation.passes {
        let columns: Vec<_> =
            pass.columns.iter().map(|&place| held.kernel(&columns[place])).collect();
        passes.push(run(work, &pass.program, &columns, rows, draft)?);
    }
    for output in &computation.outputs {
        draft.push(match output {
            Output::Input(place) => DraftColumn::shared(&columns[*place]),
            Output::Computed { pass, output, data_type } => match passes[*pass][*output] {
                Computed::Values(layout, values, validity) => {
                    DraftColumn::fixed(data_type.clone(), layout, values, Some(validity))
                }
                Computed::Strings(strings, validity) => {
                    DraftColumn::strings(data_type.clone(), strings, Some(validity))
                }
            },
        });
    }
    Ok(())
}

/// Evaluates a predicate, whose result is in the draft.
pub fn predicate(
    work: &Work<'_>,
    predicate: &Computation,
    held: &Held<'_>,
    columns: &[Column],
    rows: u32,
    draft: &mut Draft,
) -> Result<Predicate, GpuError> {
    evaluate(work, predicate, held, columns, rows, draft)?;
    let column = draft.columns().last().expect("a predicate has one output");
    let described = draft.kernel(column, held);
    let bytes = column::bitmap_bytes(rows as usize) as u64;
    Ok(Predicate {
        truth: Region::new(described.values, bytes),
        validity: Some(Region::new(described.validity, bytes)),
        rows,
    })
}

/// Runs a program. When this returns, the device needs nothing of what it read any more.
fn run(
    work: &Work<'_>,
    program: &Program,
    columns: &[column::Column],
    rows: u32,
    draft: &mut Draft,
) -> Result<Vec<Computed>, GpuError> {
    let types = program.outputs();
    let (mut values, mut validities, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    for data_type in types {
        let memory = work.allocate(output_bytes(*data_type, rows), PURPOSE)?;
        let validity = draft.bitmap(work, rows, PURPOSE)?;
        outputs.push(column::Output {
            values: memory.address(),
            validity: draft.region(validity).address(),
            layout: data_type.layout(),
        });
        values.push(memory);
        validities.push(validity);
    }
    // One upload: descriptions, the code, and a word for a fault, at multiples of 16 bytes.
    let mut bytes = descriptors(columns, &outputs);
    bytes.resize(bytes.len().next_multiple_of(16), 0);
    let code = bytes.len() as u64;
    bytes.extend(program.to_bytes());
    bytes.resize(bytes.len().next_multiple_of(16), 0);
    let error = bytes.len() as u64;
    let uploaded = work.allocate(error + ERROR_BYTES, "a program")?;
    let memory = Region::from(&uploaded);
    work.stream().upload(&bytes, memory)?;
    let evaluation = Evaluation {
        program,
        code: memory.part(code, error - code)?,
        descriptors: memory.part(0, code)?,
        columns: columns.len() as u32,
        rows,
        selection: None,
        error: memory.part(error, ERROR_BYTES)?,
    };
    start(work.stream(), &evaluation)?;
    if let Some((_, fault)) = fault(work.stream(), evaluation.error)? {
        return Err(GpuError::Fault(fault));
    }
    // Strings may lie in the program's own text, which goes when this returns.
    let results = types.iter().zip(values).zip(validities);
    results
        .map(|((data_type, memory), validity)| match data_type.layout() {
            Layout::Text => {
                let strings = draft.strings(work, Region::from(&memory), rows, PURPOSE)?;
                Ok(Computed::Strings(strings, validity))
            }
            layout => Ok(Computed::Values(layout, draft.adopt(memory), validity)),
        })
        .collect()
}
