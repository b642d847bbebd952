//! DataFusion's expressions as the GPU's.
//!
//! What can't be translated exactly isn't: then DataFusion computes it. Names and types are those of
//! the operator's input; what literals and casts say of time zones is looked at here, since
//! the device knows none.

use std::str::FromStr;

use creel_gpu::program::{self, Arithmetic, Comparison, DatePart, Expression, Failure, Scalar};
use datafusion::arrow::compute::kernels::cast_utils::IntervalUnit;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, DynamicFilterPhysicalExpr, InListExpr, IsNotNullExpr,
    IsNullExpr, Literal, NegativeExpr, NotExpr, TryCastExpr,
};
use datafusion::physical_plan::PhysicalExpr;

use super::data_type::{of_state, on_device};
use super::reason::{Reason, Why};

/// Levels of an expression, within which translating it takes no more stack than there is.
const LEVELS: u32 = 1_000;

/// Terms of AND or OR that hang on one another: a chain of thousands becomes a tree of few levels.
const CHAINED: usize = 128;

/// Translates the expressions of one program, whose columns are those that the expressions use.
pub struct Translator<'a> {
    schema: &'a Schema,
    columns: Vec<usize>,
    level: u32,
}

impl<'a> Translator<'a> {
    /// A translator of expressions of an input.
    pub fn new(schema: &'a Schema) -> Self {
        Self { schema, columns: Vec::new(), level: 0 }
    }

    /// The columns of the input that were used, by the number that the program knows them by.
    pub fn into_columns(self) -> Vec<usize> {
        self.columns
    }

    /// An expression.
    pub fn expression(&mut self, expression: &dyn PhysicalExpr) -> Result<Expression, Reason> {
        if self.level == LEVELS {
            return Err(Reason::of(expression, program::Error::Depth { limit: LEVELS }));
        }
        self.level += 1;
        let translated = self.node(expression);
        self.level -= 1;
        translated
    }

    /// A column of the input.
    pub fn column(&mut self, index: usize) -> Result<Expression, Why> {
        let data_type = self.schema.field(index).data_type();
        let on_device = of_state(data_type).ok_or_else(|| Why::Type(data_type.clone()))?;
        let number = self.columns.iter().position(|&column| column == index);
        let number = number.unwrap_or_else(|| {
            self.columns.push(index);
            self.columns.len() - 1
        });
        Ok(Expression::column(u16::try_from(number).unwrap_or(u16::MAX), on_device)?)
    }

    fn node(&mut self, expression: &dyn PhysicalExpr) -> Result<Expression, Reason> {
        let why = |why: Why| Reason::of(expression, why);
        if let Some(column) = expression.downcast_ref::<Column>() {
            self.column(column.index()).map_err(why)
        } else if let Some(literal) = expression.downcast_ref::<Literal>() {
            let value = scalar(literal.value())
                .ok_or_else(|| why(Why::Type(literal.value().data_type())))?;
            Expression::literal(&value).map_err(|error| why(error.into()))
        } else if let Some(binary) = expression.downcast_ref::<BinaryExpr>() {
            self.binary(binary)
        } else if let Some(cast) = expression.downcast_ref::<CastExpr>() {
            let failure = if cast.cast_options().safe { Failure::Null } else { Failure::Error };
            self.cast(expression, cast.expr().as_ref(), cast.cast_type(), failure)
        } else if let Some(cast) = expression.downcast_ref::<TryCastExpr>() {
            self.cast(expression, cast.expr().as_ref(), cast.cast_type(), Failure::Null)
        } else if let Some(case) = expression.downcast_ref::<CaseExpr>() {
            self.case(case)
        } else if let Some(list) = expression.downcast_ref::<InListExpr>() {
            self.in_list(list)
        } else if let Some(function) = expression.downcast_ref::<ScalarFunctionExpr>() {
            self.function(function)
        } else if let Some(not) = expression.downcast_ref::<NotExpr>() {
            let operand = self.expression(not.arg().as_ref())?;
            Expression::not(&operand).map_err(|error| why(error.into()))
        } else if let Some(test) = expression.downcast_ref::<IsNullExpr>() {
            Ok(Expression::is_null(&self.expression(test.arg().as_ref())?))
        } else if let Some(test) = expression.downcast_ref::<IsNotNullExpr>() {
            Ok(Expression::is_not_null(&self.expression(test.arg().as_ref())?))
        } else if let Some(negative) = expression.downcast_ref::<NegativeExpr>() {
            // Of a column it wraps, of a literal it fails.
            if negative.arg().is::<Literal>() {
                return Err(why(Why::Kind));
            }
            let operand = self.expression(negative.arg().as_ref())?;
            Expression::negate(&operand).map_err(|error| why(error.into()))
        } else if expression.is::<DynamicFilterPhysicalExpr>() {
            Err(why(Why::Dynamic))
        } else {
            Err(why(Why::Kind))
        }
    }

