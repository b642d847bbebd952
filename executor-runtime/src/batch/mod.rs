//! Batches on the device.
//!
//! ```text
//!   Batch ── rows
//!     └── Column ── Arrow's type, how values lie in memory, the first row
//!           └── Slot ── a buffer of a Part
//!                         Part ── buffers that are spilled together
//! ```
//!
//! A batch is at rest: what it is made of may leave the device while nobody looks. Who works on it
//! takes [`hold`] of it, which brings it back and keeps it there. Batches may share parts, so a
//! column that an operator only hands on is not copied; a slice of a batch is the same parts from
//! another row on.
//!
//! - [`upload`], [`download`]: from and to Arrow's arrays.
//! - [`draft`]: a batch in the making.
//! - [`evaluate`]: columns that are computed of others.
//! - [`select`]: the rows of a predicate.
//! - [`mod@concat`]: batches put together.
//! - [`group`]: rows by key, and what is computed of each group.

pub mod concat;
pub mod download;
pub mod draft;
pub mod evaluate;
pub mod group;
pub mod select;
#[cfg(test)]
mod tests;
pub mod upload;

use std::sync::Arc;

use creel_gpu::device::{DeviceMover, Region};
use creel_gpu::kernels::column::{self, Layout};
use creel_gpu::memory::ledger::DeviceBuffer;
use creel_gpu::memory::retry::Split;
use creel_gpu::memory::spill::{Held as HeldPart, Spillable, Tier};
use datafusion::arrow::datatypes::DataType;

use crate::gpu::{GpuError, Work};

/// Buffers that are spilled together.
pub type Part = Spillable<DeviceMover>;

/// A buffer of a part.
#[derive(Clone)]
pub struct Slot {
    part: Arc<Part>,
    buffer: usize,
}

/// A column, of a batch or of one in the making; `P` says where a buffer is.
#[derive(Clone)]
pub struct Column<P = Slot> {
    /// Its type, as Arrow has it.
    pub data_type: DataType,
    /// How values lie in memory. A column of a dictionary type may have its strings themselves.
    pub layout: Layout,
    /// Where in the buffers the first row is.
    pub first: u32,
    /// Values of fixed width, a Boolean's bits, or a dictionary's keys.
    pub values: Option<P>,
    /// The rows that aren't null; absent if none is. A dictionary's values are never null.
    pub validity: Option<P>,
    /// Offsets of strings, or of a dictionary's values.
    pub offsets: Option<P>,
    /// Bytes of strings.
    pub bytes: Option<P>,
    /// How many values the dictionary has.
    pub dictionary_values: u32,
}

impl<P> Column<P> {
    /// A column without buffers.
    pub fn new(data_type: DataType, layout: Layout) -> Self {
        Self {
            data_type,
            layout,
            first: 0,
            values: None,
            validity: None,
            offsets: None,
            bytes: None,
            dictionary_values: 0,
        }
    }

    /// The same column, its buffers named in another way.
    pub fn map<Q>(self, place: impl Fn(P) -> Q) -> Column<Q> {
        Column {
            data_type: self.data_type,
            layout: self.layout,
            first: self.first,
            values: self.values.map(&place),
            validity: self.validity.map(&place),
            offsets: self.offsets.map(&place),
            bytes: self.bytes.map(&place),
            dictionary_values: self.dictionary_values,
        }
    }

    /// As kernels take it.
    fn kernel(&self, region: impl Fn(&P) -> Region) -> column::Column {
        let address = |place: &Option<P>| place.as_ref().map_or(0, |it| region(it).address());
        let first = u64::from(self.first);
        let width = self.layout.width().unwrap_or(0) as u64;
        let is_string = self.layout == Layout::String;
        column::Column {
            values: address(&self.values) + first * width,
            values_bit: if self.layout == Layout::Bool { self.first } else { 0 },
            validity: address(&self.validity),
            validity_bit: self.first,
            offsets: address(&self.offsets) + if is_string { first * 4 } else { 0 },
            bytes: address(&self.bytes),
            ..column::Column::fixed(self.layout, 0)
        }
    }

