//! The shape of results.
//!
//! DataFusion reads strings as views (`Utf8View`). Not every client knows that type, and a view
//! keeps, and would send, the whole buffers that it points into. Results carry plain strings.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;

/// Bytes of strings that go into one piece of a column; its offsets have 31 bits.
const PIECE_BYTES: u64 = 256 << 20;

/// The schema that a client is told, to which batches are brought.
#[derive(Clone, Debug)]
pub struct ResultSchema(SchemaRef);

impl ResultSchema {
    /// From the schema of a plan.
    pub fn new(plan: &Schema) -> Self {
        let fields: Fields = plan.fields().iter().map(plain_field).collect();
        Self(Arc::new(Schema::new_with_metadata(fields, plan.metadata().clone())))
    }

    /// The schema.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.0)
    }

    /// Brings a batch of the plan to this schema, in pieces whose strings fit plain columns.
    pub fn shape(&self, batch: &RecordBatch) -> Result<Vec<RecordBatch>, ArrowError> {
        let rows = batch.num_rows();
        if rows > 1 && batch.columns().iter().any(|column| view_bytes(column) > PIECE_BYTES) {
            let half = rows / 2;
            let mut pieces = self.shape(&batch.slice(0, half))?;
            pieces.extend(self.shape(&batch.slice(half, rows - half))?);
            return Ok(pieces);
        }
        Ok(vec![self.shape_piece(batch)?])
    }

    fn shape_piece(&self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let columns: Result<Vec<ArrayRef>, ArrowError> = batch
            .columns()
            .iter()
            .zip(self.0.fields())
            .map(|(column, field)| {
                if column.data_type() == field.data_type() {
                    Ok(Arc::clone(column))
                } else {
                    cast(column, field.data_type())
                }
            })
            .collect();
        // A batch may have rows and no columns, as in the count of an empty projection.
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(self.schema(), columns?, &options)
    }
}

/// Bytes of the strings of a column of views; 0 of any other.
fn view_bytes(column: &ArrayRef) -> u64 {
    // The first 32 bits of a view are its length (Arrow columnar format, "Variable-size Binary
    // View Layout").
    let length = |view: &u128| u64::from(*view as u32);
    match column.data_type() {
        DataType::Utf8View => column.as_string_view().views().iter().map(length).sum(),
        DataType::BinaryView => column.as_binary_view().views().iter().map(length).sum(),
        _ => 0,
    }
}

fn plain_field(field: &FieldRef) -> FieldRef {
    let plain = plain_type(field.data_type());
    if plain == *field.data_type() {
        return Arc::clone(field);
    }
    Arc::new(Field::clone(field).with_data_type(plain))
}

fn plain_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(item) => DataType::List(plain_field(item)),
        DataType::LargeList(item) => DataType::LargeList(plain_field(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(plain_field(item), *size),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(plain_field).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::StringViewArray;

    #[test]
    fn views_become_strings_and_the_rest_stays() {
        let plan = Schema::new(vec![
            Field::new("text", DataType::Utf8View, true),
            Field::new("number", DataType::Int64, false),
            Field::new_list("list", Field::new_list_field(DataType::Utf8View, true), true),
        ]);
        let schema = ResultSchema::new(&plan).schema();
        assert_eq!(schema.field(0).data_type(), &DataType::Utf8);
        assert_eq!(schema.field(1), plan.field(1));
        let DataType::List(item) = schema.field(2).data_type() else { panic!("a list") };
        assert_eq!(item.data_type(), &DataType::Utf8);
    }

    #[test]
    fn a_batch_is_brought_to_the_schema() {
        let plan = Arc::new(Schema::new(vec![Field::new("text", DataType::Utf8View, true)]));
        let column: StringViewArray =
            [Some("a"), None, Some("a longer text")].into_iter().collect();
        let batch = RecordBatch::try_new(Arc::clone(&plan), vec![Arc::new(column)]).unwrap();
        let shaped = ResultSchema::new(&plan).shape(&batch).unwrap();
        let texts: Vec<_> = shaped[0].column(0).as_string::<i32>().iter().collect();
        assert_eq!(texts, [Some("a"), None, Some("a longer text")]);
    }

    #[test]
    fn rows_without_columns_are_kept() {
        let plan = Arc::new(Schema::empty());
        let options = RecordBatchOptions::new().with_row_count(Some(3));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&plan), vec![], &options).unwrap();
        assert_eq!(ResultSchema::new(&plan).shape(&batch).unwrap()[0].num_rows(), 3);
    }

    #[test]
    fn more_strings_than_a_column_holds_come_in_pieces() {
        let plan = Arc::new(Schema::new(vec![Field::new("text", DataType::Utf8View, true)]));
        // One buffer of 1 MiB, seen by 3,000 rows: 3 GiB as plain strings.
        let text = "x".repeat(1 << 20);
        let mut column = datafusion::arrow::array::StringViewBuilder::new();
        let block = column.append_block(text.into_bytes().into());
        for _ in 0..3000 {
            column.try_append_view(block, 0, 1 << 20).unwrap();
        }
        let column = Arc::new(column.finish());
        assert_eq!(view_bytes(&(Arc::clone(&column) as ArrayRef)), 3000 << 20);
        let batch = RecordBatch::try_new(Arc::clone(&plan), vec![column]).unwrap();
        // All of it would need 3 GiB; a part shows that parts are made.
        let pieces = ResultSchema::new(&plan).shape(&batch.slice(0, 600)).unwrap();
        let rows: Vec<usize> = pieces.iter().map(RecordBatch::num_rows).collect();
        assert_eq!(rows, [150, 150, 150, 150]);
    }
}
