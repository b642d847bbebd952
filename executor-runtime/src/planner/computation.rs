//! From what an operator wants to the programs that compute it.

use std::sync::Arc;

use creel_gpu::program::{Expression, Scalar, compile};
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::PhysicalExpr;

use super::data_type::{of_result, of_state};
use super::expression::Translator;
use super::reason::{Reason, Why, begin};
use crate::operators::computation::{Computation, Output, Pass};

/// A column that an operator wants, of its input's columns.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What it holds.
    pub value: Value,
    /// Its type.
    pub data_type: DataType,
}

/// What a column holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// What a column of the input holds.
    Input(usize),
    /// What an expression gives.
    Expression(Arc<dyn PhysicalExpr>),
    /// The same where a filter is true, else null. Without an expression, true.
    Where {
        /// The filter.
        filter: Arc<dyn PhysicalExpr>,
        /// What is filtered.
        value: Option<Arc<dyn PhysicalExpr>>,
    },
    /// The average, by columns with a sum and a count; null where the count is 0.
    Average {
        /// The column with the sum.
        sum: usize,
        /// The column with the count.
        count: usize,
    },
    /// A column with counts, but null instead of 0.
    Positive(usize),
}

impl Value {
    /// What an expression gives; a column is taken as it is.
    pub fn of(expression: &Arc<dyn PhysicalExpr>) -> Self {
        match expression.downcast_ref::<Column>() {
            Some(column) => Self::Input(column.index()),
            None => Self::Expression(Arc::clone(expression)),
        }
    }

    fn build(
        &self,
        data_type: &DataType,
        translator: &mut Translator<'_>,
    ) -> Result<Expression, Reason> {
        let why = |why: Why| Reason::Expression { expression: self.text(), why };
        let built = match self {
            Self::Input(column) => translator.column(*column).map_err(why)?,
            Self::Expression(expression) => translator.expression(expression.as_ref())?,
            Self::Where { filter, value } => {
                let condition = translator.expression(filter.as_ref())?;
                let value = match value {
                    Some(value) => translator.expression(value.as_ref())?,
                    None => Expression::literal(&Scalar::Bool(true)).map_err(|e| why(e.into()))?,
                };
                Expression::case(&[(condition, value)], None).map_err(|e| why(e.into()))?
            }
            Self::Average { sum, count } => {
                let sum = translator.column(*sum).map_err(why)?;
                let count = translator.column(*count).map_err(why)?;
                average(&sum, &count, data_type).map_err(why)?
            }
            Self::Positive(column) => {
                let count = translator.column(*column).map_err(why)?;
                positive(&count).map_err(why)?
            }
        };
        let is_count = matches!(self, Self::Positive(_));
        let promised = if is_count { of_state(data_type) } else { of_result(data_type) };
        if promised == Some(built.data_type()) {
            Ok(built)
        } else {
            Err(why(Why::Type(data_type.clone())))
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Input(column) | Self::Positive(column) => format!("column {column}"),
            Self::Expression(expression) => begin(expression),
            Self::Where { filter, value: None } => begin(format_args!("FILTER (WHERE {filter})")),
            Self::Where { filter, value: Some(value) } => {
                begin(format_args!("{value} FILTER (WHERE {filter})"))
            }
            Self::Average { .. } => "an average".to_owned(),
        }
    }
}

fn positive(count: &Expression) -> Result<Expression, Why> {
    let zero = Expression::literal(&Scalar::Integer(0, count.data_type()))?;
    Ok(Expression::null_if(count, &zero)?)
}

fn average(sum: &Expression, count: &Expression, to: &DataType) -> Result<Expression, Why> {
    use creel_gpu::program::{Arithmetic, DataType as DeviceType, Failure};
    let unsupported = || Why::Type(to.clone());
    let to = of_result(to).ok_or_else(unsupported)?;
    if to.decimal().is_some() {
        return Ok(Expression::decimal_average(sum, count, to)?);
    }
    let count = Expression::cast(&positive(count)?, DeviceType::Float64, Failure::Error)?;
    Ok(Expression::arithmetic(Arithmetic::Divide, sum, &count)?)
}

/// The programs for what is wanted, or why there are none: a reason for each column that can't be
/// computed.
pub fn computation(schema: &Schema, wanted: &[Wanted]) -> Result<Computation, Vec<Reason>> {
    let mut outputs: Vec<Option<Output>> = vec![None; wanted.len()];
    let mut computed = Vec::new();
    for (place, column) in wanted.iter().enumerate() {
        match column.value {
            Value::Input(input) => outputs[place] = Some(Output::Input(input)),
            _ => computed.push(place),
        }
    }
    let mut builder = Builder { schema, wanted, passes: Vec::new(), reasons: Vec::new() };
    builder.compute(&computed);
    if !builder.reasons.is_empty() {
        return Err(builder.reasons);
    }
    let mut passes = Vec::new();
    for (pass, places) in builder.passes {
        for (output, place) in places.into_iter().enumerate() {
            let data_type = wanted[place].data_type.clone();
            outputs[place] = Some(Output::Computed { pass: passes.len(), output, data_type });
        }
        passes.push(pass);
    }
    Ok(Computation { passes, outputs: outputs.into_iter().flatten().collect() })
}