    fn binary(&mut self, binary: &BinaryExpr) -> Result<Expression, Reason> {
        let why = |why: Why| Reason::of(binary, why);
        let comparison = match binary.op() {
            Operator::And | Operator::Or => return self.chain(binary),
            Operator::Plus => return self.arithmetic(Arithmetic::Add, binary),
            Operator::Minus => return self.arithmetic(Arithmetic::Subtract, binary),
            Operator::Multiply => return self.arithmetic(Arithmetic::Multiply, binary),
            Operator::Divide => return self.arithmetic(Arithmetic::Divide, binary),
            Operator::Modulo => return self.arithmetic(Arithmetic::Remainder, binary),
            Operator::Eq => Comparison::Equal,
            Operator::NotEq => Comparison::NotEqual,
            Operator::Lt => Comparison::Less,
            Operator::LtEq => Comparison::LessOrEqual,
            Operator::Gt => Comparison::Greater,
            Operator::GtEq => Comparison::GreaterOrEqual,
            Operator::IsDistinctFrom => Comparison::Distinct,
            Operator::IsNotDistinctFrom => Comparison::NotDistinct,
            _ => return Err(why(Why::Kind)),
        };
        let (left, right) = self.operands(binary)?;
        Expression::compare(comparison, &left, &right).map_err(|error| why(error.into()))
    }

    fn operands(&mut self, binary: &BinaryExpr) -> Result<(Expression, Expression), Reason> {
        Ok((self.expression(binary.left().as_ref())?, self.expression(binary.right().as_ref())?))
    }

    fn arithmetic(
        &mut self,
        operator: Arithmetic,
        binary: &BinaryExpr,
    ) -> Result<Expression, Reason> {
        let (left, right) = self.operands(binary)?;
        let date = program::DataType::Date32;
        let result = if operator == Arithmetic::Subtract
            && (left.data_type(), right.data_type()) == (date, date)
        {
            days_between(&left, &right)
        } else {
            Expression::arithmetic(operator, &left, &right)
        };
        result.map_err(|error| Reason::of(binary, error))
    }

    /// `a AND b AND …`, or the same with OR. Neither the values nor what fails depends on how the
    /// terms hang together.
    fn chain(&mut self, binary: &BinaryExpr) -> Result<Expression, Reason> {
        let mut terms = Vec::new();
        let mut rest: Vec<&dyn PhysicalExpr> = vec![binary];
        while let Some(next) = rest.pop() {
            match next.downcast_ref::<BinaryExpr>() {
                Some(inner) if inner.op() == binary.op() => {
                    rest.push(inner.right().as_ref());
                    rest.push(inner.left().as_ref());
                }
                _ => terms.push(self.expression(next)?),
            }
        }
        let join = if *binary.op() == Operator::And { Expression::and } else { Expression::or };
        let joined = |terms: &[Expression]| {
            let (first, others) = terms.split_first().expect("two terms at the least");
            others.iter().try_fold(first.clone(), |all, term| join(&all, term))
        };
        let parts: Result<Vec<_>, _> = terms.chunks(CHAINED).map(joined).collect();
        parts.and_then(|parts| joined(&parts)).map_err(|error| Reason::of(binary, error))
    }

