//! The rows of a predicate, and rows by their numbers.

use creel_gpu::device::Region;
use creel_gpu::kernels::column::Layout;
use creel_gpu::memory::ledger::DeviceBuffer;
use creel_gpu::primitives::filter::{self, Predicate};
use creel_gpu::primitives::gather::{self, Indices};

use super::draft::{Draft, DraftColumn, Place};
use super::evaluate::predicate;
use super::{Batch, Column, Held, hold};
use crate::gpu::{GpuError, Work};
use crate::operators::computation::Computation;

const PURPOSE: &str = "selected rows";

/// The rows where the predicate is true, and of their columns those at the places; `None` if there
/// are no such rows.
pub fn select(
    work: &Work<'_>,
    condition: &Computation,
    batch: &Batch,
    places: &[usize],
) -> Result<Option<Batch>, GpuError> {
    let read = condition.reads().chain(places.iter().copied());
    let held = hold(read.map(|place| &batch.columns()[place]), work)?;
    let mut scratch = Draft::default();
    let truth = predicate(work, condition, &held, batch.columns(), batch.rows(), &mut scratch)?;
    let Some(selection) = select_rows(work, &truth)? else { return Ok(None) };
    if selection.count == batch.rows() {
        return Ok(Some(batch.project(places)));
    }
    let mut draft = Draft::default();
    for &place in places {
        let column = &batch.columns()[place];
        let column = gather(work, &held, column, selection.indices(), false, &mut draft)?;
        draft.push(column);
    }
    Ok(Some(draft.finish(work, selection.count)))
}

/// Numbers of rows, in order.
pub struct Selection {
    rows: DeviceBuffer,
    /// How many there are.
    pub count: u32,
}

impl Selection {
    /// As [`gather()`] takes them.
    pub fn indices(&self) -> Indices {
        Indices { region: Region::from(&self.rows), count: self.count }
    }
}

/// All rows, in order.
pub fn all_rows(work: &Work<'_>, rows: u32) -> Result<Option<Selection>, GpuError> {
    let mut scratch = Draft::default();
    let ones = scratch.bitmap(work, rows, PURPOSE)?;
    let truth = scratch.region(ones);
    work.stream().fill(truth, 0xFF)?;
    select_rows(work, &Predicate { truth, validity: None, rows })
}

/// The rows where a predicate is true; `None` if there are none.
fn select_rows(work: &Work<'_>, predicate: &Predicate) -> Result<Option<Selection>, GpuError> {
    let workspace = work.allocate(predicate.workspace_bytes(), "counts of selected rows")?;
    let workspace = Region::from(&workspace);
    let count = filter::count(work.stream(), predicate, workspace)?;
    if count == 0 {
        return Ok(None);
    }
    let rows = work.allocate(u64::from(count) * 4, PURPOSE)?;
    filter::rows(work.stream(), predicate, workspace, count, Region::from(&rows))?;
    Ok(Some(Selection { rows, count }))
}

/// A column's rows by their numbers, in the draft; the column is held. With `may_miss` a number may
/// be none ([`creel_gpu::primitives::NO_ROW`]), and that row is null.
pub fn gather(
    work: &Work<'_>,
    held: &Held<'_>,
    column: &Column,
    indices: Indices,
    may_miss: bool,
    draft: &mut Draft,
) -> Result<DraftColumn, GpuError> {
    let stream = work.stream();
    let validity = if may_miss || column.validity.is_some() {
        let bitmap = draft.bitmap(work, indices.count, PURPOSE)?;
        gather::bits(stream, held.validity(column), indices, draft.region(bitmap))?;
        Some(bitmap)
    } else {
        None
    };
    let data_type = column.data_type.clone();
    match column.layout {
        Layout::Bool => {
            let values = draft.bitmap(work, indices.count, PURPOSE)?;
            let from = column.values.as_ref().map(|slot| (held.region(slot), column.first));
            gather::bits(stream, from, indices, draft.region(values))?;
            Ok(DraftColumn::fixed(data_type, Layout::Bool, values, validity))
        }
        Layout::String => {
            let texts = work.allocate(u64::from(indices.count) * 16, "places of strings")?;
            texts_of(work, held, column, indices, Region::from(&texts))?;
            let strings = draft.strings(work, Region::from(&texts), indices.count, PURPOSE)?;
            Ok(DraftColumn::strings(data_type, strings, validity))
        }
        layout => {
            let width = layout.width().expect("what isn't bits or strings has a width");
            let bytes = width as u64 * u64::from(indices.count);
            let values = draft.buffer(work, bytes, PURPOSE)?;
            gather::values(stream, width, held.values(column)?, indices, draft.region(values))?;
            // A dictionary stays where it is.
            Ok(DraftColumn {
                first: 0,
                values: Some(Place::New(values)),
                validity: validity.map(Place::New),
                ..DraftColumn::shared(column)
            })
        }
    }
}

/// Where the rows' strings are: address and length, 16 bytes each.
pub fn texts_of(
    work: &Work<'_>,
    held: &Held<'_>,
    column: &Column,
    indices: Indices,
    to: Region,
) -> Result<(), GpuError> {
    let described = work.allocate(56, "a column's description")?;
    work.stream().upload(&held.kernel(column).to_bytes(), Region::from(&described))?;
    Ok(gather::texts(work.stream(), Region::from(&described), indices, to)?)
}
