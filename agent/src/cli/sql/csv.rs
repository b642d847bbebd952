//! CSV (RFC 4180): a header, quotes where they are needed, nothing for NULL and for the empty text.
//! A row that would be an empty line (one column, with nothing) is `""`, so that it is seen.
//!
//! Lines end in `\n`, as those of other Unix programs do. Decimals and timestamps are written in
//! full, lists, structs and maps as text.

use arrow::array::RecordBatch;
use arrow::csv::WriterBuilder;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use super::format::Encoder;
use super::printable;

/// See the module.
#[derive(Debug)]
pub(super) struct Csv;

fn write(batch: &RecordBatch, header: bool) -> Result<Vec<u8>, ArrowError> {
    let batch = printable::flat(&printable::with_known_zones(batch)?, "null")?;
    let mut bytes = Vec::new();
    WriterBuilder::new().with_header(header).build(&mut bytes).write(&batch)?;
    Ok(bytes)
}

impl Encoder for Csv {
    fn begin(&mut self, schema: &SchemaRef) -> Result<Vec<u8>, ArrowError> {
        write(&RecordBatch::new_empty(schema.clone()), true)
    }

    fn batch(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
        write(batch, false)
    }

    fn end(&mut self) -> Result<Vec<u8>, ArrowError> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, StringArray};

    use super::super::format::tests::{encoded, sample};
    use super::*;

    #[test]
    fn a_header_then_rows_with_nothing_for_null() {
        let batch = sample();
        let text = String::from_utf8(encoded(Csv, &[batch.clone(), batch.slice(0, 0)])).unwrap();
        assert_eq!(
            text,
            "n,text,dec,real,time,list\n\
             1,\"a \"\"b\"\", c\",-12.345,0.1,2023-11-14T22:13:20.123456Z,\"[1, null]\"\n\
             ,,,NaN,,\n"
        );
    }

    #[test]
    fn nothing_alone_on_a_line_is_quoted() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("")]));
        let batch = RecordBatch::try_from_iter([("text", texts)]).unwrap();
        let text = String::from_utf8(encoded(Csv, &[batch])).unwrap();
        assert_eq!(text, "text\na\n\"\"\n\"\"\n");
    }

    #[test]
    fn a_result_without_rows_has_its_header() {
        let text = String::from_utf8(encoded(Csv, &[sample().slice(0, 0)])).unwrap();
        assert_eq!(text, "n,text,dec,real,time,list\n");
    }
}
