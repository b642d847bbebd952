//! From the device to Arrow's arrays.

use std::sync::Arc;

use creel_gpu::device::Region;
use creel_gpu::kernels::column::Layout;
use datafusion::arrow::array::{
    Array, ArrayData, ArrayRef, BooleanArray, MutableArrayData, RecordBatch, RecordBatchOptions,
    make_array,
};
use datafusion::arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, SchemaRef};

use super::{Batch, Column, Held, hold};
use crate::gpu::{GpuError, Work};

/// A batch that has been brought to the host, column by column.
pub struct Downloaded {
    schema: SchemaRef,
    columns: Vec<ArrayData>,
    rows: usize,
    /// Bytes that were copied.
    pub bytes: u64,
}

/// Copies a batch to the host.
pub fn download(
    work: &Work<'_>,
    batch: &Batch,
    schema: &SchemaRef,
) -> Result<Downloaded, GpuError> {
    let held = hold(batch.columns(), work)?;
    let mut copies = Copies { work, held: &held, bytes: 0 };
    let rows = batch.rows() as usize;
    let columns =
        batch.columns().iter().map(|it| copies.column(it, rows)).collect::<Result<_, _>>()?;
    Ok(Downloaded { schema: Arc::clone(schema), columns, rows, bytes: copies.bytes })
}

impl Downloaded {
    /// Batches of so many rows, which share no memory: each counts for what it is.
    pub fn batches(&self, rows: usize) -> impl Iterator<Item = Result<RecordBatch, GpuError>> {
        let starts = (0..self.rows).step_by(rows.max(1));
        starts.map(move |first| self.batch(first, rows.min(self.rows - first)))
    }

    fn batch(&self, first: usize, rows: usize) -> Result<RecordBatch, GpuError> {
        let columns = self.columns.iter().zip(self.schema.fields()).map(|(data, field)| {
            let part = if rows == self.rows {
                data.clone()
            } else {
                let mut part = MutableArrayData::new(vec![data], false, rows);
                part.try_extend(0, first, first + rows)?;
                part.freeze()
            };
            let array = make_array(part);
            if array.data_type() == field.data_type() {
                return Ok(array);
            }
            // Strings in the form in which the schema has them.
            cast(&array, field.data_type())
        });
        let columns = columns.collect::<Result<Vec<ArrayRef>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }
}

struct Copies<'a, 'w> {
    work: &'a Work<'w>,
    held: &'a Held<'a>,
    bytes: u64,
}

impl Copies<'_, '_> {
    /// The column as an array: strings as Utf8, dictionaries with Utf8 values.
    fn column(&mut self, column: &Column, rows: usize) -> Result<ArrayData, GpuError> {
        let nulls = match self.held.validity(column) {
            Some(bitmap) => Some(NullBuffer::new(self.bits(bitmap, rows)?)),
            None => None,
        };
        if column.layout == Layout::String {
            return self.strings(column, column.first, rows, nulls);
        }
        if column.layout == Layout::Bool {
            let slot = column.values.as_ref().expect("Booleans have bits");
            let bits = self.bits((self.held.region(slot), column.first), rows)?;
            return Ok(BooleanArray::new(bits, nulls).into_data());
        }
        let width = column.layout.width().expect("values of fixed width");
        let values = self.held.values(column)?.part(0, (rows * width) as u64)?;
        let values = self.copy(values)?;
        if column.is_dictionary() {
            let strings = Column { data_type: DataType::Utf8, ..column.clone() };
            let dictionary = self.strings(&strings, 0, column.dictionary_values as usize, None)?;
            let DataType::Dictionary(keys, _) = &column.data_type else {
                unreachable!("a column with a dictionary is of a dictionary's type");
            };
            let data_type = DataType::Dictionary(keys.clone(), Box::new(DataType::Utf8));
            let data = ArrayData::builder(data_type).len(rows).add_buffer(values);
            return Ok(data.nulls(nulls).add_child_data(dictionary).build()?);
        }
        let data = ArrayData::builder(column.data_type.clone()).len(rows).add_buffer(values);
        Ok(data.nulls(nulls).build()?)
    }

    fn strings(
        &mut self,
        column: &Column,
        first: u32,
        rows: usize,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayData, GpuError> {
        let slot = column.offsets.as_ref().expect("strings have offsets");
        let offsets = self.held.region(slot);
        let offsets = offsets.part(u64::from(first) * 4, (rows as u64 + 1) * 4)?;
        let offsets = self.copy(offsets)?;
        let offsets = offsets.typed_data::<i32>();
        let (begin, end) = (offsets[0], offsets[rows]);
        let slot = column.bytes.as_ref().expect("strings have bytes");
        let bytes = self.held.region(slot);
        let bytes = bytes.part(u64::from(begin.cast_unsigned()), (end - begin) as u64)?;
        let bytes = self.copy(bytes)?;
        let offsets: Buffer = offsets.iter().map(|offset| offset - begin).collect();
        let data = ArrayData::builder(DataType::Utf8).len(rows).add_buffer(offsets);
        Ok(data.add_buffer(bytes).nulls(nulls).build()?)
    }

    fn bits(
        &mut self,
        (bitmap, first): (Region, u32),
        rows: usize,
    ) -> Result<BooleanBuffer, GpuError> {
        let (byte, bit) = (u64::from(first / 8), (first % 8) as usize);
        let buffer = self.copy(bitmap.part(byte, (bit + rows).div_ceil(8) as u64)?)?;
        Ok(BooleanBuffer::new(buffer, bit, rows))
    }

    fn copy(&mut self, from: Region) -> Result<Buffer, GpuError> {
        let mut to = MutableBuffer::from_len_zeroed(from.bytes() as usize);
        self.work.download(from, to.as_slice_mut())?;
        self.bytes += from.bytes();
        Ok(to.into())
    }
}
