//! JSON: one object a row and line, every column in it, `null` for NULL. Decimals are numbers with
//! all their digits; what JSON has no type for is text. It has no NaN and no infinity: `null`.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{FieldRef, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::WriterBuilder;
use arrow::json::writer::{
    Encoder as ValueEncoder, EncoderFactory, EncoderOptions, LineDelimited, NullableEncoder,
};
use arrow::util::display::ArrayFormatter;

use super::format::Encoder;
use super::printable;

/// See the module.
#[derive(Debug)]
pub(super) struct Json;

impl Encoder for Json {
    fn begin(&mut self, _: &SchemaRef) -> Result<Vec<u8>, ArrowError> {
        Ok(Vec::new())
    }

    fn batch(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
        let batch = printable::with_known_zones(batch)?;
        let mut bytes = Vec::new();
        let failure = Failure::default();
        let builder = WriterBuilder::new()
            .with_explicit_nulls(true)
            .with_encoder_factory(Arc::new(Checked(Arc::clone(&failure))));
        let mut writer = builder.build::<_, LineDelimited>(&mut bytes);
        writer.write(&batch)?;
        writer.finish()?;
        drop(writer);
        match lock(&failure).take() {
            Some(error) => Err(error),
            None => Ok(bytes),
        }
    }

    fn end(&mut self) -> Result<Vec<u8>, ArrowError> {
        Ok(Vec::new())
    }
}

/// The first value that could not be written, for an encoder of values can't fail.
type Failure = Arc<Mutex<Option<ArrowError>>>;

fn lock(failure: &Failure) -> std::sync::MutexGuard<'_, Option<ArrowError>> {
    failure.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes decimals, dates and times, which Arrow's own encoders write as no JSON or as an error's
/// text where they can't.
#[derive(Debug)]
struct Checked(Failure);

impl EncoderFactory for Checked {
    fn make_default_encoder<'a>(
        &self,
        _field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let is_number = array.data_type().is_decimal();
        if !is_number && !array.data_type().is_temporal() {
            return Ok(None);
        }
        let encoder = Texts {
            formatter: printable::formatter(array, "null")?,
            is_number,
            text: String::new(),
            failure: Arc::clone(&self.0),
        };
        Ok(Some(NullableEncoder::new(Box::new(encoder), array.nulls().cloned())))
    }
}

/// Values by their texts, which hold nothing that JSON would escape.
struct Texts<'a> {
    formatter: ArrayFormatter<'a>,
    is_number: bool,
    text: String,
    failure: Failure,
}

impl ValueEncoder for Texts<'_> {
    fn encode(&mut self, row: usize, to: &mut Vec<u8>) {
        self.text.clear();
        match self.formatter.value(row).write(&mut self.text) {
            Ok(()) if self.is_number => number(&self.text, to),
            Ok(()) => quoted(&self.text, to),
            Err(error) => {
                lock(&self.failure).get_or_insert(error);
            }
        }
    }
}

/// Writes a decimal as a number of JSON (RFC 8259, section 6): one digit at least before the
/// point, and no zero before others.
fn number(text: &str, to: &mut Vec<u8>) {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return quoted(text, to);
    }
    if digits.len() < text.len() {
        to.push(b'-');
    }
    let digits = digits.trim_start_matches('0');
    if !digits.starts_with(|first: char| first.is_ascii_digit()) {
        to.push(b'0');
    }
    to.extend_from_slice(digits.as_bytes());
}

fn quoted(text: &str, to: &mut Vec<u8>) {
    to.push(b'"');
    to.extend_from_slice(text.as_bytes());
    to.push(b'"');
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Decimal128Array, Float64Array, StructArray};
    use arrow::datatypes::Field;

    use super::super::format::tests::{encoded, sample};
    use super::*;

    #[test]
    fn an_object_a_row_with_every_column() {
        let batch = sample();
        let text =
            String::from_utf8(encoded(Json, &[batch.slice(0, 1), batch.slice(1, 1)])).unwrap();
        let rows: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(
            rows,
            [
                serde_json::json!({
                    "n": 1, "text": "a \"b\", c", "dec": -12.345, "real": 0.1,
                    "time": "2023-11-14T22:13:20.123456Z", "list": [1, null],
                }),
                serde_json::json!({
                    "n": null, "text": "", "dec": null, "real": null, "time": null, "list": null,
                }),
            ]
        );
    }

    fn text(array: ArrayRef) -> String {
        let batch = RecordBatch::try_from_iter([("x", array)]).unwrap();
        String::from_utf8(encoded(Json, &[batch])).unwrap()
    }

    #[test]
    fn every_decimal_is_a_number_of_json() {
        for (scale, value, expected) in [
            (-2, 0, "0"),
            (-2, -5, "-500"),
            (0, 0, "0"),
            (0, -7, "-7"),
            (3, -5, "-0.005"),
            (3, 0, "0.000"),
            (3, 100_250, "100.250"),
        ] {
            let decimals = Decimal128Array::from(vec![value]);
            let array: ArrayRef = Arc::new(decimals.with_precision_and_scale(10, scale).unwrap());
            assert_eq!(text(Arc::clone(&array)), format!("{{\"x\":{expected}}}\n"));
            let field = Arc::new(Field::new("d", array.data_type().clone(), true));
            let nested = Arc::new(StructArray::from(vec![(field, array)]));
            assert_eq!(text(nested), format!("{{\"x\":{{\"d\":{expected}}}}}\n"));
        }
    }

    #[test]
    fn what_is_no_number_is_quoted() {
        for (written, expected) in
            [("007", "7"), ("-00", "-0"), (".5", "0.5"), ("1e5", "\"1e5\""), ("NaN", "\"NaN\"")]
        {
            let mut bytes = Vec::new();
            number(written, &mut bytes);
            assert_eq!(String::from_utf8(bytes).unwrap(), expected);
        }
    }

    #[test]
    fn json_has_no_nan_and_no_infinity() {
        let values = vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        let text = text(Arc::new(Float64Array::from(values)));
        assert_eq!(text, "{\"x\":null}\n".repeat(3));
    }

    #[test]
    fn what_has_no_text_is_an_error() {
        for array in printable::tests::without_text() {
            let batch = RecordBatch::try_from_iter([("x", array)]).unwrap();
            assert!(Json.batch(&batch.slice(0, 1)).is_ok());
            let error = Json.batch(&batch).unwrap_err();
            assert!(matches!(error, ArrowError::CastError(_)), "{error}");
        }
    }
}