    fn cast(
        &mut self,
        cast: &dyn PhysicalExpr,
        operand: &dyn PhysicalExpr,
        to: &DataType,
        failure: Failure,
    ) -> Result<Expression, Reason> {
        let why = |why: Why| Reason::of(cast, why);
        let value = self.expression(operand)?;
        if needs_time_zone(&self.type_of(operand)?, to) {
            return Err(why(Why::TimeZone));
        }
        let to = on_device(to).ok_or_else(|| why(Why::Type(to.clone())))?;
        Expression::cast(&value, to, failure).map_err(|error| why(error.into()))
    }

    fn type_of(&self, expression: &dyn PhysicalExpr) -> Result<DataType, Reason> {
        let unknown = |error: datafusion::error::DataFusionError| {
            Reason::of(expression, Why::Unknown(error.strip_backtrace()))
        };
        expression.data_type(self.schema).map_err(unknown)
    }

    fn case(&mut self, case: &CaseExpr) -> Result<Expression, Reason> {
        let why = |why: Why| Reason::of(case, why);
        let base = case.expr().map(|base| self.expression(base.as_ref())).transpose()?;
        if base.as_ref().is_some_and(|base| base.data_type().is_float()) {
            return Err(why(Why::SignedZero));
        }
        let mut branches = Vec::new();
        for (when, then) in case.when_then_expr() {
            let when = self.expression(when.as_ref())?;
            let condition = match &base {
                Some(base) => Expression::compare(Comparison::Equal, base, &when)
                    .map_err(|error| why(error.into()))?,
                None => when,
            };
            branches.push((condition, self.unless_null(then.as_ref())?));
        }
        let otherwise = case.else_expr().map(|it| self.unless_null(it.as_ref())).transpose()?;
        let otherwise = otherwise.flatten();

        let first = branches.iter().find_map(|(_, value)| value.as_ref()).or(otherwise.as_ref());
        let data_type = first.ok_or_else(|| why(Why::Type(DataType::Null)))?.data_type();
        let null =
            Expression::literal(&Scalar::Null(data_type)).map_err(|error| why(error.into()))?;
        let branches: Vec<_> = branches
            .into_iter()
            .map(|(condition, value)| (condition, value.unwrap_or_else(|| null.clone())))
            .collect();
        Expression::case(&branches, otherwise.as_ref()).map_err(|error| why(error.into()))
    }

    /// An expression; none for a NULL that has no type.
    fn unless_null(&mut self, expression: &dyn PhysicalExpr) -> Result<Option<Expression>, Reason> {
        match expression.downcast_ref::<Literal>().map(Literal::value) {
            Some(ScalarValue::Null) => Ok(None),
            _ => self.expression(expression).map(Some),
        }
    }

    fn in_list(&mut self, list: &InListExpr) -> Result<Expression, Reason> {
        let why = |why: Why| Reason::of(list, why);
        let operand = self.expression(list.expr().as_ref())?;
        if operand.data_type().is_float() {
            return Err(why(Why::SignedZero));
        }
        let constant = |item: &dyn PhysicalExpr| match item.downcast_ref::<Literal>()?.value() {
            ScalarValue::Null => Some(Scalar::Null(operand.data_type())),
            value => scalar(value),
        };
        let constants: Option<Vec<_>> =
            list.list().iter().map(|item| constant(item.as_ref())).collect();
        let constants = constants.ok_or_else(|| why(Why::List))?;
        let is_in = Expression::in_list(&operand, &constants);
        let result = if list.negated() { is_in.and_then(|it| Expression::not(&it)) } else { is_in };
        result.map_err(|error| why(error.into()))
    }

    fn function(&mut self, function: &ScalarFunctionExpr) -> Result<Expression, Reason> {
        let why = |why: Why| Reason::of(function, why);
        match (function.fun().name(), function.args()) {
            ("nullif", [left, right]) => {
                let left = self.expression(left.as_ref())?;
                let right = self.expression(right.as_ref())?;
                if left.data_type().is_float() {
                    return Err(why(Why::SignedZero));
                }
                Expression::null_if(&left, &right).map_err(|error| why(error.into()))
            }
            ("date_part", [part, operand]) => {
                let part = date_part(part.as_ref()).ok_or_else(|| why(Why::Kind))?;
                let value = self.expression(operand.as_ref())?;
                if matches!(self.type_of(operand.as_ref())?, DataType::Timestamp(_, Some(_))) {
                    return Err(why(Why::TimeZone));
                }
                Expression::date_part(part, &value).map_err(|error| why(error.into()))
            }
            _ => Err(why(Why::Kind)),
        }
    }
}

