//! Casts, as Arrow's.

use super::data_type::Class;
use super::expression::{Constant, checked, power_of_ten};
use super::instruction::{Op, flag, relation};
use super::{DataType, Error, Expression};

/// What a cast gives for a value that the type doesn't have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The query fails: `CAST`.
    Error,
    /// `TRY_CAST`.
    Null,
}

impl Failure {
    fn flag(self) -> u32 {
        match self {
            Failure::Error => 0,
            Failure::Null => flag::SAFE,
        }
    }
}

impl Expression {
    /// The operand as another type.
    pub fn cast(operand: &Self, to: DataType, failure: Failure) -> Result<Self, Error> {
        use DataType::{Bool, Date32, Float32, Float64, Int32, Int64, Timestamp};
        let from = operand.data_type();
        let to = checked(to)?;
        if from == to {
            return Ok(operand.clone());
        }
        let unsupported = Err(Error::Cast { from, to });
        let safe = failure.flag();
        match (from, to) {
            (Bool, _) if to.is_integer() => Ok(Expression::apply(to, Op::ToInteger, [operand], 0)),
            (Bool, _) if to.is_float() => {
                let number = Expression::apply(Int64, Op::ToInteger, [operand], 0);
                Expression::cast(&number, to, failure)
            }
            (_, Bool) if from.is_integer() || from.is_float() => {
                let zero = Expression::constant(from, Constant::Wide(0));
                let not_equal = relation::LESS | relation::GREATER;
                Ok(Expression::apply(Bool, Op::Compare, [operand, &zero], not_equal))
            }
            // The numbers themselves.
            (Date32, Int32 | Int64) | (Int32, Date32) | (Timestamp(_), Int64) => {
                Ok(operand.retyped(to))
            }
            (_, Timestamp(_)) if from.is_integer() => Ok(operand.retyped(to)),
            (Int64, Date32) => Ok(narrowed(operand, to, safe)),
            _ if from.is_integer() && to.is_integer() => Ok(if to.bits() >= from.bits() {
                operand.retyped(to)
            } else {
                narrowed(operand, to, safe)
            }),
            (_, Float32) if from.is_integer() => {
                Ok(Expression::apply(to, Op::ToFloat32, [operand], 0))
            }
            (_, Float64) if from.is_integer() => {
                Ok(Expression::apply(to, Op::ToFloat64, [operand], 0))
            }
            (Float64, Float32) => Ok(Expression::apply(to, Op::ToFloat32, [operand], 0)),
            (Float32, Float64) => Ok(Expression::apply(to, Op::ToFloat64, [operand], 0)),
            _ if from.is_float() && to.is_integer() => Ok(narrowed(operand, to, safe)),
            (Date32, Timestamp(unit)) => {
                let per_day = Expression::integer(unit.per_day());
                let immediate = flag::CHECKED | safe;
                Ok(Expression::apply(to, Op::Multiply, [operand, &per_day], immediate))
            }
            (Timestamp(unit), Date32) => {
                let per_day = Expression::integer(unit.per_day());
                let days = Expression::apply(Int64, Op::FloorDivide, [operand, &per_day], 0);
                Ok(narrowed(&days, to, safe))
            }
            (Timestamp(old), Timestamp(new)) => {
                let (old, new) = (old.per_second(), new.per_second());
                Ok(if old > new {
                    let factor = Expression::integer(old / new);
                    Expression::apply(to, Op::Divide, [operand, &factor], 0)
                } else {
                    let factor = Expression::integer(new / old);
                    let immediate = flag::CHECKED | safe;
                    Expression::apply(to, Op::Multiply, [operand, &factor], immediate)
                })
            }
            _ => match (from.decimal(), to.decimal()) {
                (None, Some(_)) if from.is_integer() => {
                    Ok(sized(&number_to_decimal(operand, to, safe), to, safe))
                }
                (None, Some(_)) if from.is_float() => {
                    Ok(sized(&float_to_decimal(operand, to, safe), to, safe))
                }
                (Some(_), Some(_)) => Ok(sized(&rescaled(operand, to, safe), to, safe)),
                (Some((_, scale)), None) if to.is_integer() => {
                    let divisor = wide(power_of_ten(scale.cast_unsigned()));
                    Ok(Expression::apply(to, Op::ToInteger, [&widened(operand), &divisor], safe))
                }
                (Some((_, scale)), None) if to.is_float() => {
                    let divisor = Constant::from(10f64.powi(i32::from(scale)));
                    let divisor = Expression::constant(Float64, divisor);
                    let double =
                        Expression::apply(Float64, Op::ToFloat64, [&widened(operand), &divisor], 0);
                    Expression::cast(&double, to, failure)
                }
                _ => unsupported,
            },
        }
    }