    /// Whether it has strings, in one form or another.
    pub fn is_text(&self) -> bool {
        self.layout == Layout::String || self.is_dictionary()
    }

    /// Whether it has keys and a dictionary.
    pub fn is_dictionary(&self) -> bool {
        matches!(
            self.layout,
            Layout::Dictionary8
                | Layout::Dictionary16
                | Layout::Dictionary32
                | Layout::Dictionary64
        )
    }

    fn places(&self) -> impl Iterator<Item = &P> {
        [&self.values, &self.validity, &self.offsets, &self.bytes].into_iter().flatten()
    }
}

/// Columns of as many rows. Cloning shares them.
#[derive(Clone)]
pub struct Batch {
    columns: Vec<Column>,
    rows: u32,
}

impl Batch {
    /// A batch of columns that have so many rows each.
    pub fn new(columns: Vec<Column>, rows: u32) -> Self {
        Self { columns, rows }
    }

    /// Its columns.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// How many rows it has.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Some of its columns.
    #[must_use]
    pub fn project(&self, places: &[usize]) -> Self {
        let columns = places.iter().map(|&place| self.columns[place].clone()).collect();
        Self { columns, rows: self.rows }
    }

    /// Some of its rows, which are there.
    #[must_use]
    pub fn slice(&self, first: u32, rows: u32) -> Self {
        debug_assert!(first + rows <= self.rows);
        let columns = self.columns.iter();
        let columns = columns.map(|it| Column { first: it.first + first, ..it.clone() }).collect();
        Self { columns, rows }
    }
}

impl Split for Batch {
    fn indivisible(&self) -> Option<&'static str> {
        (self.rows < 2).then_some("it is one row")
    }

    fn split(self) -> [Self; 2] {
        let half = self.rows / 2;
        [self.slice(0, half), self.slice(half, self.rows - half)]
    }
}

/// Parts that are on the device, and stay there while this lives.
pub struct Held<'a> {
    parts: Vec<(&'a Arc<Part>, HeldPart<'a, DeviceMover>)>,
}

/// Brings the columns' parts to the device, if they aren't there.
pub fn hold<'a>(
    columns: impl IntoIterator<Item = &'a Column>,
    work: &Work<'_>,
) -> Result<Held<'a>, GpuError> {
    let mut held = Held { parts: Vec::new() };
    for slot in columns.into_iter().flat_map(Column::places) {
        // Each once: a part that is held twice by one thread could wait for itself.
        if held.parts.iter().any(|(part, _)| Arc::ptr_eq(part, &slot.part)) {
            continue;
        }
        let away = slot.part.tier() != Tier::Device;
        let part = slot.part.get(work.task(), work.stream())?;
        if away {
            work.count_unspilled(part.iter().map(DeviceBuffer::bytes).sum());
        }
        held.parts.push((&slot.part, part));
    }
    Ok(held)
}

impl Held<'_> {
    /// Bytes of all parts together.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().flat_map(|(_, part)| part.iter()).map(DeviceBuffer::bytes).sum()
    }

    /// Where a buffer is.
    pub fn region(&self, slot: &Slot) -> Region {
        let found = self.parts.iter().find(|(part, _)| Arc::ptr_eq(part, &slot.part));
        let (_, part) = found.expect("who looks at a column holds it");
        Region::from(&part[slot.buffer])
    }

    /// A column as kernels take it.
    pub fn kernel(&self, column: &Column) -> column::Column {
        column.kernel(|slot| self.region(slot))
    }

    /// A column's validity, and the bit of its first row.
    pub fn validity(&self, column: &Column) -> Option<(Region, u32)> {
        column.validity.as_ref().map(|slot| (self.region(slot), column.first))
    }

    /// The values of a column of fixed width, from its first row on.
    pub fn values(&self, column: &Column) -> Result<Region, GpuError> {
        let all = column.values.as_ref().map_or(Region::new(0, 0), |slot| self.region(slot));
        let skipped = u64::from(column.first) * column.layout.width().unwrap_or(0) as u64;
        Ok(all.part(skipped, all.bytes() - skipped)?)
    }
}