fn days_between(left: &Expression, right: &Expression) -> Result<Expression, program::Error> {
    let days = |date| Expression::cast(date, program::DataType::Int64, Failure::Error);
    Expression::arithmetic(Arithmetic::Subtract, &days(left)?, &days(right)?)
}

/// Whether a cast looks at what the clock shows in a time zone.
fn needs_time_zone(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::Timestamp(_, from), DataType::Timestamp(_, to)) => {
            from.is_none() && to.is_some()
        }
        (DataType::Timestamp(_, Some(_)), other) | (other, DataType::Timestamp(_, Some(_))) => {
            !other.is_integer()
        }
        _ => false,
    }
}

/// The part that `date_part` is asked for, by the names that it takes.
fn date_part(part: &dyn PhysicalExpr) -> Option<DatePart> {
    let part = part.downcast_ref::<Literal>()?.value().try_as_str()??;
    let part = part.strip_prefix(['\'', '"']).unwrap_or(part);
    let part = part.strip_suffix(['\'', '"']).unwrap_or(part);
    match IntervalUnit::from_str(part) {
        Ok(IntervalUnit::Year) => Some(DatePart::Year),
        Ok(IntervalUnit::Month) => Some(DatePart::Month),
        Ok(IntervalUnit::Week) => Some(DatePart::Week),
        Ok(IntervalUnit::Day) => Some(DatePart::Day),
        Ok(IntervalUnit::Hour) => Some(DatePart::Hour),
        Ok(IntervalUnit::Minute) => Some(DatePart::Minute),
        Ok(IntervalUnit::Second) => Some(DatePart::Second),
        Ok(IntervalUnit::Millisecond) => Some(DatePart::Millisecond),
        Ok(IntervalUnit::Microsecond) => Some(DatePart::Microsecond),
        Ok(_) => None,
        Err(_) => match part.to_lowercase().as_str() {
            "isoyear" => Some(DatePart::IsoYear),
            "qtr" | "quarter" => Some(DatePart::Quarter),
            "doy" => Some(DatePart::DayOfYear),
            "dow" => Some(DatePart::DayOfWeek),
            "isodow" => Some(DatePart::IsoDayOfWeek),
            _ => None,
        },
    }
}

