//! A batch in the making.

use std::sync::Arc;

use creel_gpu::device::Region;
use creel_gpu::kernels::column::{self, Layout, bitmap_bytes};
use creel_gpu::memory::ledger::DeviceBuffer;
use creel_gpu::memory::spill::Priority;
use creel_gpu::primitives::{gather, scan};
use datafusion::arrow::datatypes::DataType;

use super::{Batch, Column, Held, Slot};
use crate::gpu::{GpuError, Work};

/// The longest that the strings of a batch may be together: offsets have 31 bits.
const STRINGS: u64 = i32::MAX as u64;

/// Buffers that were taken, and columns of them or of parts that are there already. What is dropped
/// unfinished gives everything back.
#[derive(Default)]
pub struct Draft {
    buffers: Vec<DeviceBuffer>,
    columns: Vec<DraftColumn>,
}

/// A buffer of a draft.
#[derive(Clone, Copy)]
pub struct New(usize);

/// A buffer that is there already, or one of the draft.
#[derive(Clone)]
pub enum Place {
    /// Of a part.
    Shared(Slot),
    /// Of the draft.
    New(New),
}

/// A column of a draft.
pub type DraftColumn = Column<Place>;

impl DraftColumn {
    /// A column of values of fixed width, or bits.
    pub fn fixed(data_type: DataType, layout: Layout, values: New, validity: Option<New>) -> Self {
        Self {
            values: Some(Place::New(values)),
            validity: validity.map(Place::New),
            ..Self::new(data_type, layout)
        }
    }

    /// A column of strings.
    pub fn strings(data_type: DataType, strings: Strings, validity: Option<New>) -> Self {
        Self {
            offsets: Some(Place::New(strings.offsets)),
            bytes: Some(Place::New(strings.bytes)),
            validity: validity.map(Place::New),
            ..Self::new(data_type, Layout::String)
        }
    }

    /// A column that is there already.
    pub fn shared(column: &Column) -> Self {
        column.clone().map(Place::Shared)
    }
}

/// Strings of a draft.
#[derive(Clone, Copy)]
pub struct Strings {
    /// One offset more than there are rows.
    pub offsets: New,
    /// The strings, one after the other.
    pub bytes: New,
}

impl Draft {
    /// Takes a buffer.
    #[track_caller]
    pub fn buffer(
        &mut self,
        work: &Work<'_>,
        bytes: u64,
        purpose: &'static str,
    ) -> Result<New, GpuError> {
        self.buffers.push(work.allocate(bytes, purpose)?);
        Ok(New(self.buffers.len() - 1))
    }

    /// Takes a buffer for a bitmap of so many rows.
    #[track_caller]
    pub fn bitmap(
        &mut self,
        work: &Work<'_>,
        rows: u32,
        purpose: &'static str,
    ) -> Result<New, GpuError> {
        self.buffer(work, bitmap_bytes(rows as usize) as u64, purpose)
    }

    /// Adds a buffer that was taken before.
    pub fn adopt(&mut self, buffer: DeviceBuffer) -> New {
        self.buffers.push(buffer);
        New(self.buffers.len() - 1)
    }

    /// Where a buffer is.
    pub fn region(&self, buffer: New) -> Region {
        Region::from(&self.buffers[buffer.0])
    }

    /// Adds a column.
    pub fn push(&mut self, column: DraftColumn) {
        self.columns.push(column);
    }

    /// Its columns so far.
    pub fn columns(&self) -> &[DraftColumn] {
        &self.columns
    }

    /// A column as kernels take it; parts that it shares are held.
    pub fn kernel(&self, column: &DraftColumn, held: &Held<'_>) -> column::Column {
        column.kernel(|place| match place {
            Place::Shared(slot) => held.region(slot),
            Place::New(new) => self.region(*new),
        })
    }

    /// Strings that lie anywhere (16 bytes for each row: address and length), one after the other.
    pub fn strings(
        &mut self,
        work: &Work<'_>,
        texts: Region,
        rows: u32,
        purpose: &'static str,
    ) -> Result<Strings, GpuError> {
        let (stream, count) = (work.stream(), u64::from(rows));
        let lengths = work.allocate(count * 4, "lengths of strings")?;
        let workspace = work.allocate(scan::workspace_bytes(count), "sums of lengths")?;
        let (lengths, workspace) = (Region::from(&lengths), Region::from(&workspace));
        gather::text_lengths(stream, texts, rows, lengths)?;
        let total = scan::sum(stream, lengths, count, workspace)?;
        if total > STRINGS {
            return Err(GpuError::Strings(total));
        }
        let offsets = self.buffer(work, (count + 1) * 4, purpose)?;
        let bytes = self.buffer(work, total, purpose)?;
        scan::offsets(stream, lengths, count, workspace, self.region(offsets))?;
        gather::text_bytes(stream, texts, rows, self.region(offsets), self.region(bytes))?;
        Ok(Strings { offsets, bytes })
    }

    /// The batch, at rest.
    pub fn finish(self, work: &Work<'_>, rows: u32) -> Batch {
        let query = work.task().query();
        let part = work.gpu().spill().insert(query, self.buffers, Priority::of(query));
        let part = Arc::new(part);
        let columns = self.columns.into_iter().map(|column| {
            column.map(|place| match place {
                Place::Shared(slot) => slot,
                Place::New(New(buffer)) => Slot { part: Arc::clone(&part), buffer },
            })
        });
        Batch::new(columns.collect(), rows)
    }
}
