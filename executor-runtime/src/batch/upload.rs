//! From Arrow's arrays to the device.
//!
//! The arrays of several batches become one column. They may be slices of larger ones: what is before
//! or after is not copied. Offsets of strings begin with 0 on the device, and bitmaps with the first
//! row's bit.

use std::borrow::Cow;

use creel_gpu::kernels::column::{Layout, bitmap_bytes};
use datafusion::arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BooleanBufferBuilder, GenericStringArray, OffsetSizeTrait,
    RecordBatch,
};
use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Schema};

use super::Batch;
use super::draft::{Draft, DraftColumn, New, Place};
use crate::gpu::{GpuError, Work};

const PURPOSE: &str = "uploaded columns";

/// How values of a type lie in memory; `None` if the device doesn't take the type.
pub fn layout(data_type: &DataType) -> Option<Layout> {
    Some(match data_type {
        DataType::Boolean => Layout::Bool,
        DataType::Int8 => Layout::I8,
        DataType::Int16 => Layout::I16,
        DataType::Int32 | DataType::Date32 => Layout::I32,
        // Averages count in UInt64.
        DataType::Int64 | DataType::UInt64 | DataType::Timestamp(..) | DataType::Decimal64(..) => {
            Layout::I64
        }
        DataType::Float32 => Layout::F32,
        DataType::Float64 => Layout::F64,
        DataType::Decimal128(..) => Layout::I128,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Layout::String,
        DataType::Dictionary(keys, values) if layout(values) == Some(Layout::String) => {
            match **keys {
                DataType::Int8 | DataType::UInt8 => Layout::Dictionary8,
                DataType::Int16 | DataType::UInt16 => Layout::Dictionary16,
                DataType::Int32 | DataType::UInt32 => Layout::Dictionary32,
                DataType::Int64 | DataType::UInt64 => Layout::Dictionary64,
                _ => return None,
            }
        }
        _ => return None,
    })
}

/// The most that a batch's columns take on the device, and its longest column of strings, in bytes.
pub fn bytes(batch: &RecordBatch) -> (u64, u64) {
    let (mut all, mut longest) = (0, 0);
    for column in batch.columns() {
        let rows = column.len();
        let bitmap = bitmap_bytes(rows) as u64;
        all += bitmap
            + match layout(column.data_type()) {
                Some(Layout::Bool) => bitmap,
                Some(Layout::String) => {
                    let bytes = text_bytes(column);
                    longest = longest.max(bytes);
                    bytes + 4 * (rows as u64 + 1)
                }
                Some(layout) => layout.width().unwrap_or(0) as u64 * rows as u64,
                None => 0,
            };
    }
    (all, longest)
}

fn text_bytes(column: &ArrayRef) -> u64 {
    fn spanned<O: OffsetSizeTrait>(strings: &GenericStringArray<O>) -> u64 {
        let offsets = strings.offsets();
        (offsets[strings.len()].as_usize() - offsets[0].as_usize()) as u64
    }
    match column.data_type() {
        DataType::Utf8 => spanned(column.as_string::<i32>()),
        DataType::LargeUtf8 => spanned(column.as_string::<i64>()),
        _ => column.as_string_view().lengths().map(u64::from).sum(),
    }
}

/// One batch of the rows of all. They have the schema, whose types the device takes.
pub fn upload(
    work: &Work<'_>,
    schema: &Schema,
    batches: &[RecordBatch],
) -> Result<Batch, GpuError> {
    let rows: u64 = batches.iter().map(|batch| batch.num_rows() as u64).sum();
    let rows = u32::try_from(rows).map_err(|_| GpuError::Rows(rows))?;
    let mut draft = Draft::default();
    for (place, field) in schema.fields().iter().enumerate() {
        let pieces: Vec<ArrayRef> =
            batches.iter().map(|batch| ArrayRef::clone(batch.column(place))).collect();
        let column = column(work, field.data_type(), &pieces, rows, &mut draft)?;
        draft.push(column);
    }
    Ok(draft.finish(work, rows))
}

fn column(
    work: &Work<'_>,
    data_type: &DataType,
    pieces: &[ArrayRef],
    rows: u32,
    draft: &mut Draft,
) -> Result<DraftColumn, GpuError> {
    let Some(layout) = layout(data_type) else {
        let reason = format!("the planner sends {data_type} to the GPU, which doesn't take it");
        return Err(datafusion::error::DataFusionError::Internal(reason).into());
    };
    let nulls: Vec<_> = pieces.iter().map(Array::logical_nulls).collect();
    let validity = if nulls.iter().flatten().any(|nulls| nulls.null_count() > 0) {
        let bits = pieces.iter().zip(&nulls).map(|(piece, nulls)| match nulls {
            Some(nulls) => Bits::Of(nulls.inner()),
            None => Bits::Set(piece.len()),
        });
        Some(bitmap(work, rows, bits, draft)?)
    } else {
        None
    };
    let data_type = data_type.clone();
    match layout {
        Layout::Bool => {
            let bits = pieces.iter().map(|piece| Bits::Of(piece.as_boolean().values()));
            let values = bitmap(work, rows, bits, draft)?;
            Ok(DraftColumn::fixed(data_type, layout, values, validity))
        }
        Layout::String => strings(work, data_type, pieces, rows, validity, draft),
        _ if matches!(data_type, DataType::Dictionary(..)) => {
            dictionary(work, data_type, layout, pieces, rows, validity, draft)
        }
        _ => {
            let data: Vec<_> = pieces.iter().map(Array::to_data).collect();
            let values = fixed(work, layout, &data, rows, draft)?;
            Ok(DraftColumn::fixed(data_type, layout, values, validity))
        }
    }
}

