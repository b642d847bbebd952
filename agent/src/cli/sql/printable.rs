//! Arrays in a form that every text format takes.

use std::fmt::Write;
use std::str::FromStr;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StringBuilder};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use arrow::error::ArrowError;
use arrow::util::display::{
    ArrayFormatter, ArrayFormatterFactory, DisplayIndex, FormatOptions, FormatResult,
};

/// A batch whose time zones are offsets where the zone's name means nothing here: the same
/// instants, written in UTC.
pub(super) fn with_known_zones(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    map_columns(batch, |column| cast(column, &known(column.data_type())))
}

/// A batch whose lists, structs, maps, dates and times are text, with that word for a NULL inside
/// of a list, struct or map.
///
/// # Errors
///
/// If a value has no text, as a date beyond the calendar.
pub(super) fn flat(batch: &RecordBatch, null: &str) -> Result<RecordBatch, ArrowError> {
    map_columns(batch, |column| {
        if !becomes_text(column.data_type()) {
            return Ok(Arc::clone(column));
        }
        let formatter = formatter(column, null)?;
        let nulls = column.logical_nulls();
        let mut texts = StringBuilder::new();
        for row in 0..column.len() {
            if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                texts.append_null();
            } else {
                texts.append_value(formatter.value(row).try_to_string()?);
            }
        }
        Ok(Arc::new(texts.finish()))
    })
}

fn becomes_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, value) => becomes_text(value),
        other => other.is_nested() || other.is_temporal(),
    }
}

/// What writes the values of an array as text, and fails at a value that has none. To be used with
/// `write` or `try_to_string`, which give the reason; `Display` does not.
pub(super) fn formatter<'a>(
    array: &'a dyn Array,
    null: &'a str,
) -> Result<ArrayFormatter<'a>, ArrowError> {
    let options = FormatOptions::default()
        .with_display_error(false)
        .with_null(null)
        .with_formatter_factory(Some(&Durations));
    match Durations.create_array_formatter(array, &options, None)? {
        Some(formatter) => Ok(formatter),
        None => ArrayFormatter::try_new(array, &options),
    }
}

/// Writes durations, and fails at those that Arrow would write as [`NO_DURATION`].
#[derive(Debug)]
struct Durations;

/// What Arrow writes for a duration of more than `i64::MAX` milliseconds.
const NO_DURATION: &str = "<invalid>";

impl ArrayFormatterFactory for Durations {
    fn create_array_formatter<'formatter>(
        &self,
        array: &'formatter dyn Array,
        options: &FormatOptions<'formatter>,
        _field: Option<&'formatter Field>,
    ) -> Result<Option<ArrayFormatter<'formatter>>, ArrowError> {
        if !is_duration(array.data_type()) {
            return Ok(None);
        }
        let durations = CheckedDurations(ArrayFormatter::try_new(array, options)?);
        Ok(Some(ArrayFormatter::new(Box::new(durations), options.safe())))
    }
}

fn is_duration(data_type: &DataType) -> bool {
    match data_type {
        DataType::Duration(_) => true,
        DataType::Dictionary(_, value) => is_duration(value),
        _ => false,
    }
}

struct CheckedDurations<'a>(ArrayFormatter<'a>);

impl DisplayIndex for CheckedDurations<'_> {
    fn write(&self, row: usize, to: &mut dyn Write) -> FormatResult {
        let text = self.0.value(row).try_to_string()?;
        if text == NO_DURATION {
            let reason = "a duration is longer than 9223372036854775807 milliseconds";
            return Err(ArrowError::CastError(reason.to_owned()).into());
        }
        Ok(to.write_str(&text)?)
    }
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
pub(super) mod tests {
    use arrow::array::{
        AsArray, Date32Array, DictionaryArray, DurationSecondArray, Int8Array, StructArray,
        TimestampSecondArray,
    };

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

    /// Arrays whose last value has no text, and one of each within another type.
    pub(in super::super) fn without_text() -> Vec<ArrayRef> {
        let date = Date32Array::from(vec![0, i32::MAX]);
        let time = TimestampSecondArray::from(vec![0, i64::MAX]);
        let duration = DurationSecondArray::from(vec![0, i64::MAX]);
        let arrays: [ArrayRef; 3] = [Arc::new(date), Arc::new(time), Arc::new(duration)];
        let nested = arrays.clone().map(|array| {
            let field = Arc::new(Field::new("x", array.data_type().clone(), true));
            Arc::new(StructArray::from(vec![(field, array)])) as ArrayRef
        });
        let encoded = arrays.clone().map(|array| {
            let keys = Int8Array::from(vec![0, 1]);
            Arc::new(DictionaryArray::new(keys, array)) as ArrayRef
        });
        [arrays, nested, encoded].concat()
    }

    #[test]
    fn what_has_no_text_is_an_error_and_no_text() {
        for array in without_text() {
            let batch = RecordBatch::try_from_iter([("x", array)]).unwrap();
            let text = flat(&batch.slice(0, 1), "null").unwrap();
            assert!(!text.column(0).as_string::<i32>().value(0).is_empty());
            let error = flat(&batch, "null").unwrap_err();
            assert!(matches!(error, ArrowError::CastError(_)), "{error}");
        }
    }

    #[test]
    fn nulls_stay_nulls() {
        let keys = Int8Array::from(vec![Some(0), Some(1), None]);
        let values = Arc::new(DurationSecondArray::from(vec![Some(1), None]));
        let column: ArrayRef = Arc::new(DictionaryArray::new(keys, values));
        let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
        let texts = flat(&batch, "null").unwrap();
        let texts: Vec<_> = texts.column(0).as_string::<i32>().iter().collect();
        assert_eq!(texts, [Some("PT1S"), None, None]);
    }

    #[test]
    fn a_known_zone_is_kept() {
        let times = TimestampSecondArray::from(vec![1_700_000_000]).with_timezone("+01:00");
        let batch = RecordBatch::try_from_iter([("t", Arc::new(times) as ArrayRef)]).unwrap();
        assert_eq!(with_known_zones(&batch).unwrap().column(0), batch.column(0));
    }
}
