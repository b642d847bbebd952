//! Arrays in a form that every text format takes.

use std::str::FromStr;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, StringBuilder};
use arrow::datatypes::{
    DataType, Field, Schema, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};

/// A batch whose time zones are offsets where the zone's name means nothing here: the same
/// instants, written in UTC.
pub(super) fn with_known_zones(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    map_columns(batch, |column| Ok(with_known_zone(column)))
}

/// A batch whose lists, structs and maps are text.
pub(super) fn flat(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    map_columns(batch, |column| {
        if !column.data_type().is_nested() {
            return Ok(Arc::clone(column));
        }
        let options = FormatOptions::default().with_null("null");
        let formatter = ArrayFormatter::try_new(column, &options)?;
        let mut texts = StringBuilder::new();
        for row in 0..column.len() {
            if column.is_null(row) {
                texts.append_null();
            } else {
                texts.append_value(formatter.value(row).try_to_string()?);
            }
        }
        Ok(Arc::new(texts.finish()))
    })
}

fn with_known_zone(column: &ArrayRef) -> ArrayRef {
    let DataType::Timestamp(unit, Some(zone)) = column.data_type() else {
        return Arc::clone(column);
    };
    if Tz::from_str(zone).is_ok() {
        return Arc::clone(column);
    }
    let utc = "+00:00";
    match unit {
        TimeUnit::Second => {
            Arc::new(column.as_primitive::<TimestampSecondType>().clone().with_timezone(utc))
        }
        TimeUnit::Millisecond => {
            Arc::new(column.as_primitive::<TimestampMillisecondType>().clone().with_timezone(utc))
        }
        TimeUnit::Microsecond => {
            Arc::new(column.as_primitive::<TimestampMicrosecondType>().clone().with_timezone(utc))
        }
        TimeUnit::Nanosecond => {
            Arc::new(column.as_primitive::<TimestampNanosecondType>().clone().with_timezone(utc))
        }
    }
}

fn map_columns(
    batch: &RecordBatch,
    map: impl Fn(&ArrayRef) -> Result<ArrayRef, ArrowError>,
) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().map(map).collect::<Result<Vec<_>, _>>()?;
    let schema = batch.schema();
    let fields = schema.fields().iter().zip(&columns).map(|(field, column)| {
        Field::new(field.name(), column.data_type().clone(), field.is_nullable())
    });
    let schema = Schema::new(fields.collect::<Vec<_>>());
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema.into(), columns, &options)
}

#[cfg(test)]
mod tests {
    use arrow::array::TimestampSecondArray;

    use super::*;

    #[test]
    fn a_zone_without_a_meaning_is_written_as_utc() {
        let times = TimestampSecondArray::from(vec![1_700_000_000]).with_timezone("No/Where");
        let batch = RecordBatch::try_from_iter([("t", Arc::new(times) as ArrayRef)]).unwrap();
        let batch = with_known_zones(&batch).unwrap();
        let options = FormatOptions::default();
        let formatter = ArrayFormatter::try_new(batch.column(0), &options).unwrap();
        assert_eq!(formatter.value(0).to_string(), "2023-11-14T22:13:20Z");
    }

    #[test]
    fn a_known_zone_is_kept() {
        let times = TimestampSecondArray::from(vec![1_700_000_000]).with_timezone("+01:00");
        let batch = RecordBatch::try_from_iter([("t", Arc::new(times) as ArrayRef)]).unwrap();
        assert_eq!(with_known_zones(&batch).unwrap().column(0), batch.column(0));
    }
}
