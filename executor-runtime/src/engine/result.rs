//! The shape of results.
//!
//! DataFusion reads strings as views (`Utf8View`). Not every client knows that type, and a view
//! keeps, and would send, the whole buffers that it points into. Results carry plain strings.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;

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

    /// Brings a batch of the plan to this schema.
    pub fn shape(&self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
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
    use datafusion::arrow::array::{AsArray, StringViewArray};

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
        let texts: Vec<_> = shaped.column(0).as_string::<i32>().iter().collect();
        assert_eq!(texts, [Some("a"), None, Some("a longer text")]);
    }

    #[test]
    fn rows_without_columns_are_kept() {
        let plan = Arc::new(Schema::empty());
        let options = RecordBatchOptions::new().with_row_count(Some(3));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&plan), vec![], &options).unwrap();
        assert_eq!(ResultSchema::new(&plan).shape(&batch).unwrap().num_rows(), 3);
    }
}