    /// The average of decimals, as DataFusion's: `sum` × 10^(difference of scales) ÷ `count` towards
    /// zero, in the type of the average. `count` is an Int64; 0 gives null.
    pub fn decimal_average(sum: &Self, count: &Self, average: DataType) -> Result<Self, Error> {
        let average = checked(average)?;
        let (Some((_, from)), Some((precision, to))) =
            (sum.data_type().decimal(), average.decimal())
        else {
            return Err(Error::Operands {
                operation: "AVG".to_owned(),
                left: sum.data_type(),
                right: average,
            });
        };
        if to < from || count.data_type() != DataType::Int64 {
            return Err(Error::Operands {
                operation: "AVG".to_owned(),
                left: average,
                right: count.data_type(),
            });
        }
        let power = wide(power_of_ten((to - from).cast_unsigned()));
        let wide_type = DataType::Decimal128(38, 0);
        let scaled = Expression::apply(wide_type, Op::Multiply, [&widened(sum), &power], 0);
        let zero = Expression::integer(0);
        let count = Expression::null_if(count, &zero)?;
        let quotient = Expression::apply(wide_type, Op::Divide, [&scaled, &widened(&count)], 0);
        let limit = wide(power_of_ten(precision) - 1);
        let result = Expression::apply(wide_type, Op::Rescale, [&quotient, &wide(1), &limit], 0);
        Ok(sized(&result, average, 0))
    }
}

fn wide(value: i128) -> Expression {
    Expression::constant(DataType::Decimal128(38, 0), Constant::Wide(value))
}

/// No limit at all.
const ANY: i128 = i128::MAX;

/// An integer or float as an integer of fewer bits.
fn narrowed(operand: &Expression, to: DataType, safe: u32) -> Expression {
    Expression::apply(to, Op::ToInteger, [operand], safe)
}

/// An integer or decimal of 64 bits in 128.
fn widened(operand: &Expression) -> Expression {
    match operand.data_type().class() {
        Class::I64 => {
            let (_, scale) = operand.data_type().decimal().unwrap_or((0, 0));
            let to = DataType::Decimal128(38, scale);
            Expression::apply(to, Op::ToDecimal, [operand, &wide(1), &wide(ANY)], 0)
        }
        _ => operand.clone(),
    }
}

/// A decimal of 128 bits in the size of its type.
fn sized(operand: &Expression, to: DataType, safe: u32) -> Expression {
    match to {
        DataType::Decimal64(..) => Expression::apply(to, Op::ToInteger, [operand, &wide(1)], safe),
        _ => operand.retyped(to),
    }
}

/// Precision and scale of a type that is a decimal.
fn parts(data_type: DataType) -> (u8, u8) {
    let (precision, scale) = data_type.decimal().unwrap_or((38, 0));
    (precision, scale.cast_unsigned())
}

fn number_to_decimal(operand: &Expression, to: DataType, safe: u32) -> Expression {
    let (precision, scale) = parts(to);
    let (power, limit) = (wide(power_of_ten(scale)), wide(power_of_ten(precision) - 1));
    Expression::apply(DataType::Decimal128(38, 0), Op::ToDecimal, [operand, &power, &limit], safe)
}

fn float_to_decimal(operand: &Expression, to: DataType, safe: u32) -> Expression {
    let (precision, scale) = parts(to);
    let double = match operand.data_type() {
        DataType::Float32 => Expression::apply(DataType::Float64, Op::ToFloat64, [operand], 0),
        _ => operand.clone(),
    };
    let power = Constant::from(10f64.powi(i32::from(scale)));
    let power = Expression::constant(DataType::Float64, power);
    let limit = wide(power_of_ten(precision) - 1);
    Expression::apply(DataType::Decimal128(38, 0), Op::ToDecimal, [&double, &power, &limit], safe)
}

/// A decimal in another's scale, in 128 bits. The precision is looked at only where a value of the
/// old one may exceed the new one, as Arrow does.
fn rescaled(operand: &Expression, to: DataType, safe: u32) -> Expression {
    let ((p1, s1), (p2, s2)) = (parts(operand.data_type()), parts(to));
    let operand = widened(operand);
    let (delta, down) = (s1.abs_diff(s2), s1 > s2);
    let always_fits = if down { p1 - delta < p2 } else { p1 + delta <= p2 };
    if delta == 0 && always_fits {
        return operand;
    }
    let limit = wide(if always_fits { ANY } else { power_of_ten(p2) - 1 });
    let immediate = safe | if down { flag::DOWN } else { 0 };
    let wide_type = DataType::Decimal128(38, 0);
    Expression::apply(
        wide_type,
        Op::Rescale,
        [&operand, &wide(power_of_ten(delta)), &limit],
        immediate,
    )
}
