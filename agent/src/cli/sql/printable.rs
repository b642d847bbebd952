//! Arrays in a form that every text format takes.

use std::str::FromStr;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StringBuilder};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};

/// A batch whose time zones are offsets where the zone's name means nothing here: the same
/// instants, written in UTC.
pub(super) fn with_known_zones(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    map_columns(batch, |column| cast(column, &known(column.data_type())))
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

/// A type with UTC in place of the zones that mean nothing here. Which do, depends on whether the
/// time zone database is part of this build.
fn known(data_type: &DataType) -> DataType {
    let field = |field: &FieldRef| {
        Arc::new(field.as_ref().clone().with_data_type(known(field.data_type())))
    };
    match data_type {
        DataType::Timestamp(unit, Some(zone)) if Tz::from_str(zone).is_err() => {
            DataType::Timestamp(*unit, Some("+00:00".into()))
        }
        DataType::List(item) => DataType::List(field(item)),
        DataType::LargeList(item) => DataType::LargeList(field(item)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(field).collect()),
        other => other.clone(),
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
    use arrow::array::{StructArray, TimestampSecondArray};

    use super::*;

    #[test]
    fn a_zone_without_a_meaning_is_written_as_utc() {
        let times: ArrayRef =
            Arc::new(TimestampSecondArray::from(vec![1_700_000_000]).with_timezone("No/Where"));
        let inner = Arc::new(Field::new("t", times.data_type().clone(), true));
        let nested: ArrayRef = Arc::new(StructArray::from(vec![(inner, Arc::clone(&times))]));
        let batch = RecordBatch::try_from_iter([("t", times), ("s", nested)]).unwrap();
        let batch = with_known_zones(&batch).unwrap();
        let options = FormatOptions::default();
        for (column, text) in [(0, "2023-11-14T22:13:20Z"), (1, "{t: 2023-11-14T22:13:20Z}")] {
            let formatter = ArrayFormatter::try_new(batch.column(column), &options).unwrap();
            assert_eq!(formatter.value(0).to_string(), text);
        }
    }

    #[test]
    fn a_known_zone_is_kept() {
        let times = TimestampSecondArray::from(vec![1_700_000_000]).with_timezone("+01:00");
        let batch = RecordBatch::try_from_iter([("t", Arc::new(times) as ArrayRef)]).unwrap();
        assert_eq!(with_known_zones(&batch).unwrap().column(0), batch.column(0));
    }
}
