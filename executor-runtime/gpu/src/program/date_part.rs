//! Parts of dates and timestamps, as `date_part` gives them. Timestamps are taken as UTC.

use super::instruction::{Op, Part};
use super::{Arithmetic, DataType, Error, Expression, TimeUnit};

/// What `date_part` and `EXTRACT` ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatePart {
    /// The year.
    Year,
    /// 1 to 4.
    Quarter,
    /// 1 to 12.
    Month,
    /// The week of ISO 8601, 1 to 53.
    Week,
    /// The year of that week.
    IsoYear,
    /// Of the month, 1 to 31.
    Day,
    /// Of the year, 1 to 366.
    DayOfYear,
    /// 0 (Sunday) to 6.
    DayOfWeek,
    /// 1 (Monday) to 7.
    IsoDayOfWeek,
    /// 0 to 23.
    Hour,
    /// 0 to 59.
    Minute,
    /// 0 to 59.
    Second,
    /// Of the minute: seconds and what is left.
    Millisecond,
    /// Of the minute.
    Microsecond,
}

impl Expression {
    /// A part of a Date32 or Timestamp, as an Int32.
    pub fn date_part(part: DatePart, operand: &Self) -> Result<Self, Error> {
        let (days, unit) = match operand.data_type() {
            DataType::Date32 => (operand.retyped(DataType::Int64), None),
            DataType::Timestamp(unit) => {
                let per_day = Expression::integer(unit.per_day());
                let days = [operand, &per_day];
                (Expression::apply(DataType::Int64, Op::FloorDivide, days, 0), Some(unit))
            }
            other => {
                return Err(Error::Operand {
                    operation: format!("date_part {part:?}"),
                    operand: other,
                });
            }
        };
        let of_day =
            |part: Part| Ok(Expression::apply(DataType::Int32, Op::DatePart, [&days], part as u32));
        let of_clock = |cycle: i64, step_per_second: i64, step_seconds: i64| {
            of_clock(operand, unit, cycle, step_per_second, step_seconds)
        };
        match part {
            DatePart::Year => of_day(Part::Year),
            DatePart::Quarter => of_day(Part::Quarter),
            DatePart::Month => of_day(Part::Month),
            DatePart::Week => of_day(Part::IsoWeek),
            DatePart::IsoYear => of_day(Part::IsoYear),
            DatePart::Day => of_day(Part::Day),
            DatePart::DayOfYear => of_day(Part::DayOfYear),
            // 1970-01-01 was a Thursday.
            DatePart::DayOfWeek => Ok(weekday(&days, 4)?.retyped(DataType::Int32)),
            DatePart::IsoDayOfWeek => {
                let from_monday = weekday(&days, 3)?;
                let day =
                    Expression::arithmetic(Arithmetic::Add, &from_monday, &Expression::integer(1))?;
                Ok(day.retyped(DataType::Int32))
            }
            DatePart::Hour => of_clock(86_400, 1, 3_600),
            DatePart::Minute => of_clock(3_600, 1, 60),
            DatePart::Second => of_clock(60, 1, 1),
            DatePart::Millisecond => of_clock(60, 1_000, 1),
            DatePart::Microsecond => of_clock(60, 1_000_000, 1),
        }
    }
}

/// Days of a week that began with the day which is `first` days before 1970-01-01.
fn weekday(days: &Expression, first: i64) -> Result<Expression, Error> {
    let from = Expression::arithmetic(Arithmetic::Add, days, &Expression::integer(first))?;
    let week = Expression::integer(7);
    Ok(Expression::apply(DataType::Int64, Op::FloorRemainder, [&from, &week], 0))
}

/// Where in a cycle of so many seconds the time is, in steps of `step_seconds`, or in
/// `step_per_second`ths of a second.
fn of_clock(
    operand: &Expression,
    unit: Option<TimeUnit>,
    cycle: i64,
    step_per_second: i64,
    step_seconds: i64,
) -> Result<Expression, Error> {
    let Some(unit) = unit else {
        // A date has midnight, unless it is null.
        let days = operand.retyped(DataType::Int64);
        let one = Expression::integer(1);
        let zero = Expression::apply(DataType::Int64, Op::FloorRemainder, [&days, &one], 0);
        return Ok(zero.retyped(DataType::Int32));
    };
    let per_second = unit.per_second();
    let cycle = Expression::integer(cycle * per_second);
    let within = Expression::apply(DataType::Int64, Op::FloorRemainder, [operand, &cycle], 0);
    let steps = if per_second * step_seconds >= step_per_second {
        let step = Expression::integer(per_second * step_seconds / step_per_second);
        Expression::apply(DataType::Int64, Op::FloorDivide, [&within, &step], 0)
    } else {
        let factor = Expression::integer(step_per_second / per_second);
        Expression::arithmetic(Arithmetic::Multiply, &within, &factor)?
    };
    Ok(steps.retyped(DataType::Int32))
}
