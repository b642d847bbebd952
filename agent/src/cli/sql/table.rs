//! A table for people. A long result is written in pages, each with its own header and widths,
//! so that any number of rows needs the memory of one page.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::util::display::FormatOptions;
use arrow::util::pretty::pretty_format_batches_with_options;

use super::format::Encoder;
use super::printable;
use crate::cli::human::count;

/// What stands for NULL.
const NULL: &str = "NULL";

/// Rows of a page.
const PAGE: usize = 10_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The rows of the page that is being filled.
    page: Vec<RecordBatch>,
    /// How many that are.
    in_page: usize,
    rows: u64,
    schema: Option<SchemaRef>,
}

impl Table {
    fn flush(&mut self) -> Result<Vec<u8>, ArrowError> {
        self.in_page = 0;
        let options = FormatOptions::default().with_null(NULL);
        let page = std::mem::take(&mut self.page);
        Ok(format!("{}\n", pretty_format_batches_with_options(&page, &options)?).into_bytes())
    }
}

impl Encoder for Table {
    fn begin(&mut self, schema: &SchemaRef) -> Result<Vec<u8>, ArrowError> {
        self.schema = Some(schema.clone());
        Ok(Vec::new())
    }

    fn batch(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
        let mut rest = printable::flat(&printable::with_known_zones(batch)?, NULL)?;
        let mut bytes = Vec::new();
        self.rows += rest.num_rows() as u64;
        while rest.num_rows() > 0 {
            let taken = rest.num_rows().min(PAGE - self.in_page);
            self.page.push(rest.slice(0, taken));
            self.in_page += taken;
            rest = rest.slice(taken, rest.num_rows() - taken);
            if self.in_page == PAGE {
                bytes.extend(self.flush()?);
            }
        }
        Ok(bytes)
    }

    fn end(&mut self) -> Result<Vec<u8>, ArrowError> {
        let mut bytes = Vec::new();
        if self.rows == 0
            && let Some(schema) = self.schema.take()
        {
            self.page.push(printable::with_known_zones(&RecordBatch::new_empty(schema))?);
        }
        if !self.page.is_empty() {
            bytes = self.flush()?;
        }
        let rows = if self.rows == 1 { "row" } else { "rows" };
        bytes.extend(format!("{} {rows}\n", count(self.rows)).into_bytes());
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array};

    use super::super::format::tests::{encoded, sample};
    use super::*;

    fn text(batches: &[RecordBatch]) -> String {
        String::from_utf8(encoded(Table::default(), batches)).unwrap()
    }

    #[test]
    fn rows_in_a_frame_and_their_number() {
        assert_eq!(
            text(&[sample().project(&[0, 2]).unwrap()]),
            "+------+---------+\n\
             | n    | dec     |\n\
             +------+---------+\n\
             | 1    | -12.345 |\n\
             | NULL | NULL    |\n\
             +------+---------+\n\
             2 rows\n"
        );
    }

    #[test]
    fn what_has_no_text_is_an_error() {
        for array in printable::tests::without_text() {
            let batch = RecordBatch::try_from_iter([("x", array)]).unwrap();
            let mut table = Table::default();
            table.begin(&batch.schema()).unwrap();
            assert!(table.batch(&batch).is_err());
        }
    }

    #[test]
    fn no_rows_have_their_header() {
        let text = text(&[sample().slice(0, 0).project(&[0]).unwrap()]);
        assert_eq!(text, "+---+\n| n |\n+---+\n+---+\n0 rows\n");
    }

    #[test]
    fn a_long_result_comes_in_pages() {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..25_000));
        let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
        let text = text(&[batch.slice(0, 7000), batch.slice(7000, 18_000)]);
        assert_eq!(text.matches("| n ").count(), 3);
        assert_eq!(text.lines().filter(|line| line.contains(char::is_numeric)).count(), 25_001);
        assert!(text.ends_with("25 000 rows\n"));
    }
}
