//! JSON: one object a row and line, every column in it, `null` for NULL. Decimals are numbers with
//! all their digits; what JSON has no type for is text.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::json::WriterBuilder;
use arrow::json::writer::LineDelimited;

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
        let builder = WriterBuilder::new().with_explicit_nulls(true);
        let mut writer = builder.build::<_, LineDelimited>(&mut bytes);
        writer.write(&batch)?;
        writer.finish()?;
        Ok(bytes)
    }

    fn end(&mut self) -> Result<Vec<u8>, ArrowError> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
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
}