/// A value as the device has it; none if its type doesn't go there.
fn scalar(value: &ScalarValue) -> Option<Scalar> {
    if value.is_null() {
        return Some(Scalar::Null(on_device(&value.data_type())?));
    }
    let integer = |number: i64| Some(Scalar::Integer(number, on_device(&value.data_type())?));
    match value {
        ScalarValue::Boolean(Some(it)) => Some(Scalar::Bool(*it)),
        ScalarValue::Int8(Some(it)) => integer((*it).into()),
        ScalarValue::Int16(Some(it)) => integer((*it).into()),
        ScalarValue::Int32(Some(it)) | ScalarValue::Date32(Some(it)) => integer((*it).into()),
        ScalarValue::Int64(Some(it))
        | ScalarValue::TimestampSecond(Some(it), _)
        | ScalarValue::TimestampMillisecond(Some(it), _)
        | ScalarValue::TimestampMicrosecond(Some(it), _)
        | ScalarValue::TimestampNanosecond(Some(it), _)
        | ScalarValue::Decimal64(Some(it), _, _) => integer(*it),
        ScalarValue::Float32(Some(it)) => Some(Scalar::Float32(*it)),
        ScalarValue::Float64(Some(it)) => Some(Scalar::Float64(*it)),
        ScalarValue::Decimal128(Some(it), precision, scale) => {
            Some(Scalar::Decimal128(*it, *precision, *scale))
        }
        ScalarValue::Utf8(Some(it))
        | ScalarValue::LargeUtf8(Some(it))
        | ScalarValue::Utf8View(Some(it)) => Some(Scalar::Utf8(it.clone())),
        ScalarValue::Dictionary(_, inner) => scalar(inner),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use creel_gpu::program::{DataType as DeviceType, Program, TimeUnit, compile};
    use datafusion::arrow::datatypes::{Field, TimeUnit as ArrowTimeUnit};
    use datafusion::common::DFSchema;
    use datafusion::logical_expr::simplify::SimplifyContext;
    use datafusion::optimizer::simplify_expressions::ExprSimplifier;
    use datafusion::physical_expr::expressions::{binary, col, in_list, lit};
    use datafusion::prelude::SessionContext;

    use super::*;

    fn schema() -> Schema {
        let of_strings = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        let zone = Some("+02:00".into());
        Schema::new(vec![
            Field::new("i", DataType::Int64, true),
            Field::new("n", DataType::Int32, true),
            Field::new("f", DataType::Float64, true),
            Field::new("d", DataType::Decimal128(15, 2), true),
            Field::new("s", DataType::Utf8View, true),
            Field::new("k", of_strings, true),
            Field::new("t", DataType::Date32, true),
            Field::new("u", DataType::Date32, true),
            Field::new("ts", DataType::Timestamp(ArrowTimeUnit::Nanosecond, None), true),
            Field::new("tz", DataType::Timestamp(ArrowTimeUnit::Microsecond, zone), true),
            Field::new("b", DataType::Boolean, true),
            Field::new("big", DataType::UInt64, true),
            Field::new("list", DataType::new_list(DataType::Int64, true), true),
        ])
    }

    /// An expression of SQL, as the operators of a plan have it.
    fn physical(sql: &str) -> Arc<dyn PhysicalExpr> {
        let context = SessionContext::new();
        let schema = Arc::new(DFSchema::try_from(schema()).unwrap());
        let simplify = SimplifyContext::builder().with_schema(Arc::clone(&schema)).build();
        let simplifier = ExprSimplifier::new(simplify);
        let expression = context.parse_sql_expr(sql, &schema).unwrap();
        let expression = simplifier.coerce(expression, &schema).unwrap();
        let expression = simplifier.simplify(expression).unwrap();
        context.create_physical_expr(expression, &schema).unwrap()
    }

    fn translated(expression: &dyn PhysicalExpr) -> Result<(Program, Vec<usize>), Reason> {
        let schema = schema();
        let mut translator = Translator::new(&schema);
        let translated = translator.expression(expression)?;
        Ok((compile(&[translated]).unwrap(), translator.into_columns()))
    }

    fn program(expression: Result<Expression, program::Error>) -> Program {
        compile(&[expression.unwrap()]).unwrap()
    }

    fn first(data_type: DeviceType) -> Expression {
        Expression::column(0, data_type).unwrap()
    }

    fn second(data_type: DeviceType) -> Expression {
        Expression::column(1, data_type).unwrap()
    }

    fn constant(scalar: &Scalar) -> Expression {
        Expression::literal(scalar).unwrap()
    }

    fn int64(value: i64) -> Expression {
        constant(&Scalar::Integer(value, DeviceType::Int64))
    }

    fn text(value: &str) -> Expression {
        constant(&Scalar::Utf8(value.to_owned()))
    }

    #[test]
    fn each_kind_is_what_datafusion_computes() {
        use Arithmetic::{Add, Divide, Multiply, Remainder, Subtract};
        use Comparison::{Distinct, Equal, Greater, GreaterOrEqual, Less, NotDistinct};
        use DeviceType::{Bool, Date32, Float64, Int32, Int64, Timestamp, Utf8};
        let money = DeviceType::Decimal128(15, 2);
        let compare = Expression::compare;
        let arithmetic = Expression::arithmetic;
        let i = first(Int64);
        let date = |days| constant(&Scalar::Integer(days, Date32));
        let long = |date| Expression::cast(date, Int64, Failure::Error).unwrap();
        let integers = |list: &[i64]| -> Vec<_> {
            list.iter().map(|&it| Scalar::Integer(it, Int64)).collect()
        };
        let words: Vec<_> = ["p", "q", "r", "v"].map(|it| Scalar::Utf8(it.to_owned())).into();
        let not_in = Expression::in_list(&first(Utf8), &words).and_then(|it| Expression::not(&it));
        let is_one = compare(Equal, &i, &int64(1)).unwrap();
        let is_two = compare(Equal, &i, &int64(2)).unwrap();
        for (sql, expected) in [
            ("i + 1", arithmetic(Add, &i, &int64(1))),
            ("i - 2", arithmetic(Subtract, &i, &int64(2))),
            ("i * 2", arithmetic(Multiply, &i, &int64(2))),
            ("i / 2", arithmetic(Divide, &i, &int64(2))),
            ("i % 2", arithmetic(Remainder, &i, &int64(2))),
            ("d * d", arithmetic(Multiply, &first(money), &first(money))),
            ("u - t", arithmetic(Subtract, &long(&first(Date32)), &long(&second(Date32)))),
            ("-i", Expression::negate(&i)),
            ("i > 5", compare(Greater, &i, &int64(5))),
            ("f < 0.5", compare(Less, &first(Float64), &constant(&Scalar::Float64(0.5)))),
            ("s = 'x'", compare(Equal, &first(Utf8), &text("x"))),
            ("k >= 'x'", compare(GreaterOrEqual, &first(Utf8), &text("x"))),
            ("t >= DATE '1970-01-11'", compare(GreaterOrEqual, &first(Date32), &date(10))),
            ("i IS DISTINCT FROM 1", compare(Distinct, &i, &int64(1))),
            ("i IS NOT DISTINCT FROM 1", compare(NotDistinct, &i, &int64(1))),
            (
                "b AND i = 1",
                Expression::and(&first(Bool), &{
                    compare(Equal, &second(Int64), &int64(1)).unwrap()
                }),
            ),
            (
                "b OR i = 1",
                Expression::or(&first(Bool), &{
                    compare(Equal, &second(Int64), &int64(1)).unwrap()
                }),
            ),
            ("NOT b", Expression::not(&first(Bool))),
            ("i IS NULL", Ok(Expression::is_null(&i))),
            ("s IS NOT NULL", Ok(Expression::is_not_null(&first(Utf8)))),
            ("CAST(i AS DOUBLE)", Expression::cast(&i, Float64, Failure::Error)),
            ("TRY_CAST(i AS INT)", Expression::cast(&i, Int32, Failure::Null)),
            (
                "CAST(tz AS BIGINT)",
                Ok({
                    let micros = first(Timestamp(TimeUnit::Microsecond));
                    Expression::cast(&micros, Int64, Failure::Error).unwrap()
                }),
            ),
            (
                "CASE WHEN i = 1 THEN 'a' WHEN i = 2 THEN 'b' END",
                Expression::case(&[(is_one.clone(), text("a")), (is_two, text("b"))], None),
            ),
            (
                "CASE i WHEN 1 THEN f ELSE 0.5 END",
                Expression::case(
                    &[(is_one, second(Float64))],
                    Some(&constant(&Scalar::Float64(0.5))),
                ),
            ),
            ("i IN (3, 5, 7, 11, 13)", Expression::in_list(&i, &integers(&[3, 5, 7, 11, 13]))),
            ("s NOT IN ('p', 'q', 'r', 'v')", not_in),
            ("coalesce(i, 7)", Expression::coalesce(&[i.clone(), int64(7)])),
            ("nullif(i, 7)", Expression::null_if(&i, &int64(7))),
            ("date_part('year', t)", Expression::date_part(DatePart::Year, &first(Date32))),
            ("extract(dow FROM ts)", {
                let nanos = first(Timestamp(TimeUnit::Nanosecond));
                Expression::date_part(DatePart::DayOfWeek, &nanos)
            }),
        ] {
            let expression = physical(sql);
            let found = translated(expression.as_ref());
            let (found, _) = found.unwrap_or_else(|reason| panic!("{sql}: {reason}"));
            assert_eq!(found, program(expected), "{sql} is {expression}\n{found}");
        }
    }

    #[test]
    fn a_program_reads_the_columns_that_it_uses() {
        let (_, columns) = translated(physical("f > 1.5 AND i = 2 AND f < 9.5").as_ref()).unwrap();
        assert_eq!(columns, [2, 0]);
    }

    #[test]
    fn a_null_of_no_type_has_that_of_the_others() {
        let schema = schema();
        let list = vec![lit(1_i64), lit(ScalarValue::Null)];
        let expression = in_list(col("i", &schema).unwrap(), list, &false, &schema).unwrap();
        let constants = [Scalar::Integer(1, DeviceType::Int64), Scalar::Null(DeviceType::Int64)];
        let expected = Expression::in_list(&first(DeviceType::Int64), &constants);
        assert_eq!(translated(expression.as_ref()).unwrap().0, program(expected));
    }

    #[test]
    fn what_the_gpu_does_not_compute_says_why() {
        for (sql, why) in [
            ("s LIKE '%x%'", "s@4 LIKE %x% can't run on the GPU: there is no GPU form of it"),
            ("i > 1 AND s LIKE 'x_'", "s@4 LIKE x_ can't"),
            ("i & 1", "there is no GPU form"),
            ("abs(i) > 1", "abs(i@0) can't run on the GPU: there is no GPU form"),
            ("s || 'x'", "there is no GPU form"),
            ("big > 1", "its type is"),
            ("list IS NULL", "its type is List"),
            ("ts + INTERVAL '1 day'", "its type is Interval"),
            ("CAST(i AS VARCHAR)", "a cast from Int64 to Utf8"),
            ("CAST(s AS BIGINT)", "a cast from Utf8 to Int64"),
            ("CAST(tz AS DATE)", "time zones"),
            ("arrow_cast(ts, 'Timestamp(Nanosecond, Some(\"+01:00\"))')", "time zones"),
            ("extract(hour FROM tz)", "time zones"),
            ("date_part('epoch', t)", "there is no GPU form"),
            ("date_part('nanosecond', ts)", "there is no GPU form"),
            ("f IN (0.0, 1.0, 2.0, 3.0, 4.0)", "tells -0 from 0"),
            ("CASE f WHEN 0.0 THEN 1 END", "tells -0 from 0"),
            ("nullif(f, 0.0)", "tells -0 from 0"),
            ("i IN (n, 2, 3, 4, 5)", "isn't constant"),
        ] {
            let reason = translated(physical(sql).as_ref()).expect_err(sql).to_string();
            assert!(reason.contains(why), "{sql}: {reason}");
        }
    }

    fn on_a_stack_of<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(bytes);
            thread.spawn_scoped(scope, work).unwrap().join().unwrap()
        })
    }

    #[test]
    fn chains_may_be_as_long_as_they_like() {
        // Dropping the chain takes stack, translating it doesn't.
        on_a_stack_of(64 << 20, || {
            let schema = schema();
            let i = col("i", &schema).unwrap();
            let term = |k: i64| binary(Arc::clone(&i), Operator::NotEq, lit(k), &schema);
            let chain = (1..15_000).fold(term(0).unwrap(), |chain, k| {
                Arc::new(BinaryExpr::new(chain, Operator::And, term(k).unwrap()))
            });
            let (program, columns) = on_a_stack_of(1 << 20, || translated(chain.as_ref())).unwrap();
            assert_eq!(columns, [0]);
            assert!(program.instructions().len() >= 15_000);
        });
    }

    #[test]
    fn what_nests_too_deep_is_declined() {
        on_a_stack_of(64 << 20, || {
            let schema = schema();
            let i = col("i", &schema).unwrap();
            let deep = (0..5000)
                .fold(i, |sum, _| Arc::new(BinaryExpr::new(sum, Operator::Plus, lit(1_i64))));
            let reason = translated(deep.as_ref()).unwrap_err().to_string();
            assert!(reason.contains("levels deep"), "{reason}");
            assert!(reason.len() < 500, "{reason}");
        });
    }
}
