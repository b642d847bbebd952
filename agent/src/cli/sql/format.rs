//! The formats of results.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use clap::ValueEnum;

use super::{arrow_stream, csv, json, plan, table};

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A table for people; a long one in pages of 10 000 rows
    Table,
    /// RFC 4180 with a header, lines that end in \n, and nothing for NULL
    Csv,
    /// One JSON object a row and line
    Json,
    /// An Arrow IPC stream
    Arrow,
    /// Plans as text: what `creel explain` prints
    #[value(skip)]
    Plan,
}

impl Format {
    /// Its name, as `--format` takes it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Csv => "csv",
            Self::Json => "json",
            Self::Arrow => "arrow",
            Self::Plan => "text",
        }
    }

    /// What writes one result so.
    pub(super) fn encoder(self) -> Box<dyn Encoder> {
        match self {
            Self::Table => Box::new(table::Table::default()),
            Self::Csv => Box::new(csv::Csv),
            Self::Json => Box::new(json::Json),
            Self::Arrow => Box::new(arrow_stream::ArrowStream::default()),
            Self::Plan => Box::new(plan::Plan::default()),
        }
    }
}

/// Turns one result into bytes: [`begin`](Encoder::begin), then a
/// [`batch`](Encoder::batch) at a time, then [`end`](Encoder::end). What each returns is to be
/// written at once.
pub(super) trait Encoder: Send {
    /// What stands before the rows.
    fn begin(&mut self, schema: &SchemaRef) -> Result<Vec<u8>, ArrowError>;

    /// The rows of a batch of that schema, or those that have gathered.
    fn batch(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError>;

    /// What stands after the rows.
    fn end(&mut self) -> Result<Vec<u8>, ArrowError>;
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use arrow::array::{
        ArrayRef, Decimal128Array, Float64Array, Int64Array, ListArray, RecordBatch, StringArray,
        TimestampMicrosecondArray,
    };
    use arrow::datatypes::Int64Type;

    use super::*;

    /// Two rows of what results are made of.
    pub(in super::super) fn sample() -> RecordBatch {
        let decimals = Decimal128Array::from(vec![Some(-12_345), None]);
        let columns: [(&str, ArrayRef); 6] = [
            ("n", Arc::new(Int64Array::from(vec![Some(1), None]))),
            ("text", Arc::new(StringArray::from(vec![Some("a \"b\", c"), Some("")]))),
            ("dec", Arc::new(decimals.with_precision_and_scale(20, 3).unwrap())),
            ("real", Arc::new(Float64Array::from(vec![0.1, f64::NAN]))),
            (
                "time",
                Arc::new(
                    TimestampMicrosecondArray::from(vec![Some(1_700_000_000_123_456), None])
                        .with_timezone("UTC"),
                ),
            ),
            (
                "list",
                Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([
                    Some(vec![Some(1), None]),
                    None,
                ])),
            ),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)))
            .unwrap()
    }

    /// All that an encoder writes for a result.
    pub(in super::super) fn encoded(mut encoder: impl Encoder, batches: &[RecordBatch]) -> Vec<u8> {
        let mut bytes = encoder.begin(&batches[0].schema()).unwrap();
        for batch in batches {
            bytes.extend(encoder.batch(batch).unwrap());
        }
        bytes.extend(encoder.end().unwrap());
        bytes
    }
}