struct Builder<'a> {
    schema: &'a Schema,
    wanted: &'a [Wanted],
    /// Passes, and the places of what each of them computes.
    passes: Vec<(Pass, Vec<usize>)>,
    reasons: Vec<Reason>,
}

impl Builder<'_> {
    /// Computes the columns at those places by one program, or where that holds too much, or has a
    /// fault, by one for each half.
    fn compute(&mut self, places: &[usize]) {
        if places.is_empty() {
            return;
        }
        match self.pass(places) {
            Ok(pass) => self.passes.push((pass, places.to_vec())),
            Err(reason) if places.len() == 1 => self.reasons.push(reason),
            Err(_) => {
                let (first, second) = places.split_at(places.len() / 2);
                self.compute(first);
                self.compute(second);
            }
        }
    }

    fn pass(&self, places: &[usize]) -> Result<Pass, Reason> {
        let mut translator = Translator::new(self.schema);
        let mut expressions = Vec::new();
        for &place in places {
            let Wanted { value, data_type } = &self.wanted[place];
            expressions.push(value.build(data_type, &mut translator)?);
        }
        let program = compile(&expressions).map_err(|error| Reason::Expression {
            expression: self.wanted[places[0]].value.text(),
            why: error.into(),
        })?;
        Ok(Pass { program, columns: translator.into_columns() })
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::Field;
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{binary, col, in_list, like, lit};

    use super::*;

    fn schema() -> Schema {
        let of_strings = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        Schema::new(vec![
            Field::new("i", DataType::Int64, true),
            Field::new("s", DataType::Utf8, true),
            Field::new("k", of_strings, true),
        ])
    }

    fn wanted(expression: &Arc<dyn PhysicalExpr>) -> Wanted {
        let data_type = expression.data_type(&schema()).unwrap();
        Wanted { value: Value::of(expression), data_type }
    }

    fn is_in(values: std::ops::Range<i64>) -> Arc<dyn PhysicalExpr> {
        let list = values.map(lit).collect();
        in_list(col("i", &schema()).unwrap(), list, &false, &schema()).unwrap()
    }

    #[test]
    fn columns_are_taken_and_the_rest_is_computed_at_once() {
        let (i, s) = (col("i", &schema()).unwrap(), col("s", &schema()).unwrap());
        let sum = binary(Arc::clone(&i), Operator::Plus, lit(1_i64), &schema()).unwrap();
        let is_x = binary(Arc::clone(&s), Operator::Eq, lit("x"), &schema()).unwrap();
        let all = [wanted(&s), wanted(&is_x), wanted(&i), wanted(&sum)];
        let computation = computation(&schema(), &all).unwrap();
        let computed = |output, data_type| Output::Computed { pass: 0, output, data_type };
        assert_eq!(
            computation.outputs,
            [
                Output::Input(1),
                computed(0, DataType::Boolean),
                Output::Input(0),
                computed(1, DataType::Int64),
            ]
        );
        assert_eq!(computation.passes.len(), 1);
        assert_eq!(computation.passes[0].columns, [1, 0]);
    }

    #[test]
    fn what_one_program_does_not_hold_takes_more() {
        let lists: Vec<_> = (0..3).map(|k| wanted(&is_in(k * 8000..k * 8000 + 8000))).collect();
        let computation = computation(&schema(), &lists).unwrap();
        assert_eq!(computation.passes.len(), 2);
        let computed =
            |pass, output| Output::Computed { pass, output, data_type: DataType::Boolean };
        assert_eq!(computation.outputs, [computed(0, 0), computed(1, 0), computed(1, 1)]);
    }

    #[test]
    fn all_that_can_not_be_computed_is_named() {
        let (i, s, k) = (
            col("i", &schema()).unwrap(),
            col("s", &schema()).unwrap(),
            col("k", &schema()).unwrap(),
        );
        let pattern =
            |text: &str| like(false, false, Arc::clone(&s), lit(text), &schema()).unwrap();
        let huge = is_in(0..20_000);
        let case = datafusion::physical_expr::expressions::case(
            None,
            vec![(is_in(0..4), Arc::clone(&k))],
            None,
        );
        let all = [
            wanted(&pattern("a%")),
            wanted(&i),
            wanted(&pattern("b%")),
            wanted(&huge),
            wanted(&case.unwrap()),
        ];
        let reasons = computation(&schema(), &all).unwrap_err();
        let reasons: Vec<String> = reasons.iter().map(Reason::to_string).collect();
        for (reason, words) in
            reasons.iter().zip(["LIKE a%", "LIKE b%", "constants", "its type is Dictionary"])
        {
            assert!(reason.contains(words), "{reason}");
        }
        assert_eq!(reasons.len(), 4);
    }
}
