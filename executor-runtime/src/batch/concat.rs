//! Batches put together.

use creel_gpu::device::Region;
use creel_gpu::kernels::column::Layout;
use creel_gpu::primitives::append;
use creel_gpu::primitives::gather::Indices;

use super::draft::{Draft, DraftColumn, New};
use super::select::{Selection, all_rows, texts_of};
use super::{Batch, Column, Held, hold};
use crate::gpu::{GpuError, Work};

const PURPOSE: &str = "batches put together";

/// The rows of all batches, in order. They have the same columns; there is one at least.
pub fn concat(work: &Work<'_>, batches: &[Batch]) -> Result<Batch, GpuError> {
    match batches {
        [batch] => Ok(batch.clone()),
        _ => copy(work, batches),
    }
}

/// The batch, in pieces of about so many bytes that share no memory: each can leave the device, and
/// come back, without the others.
pub fn cut(work: &Work<'_>, batch: Batch, bytes: u64) -> Result<Vec<Batch>, GpuError> {
    let pieces = hold(batch.columns(), work)?.bytes().div_ceil(bytes.max(1));
    if pieces <= 1 || batch.rows() <= 1 {
        return Ok(vec![batch]);
    }
    let rows = u64::from(batch.rows()).div_ceil(pieces) as u32;
    let starts = (0..batch.rows()).step_by(rows as usize);
    let slices = starts.map(|first| batch.slice(first, rows.min(batch.rows() - first)));
    slices.map(|slice| copy(work, &[slice])).collect()
}

fn copy(work: &Work<'_>, batches: &[Batch]) -> Result<Batch, GpuError> {
    let held = hold(batches.iter().flat_map(Batch::columns), work)?;
    let rows: u64 = batches.iter().map(|batch| u64::from(batch.rows())).sum();
    let rows = u32::try_from(rows).map_err(|_| GpuError::Rows(rows))?;
    let longest = batches.iter().map(Batch::rows).max().unwrap_or(0);
    // Strings alone are gathered by their rows.
    let has_texts = batches[0].columns().iter().any(Column::is_text);
    let numbers = if has_texts { all_rows(work, longest)? } else { None };
    let mut draft = Draft::default();
    for place in 0..batches[0].columns().len() {
        let pieces: Vec<Piece<'_>> = batches
            .iter()
            .map(|batch| Piece { column: &batch.columns()[place], rows: batch.rows() })
            .collect();
        let column = column(work, &held, &pieces, rows, numbers.as_ref(), &mut draft)?;
        draft.push(column);
    }
    Ok(draft.finish(work, rows))
}

/// A batch's part of a column.
struct Piece<'a> {
    column: &'a Column,
    rows: u32,
}

fn column(
    work: &Work<'_>,
    held: &Held<'_>,
    pieces: &[Piece<'_>],
    rows: u32,
    numbers: Option<&Selection>,
    draft: &mut Draft,
) -> Result<DraftColumn, GpuError> {
    let data_type = pieces[0].column.data_type.clone();
    let validity = if pieces.iter().any(|piece| piece.column.validity.is_some()) {
        Some(bits(work, pieces, rows, |column| held.validity(column), draft)?)
    } else {
        None
    };
    if pieces[0].column.is_text() {
        // Dictionaries may differ, so these strings become plain ones.
        let texts = work.allocate(u64::from(rows) * 16, "places of strings")?;
        let mut first = 0;
        for piece in pieces {
            let Some(numbers) = numbers.filter(|_| piece.rows > 0) else { continue };
            let indices = Indices { count: piece.rows, ..numbers.indices() };
            let to = Region::from(&texts).part(first * 16, u64::from(piece.rows) * 16)?;
            texts_of(work, held, piece.column, indices, to)?;
            first += u64::from(piece.rows);
        }
        let strings = draft.strings(work, Region::from(&texts), rows, PURPOSE)?;
        return Ok(DraftColumn::strings(data_type, strings, validity));
    }
    let layout = pieces[0].column.layout;
    let values = if layout == Layout::Bool {
        let of =
            |column: &Column| column.values.as_ref().map(|slot| (held.region(slot), column.first));
        bits(work, pieces, rows, of, draft)?
    } else {
        let width = layout.width().expect("what isn't bits or strings has a width") as u64;
        let values = draft.buffer(work, u64::from(rows) * width, PURPOSE)?;
        let mut first = 0;
        for piece in pieces {
            let bytes = u64::from(piece.rows) * width;
            let from = held.values(piece.column)?.part(0, bytes)?;
            work.stream().copy(from, draft.region(values).part(first, bytes)?)?;
            first += bytes;
        }
        values
    };
    Ok(DraftColumn::fixed(data_type, layout, values, validity))
}

/// Bitmaps one after the other; where one is absent all its bits are set.
fn bits(
    work: &Work<'_>,
    pieces: &[Piece<'_>],
    rows: u32,
    of: impl Fn(&Column) -> Option<(Region, u32)>,
    draft: &mut Draft,
) -> Result<New, GpuError> {
    let bitmap = draft.bitmap(work, rows, PURPOSE)?;
    let to = draft.region(bitmap);
    let mut first = 0;
    for piece in pieces {
        append::bits(work.stream(), of(piece.column), piece.rows, to, first)?;
        first += piece.rows;
    }
    Ok(bitmap)
}
