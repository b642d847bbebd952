//! Plans as text: the answer to `EXPLAIN`, a heading for each kind of plan and the plan below it.

use std::fmt::Write;

use arrow::array::AsArray;
use arrow::array::RecordBatch;
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;

use super::format::Encoder;
use super::table::Table;

/// See the module. What is no answer to `EXPLAIN` is written as a table.
#[derive(Debug, Default)]
pub(super) struct Plan {
    table: Option<Table>,
}

impl Encoder for Plan {
    fn begin(&mut self, schema: &SchemaRef) -> Result<Vec<u8>, ArrowError> {
        let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        if names == ["plan_type", "plan"] {
            return Ok(Vec::new());
        }
        self.table.insert(Table::default()).begin(schema)
    }

    fn batch(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
        if let Some(table) = &mut self.table {
            return table.batch(batch);
        }
        let kinds = cast(batch.column(0), &DataType::Utf8)?;
        let plans = cast(batch.column(1), &DataType::Utf8)?;
        let mut text = String::new();
        for (kind, plan) in kinds.as_string::<i32>().iter().zip(plans.as_string::<i32>()) {
            let (kind, plan) = (kind.unwrap_or_default(), plan.unwrap_or_default());
            writeln!(text, "{kind}:").expect("a String takes all");
            for line in plan.lines() {
                writeln!(text, "  {line}").expect("a String takes all");
            }
        }
        Ok(text.into_bytes())
    }

    fn end(&mut self) -> Result<Vec<u8>, ArrowError> {
        self.table.as_mut().map_or(Ok(Vec::new()), Encoder::end)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, StringArray};

    use super::super::format::tests::{encoded, sample};
    use super::*;

    #[test]
    fn a_plan_is_text_below_its_kind() {
        let kinds: ArrayRef = Arc::new(StringArray::from(vec!["logical_plan", "physical_plan"]));
        let plans: ArrayRef = Arc::new(StringArray::from(vec!["Filter\n  Scan", "ScanExec\n"]));
        let batch = RecordBatch::try_from_iter([("plan_type", kinds), ("plan", plans)]).unwrap();
        let text = String::from_utf8(encoded(Plan::default(), &[batch])).unwrap();
        assert_eq!(text, "logical_plan:\n  Filter\n    Scan\nphysical_plan:\n  ScanExec\n");
    }

    #[test]
    fn anything_else_is_a_table() {
        let text = String::from_utf8(encoded(Plan::default(), &[sample()])).unwrap();
        assert!(text.contains("| n ") && text.ends_with("2 rows\n"), "{text}");
    }
}