/// Bits of a bitmap.
enum Bits<'a> {
    Of(&'a BooleanBuffer),
    /// So many that are set.
    Set(usize),
}

fn bitmap<'a>(
    work: &Work<'_>,
    rows: u32,
    pieces: impl Iterator<Item = Bits<'a>>,
    draft: &mut Draft,
) -> Result<New, GpuError> {
    let mut bits = BooleanBufferBuilder::new(rows as usize);
    for piece in pieces {
        match piece {
            Bits::Of(buffer) => bits.append_buffer(buffer),
            Bits::Set(count) => bits.append_n(count, true),
        }
    }
    let bitmap = draft.bitmap(work, rows, PURPOSE)?;
    // Kernels read whole words: what is after the last row is there, and says nothing.
    let mut bytes = bits.finish().into_inner().to_vec();
    bytes.resize(bitmap_bytes(rows as usize), 0);
    work.upload([bytes.as_slice()], draft.region(bitmap))?;
    Ok(bitmap)
}

/// Values of fixed width, one array after the other.
fn fixed(
    work: &Work<'_>,
    layout: Layout,
    pieces: &[ArrayData],
    rows: u32,
    draft: &mut Draft,
) -> Result<New, GpuError> {
    let width = layout.width().expect("values of fixed width");
    let values = draft.buffer(work, u64::from(rows) * width as u64, PURPOSE)?;
    let bytes = pieces.iter().map(|piece| {
        let bytes = &piece.buffers()[0][piece.offset() * width..];
        &bytes[..piece.len() * width]
    });
    work.upload(bytes, draft.region(values))?;
    Ok(values)
}

fn strings(
    work: &Work<'_>,
    data_type: DataType,
    pieces: &[ArrayRef],
    rows: u32,
    validity: Option<New>,
    draft: &mut Draft,
) -> Result<DraftColumn, GpuError> {
    let total: u64 = pieces.iter().map(text_bytes).sum();
    if total > i32::MAX as u64 {
        return Err(GpuError::Strings(total));
    }
    let mut offsets: Vec<i32> = Vec::with_capacity(rows as usize + 1);
    offsets.push(0);
    let mut texts = Vec::with_capacity(pieces.len());
    for piece in pieces {
        texts.push(match piece.data_type() {
            DataType::Utf8 => Cow::Borrowed(plain(piece.as_string::<i32>(), &mut offsets)),
            DataType::LargeUtf8 => Cow::Borrowed(plain(piece.as_string::<i64>(), &mut offsets)),
            _ => {
                let base = offsets[offsets.len() - 1].cast_unsigned();
                let mut text = Vec::with_capacity(text_bytes(piece) as usize);
                for string in piece.as_string_view() {
                    text.extend_from_slice(string.unwrap_or_default().as_bytes());
                    offsets.push((base + text.len() as u32).cast_signed());
                }
                Cow::Owned(text)
            }
        });
    }
    let bytes = draft.buffer(work, total, PURPOSE)?;
    work.upload(texts.iter().map(Cow::as_ref), draft.region(bytes))?;
    let place = draft.buffer(work, offsets.len() as u64 * 4, PURPOSE)?;
    let little: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
    work.upload([little.as_slice()], draft.region(place))?;
    Ok(DraftColumn {
        validity: validity.map(Place::New),
        offsets: Some(Place::New(place)),
        bytes: Some(Place::New(bytes)),
        ..DraftColumn::new(data_type, Layout::String)
    })
}

/// The bytes of an array's strings, which lie one after the other already; adds their ends.
fn plain<'a, O: OffsetSizeTrait>(
    strings: &'a GenericStringArray<O>,
    offsets: &mut Vec<i32>,
) -> &'a [u8] {
    let theirs = strings.offsets();
    let (begin, end) = (theirs[0].as_usize(), theirs[strings.len()].as_usize());
    let base = offsets[offsets.len() - 1].cast_unsigned();
    let ours = theirs[1..].iter().map(|offset| base + (offset.as_usize() - begin) as u32);
    let ours = ours.map(u32::cast_signed);
    offsets.extend(ours);
    &strings.value_data()[begin..end]
}

fn dictionary(
    work: &Work<'_>,
    data_type: DataType,
    layout: Layout,
    pieces: &[ArrayRef],
    rows: u32,
    validity: Option<New>,
    draft: &mut Draft,
) -> Result<DraftColumn, GpuError> {
    let Some(first) = pieces.first() else {
        return strings(work, data_type, &[], rows, validity, draft);
    };
    let values = first.as_any_dictionary().values();
    let same =
        |piece: &ArrayRef| piece.as_any_dictionary().values().to_data().ptr_eq(&values.to_data());
    if !pieces.iter().all(same) {
        // Each has its own dictionary: their strings themselves are sent.
        let plain: Vec<_> =
            pieces.iter().map(|piece| cast(piece, &DataType::Utf8)).collect::<Result<_, _>>()?;
        return strings(work, data_type, &plain, rows, validity, draft);
    }
    let keys: Vec<_> =
        pieces.iter().map(|piece| piece.as_any_dictionary().keys().to_data()).collect();
    let keys = fixed(work, layout, &keys, rows, draft)?;
    let count = values.len() as u32;
    let values = strings(work, DataType::Utf8, &[ArrayRef::clone(values)], count, None, draft)?;
    Ok(DraftColumn {
        values: Some(Place::New(keys)),
        validity: validity.map(Place::New),
        offsets: values.offsets,
        bytes: values.bytes,
        dictionary_values: count,
        ..DraftColumn::new(data_type, layout)
    })
}
