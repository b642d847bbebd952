//! Building an expression: every constructor checks its operands and says the type of its result.

use std::fmt;
use std::sync::Arc;

use super::data_type::Class;
use super::instruction::{Op, flag, relation, state};
use super::{DataType, Error};

/// A value that is the same for all rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    /// No value, of a type.
    Null(DataType),
    /// True or false.
    Bool(bool),
    /// An integer, date, timestamp or decimal of 64 bits, as the number that it is stored as.
    Integer(i64, DataType),
    /// Single precision.
    Float32(f32),
    /// Double precision.
    Float64(f64),
    /// The unscaled value, precision and scale.
    Decimal128(i128, u8, i8),
    /// A string.
    Utf8(String),
}

impl Scalar {
    /// Its type.
    pub fn data_type(&self) -> DataType {
        match self {
            Scalar::Null(data_type) | Scalar::Integer(_, data_type) => *data_type,
            Scalar::Bool(_) => DataType::Bool,
            Scalar::Float32(_) => DataType::Float32,
            Scalar::Float64(_) => DataType::Float64,
            Scalar::Decimal128(_, precision, scale) => DataType::Decimal128(*precision, *scale),
            Scalar::Utf8(_) => DataType::Utf8,
        }
    }

    fn constant(&self) -> Option<Constant> {
        Some(match self {
            Scalar::Null(_) => return None,
            Scalar::Bool(value) => Constant::Wide(i128::from(*value)),
            Scalar::Integer(value, _) => Constant::Wide(i128::from(*value)),
            Scalar::Float32(value) => Constant::Wide(i128::from(value.to_bits())),
            Scalar::Float64(value) => Constant::Wide(i128::from(value.to_bits())),
            Scalar::Decimal128(value, ..) => Constant::Wide(*value),
            Scalar::Utf8(value) => Constant::Text(value.as_str().into()),
        })
    }
}

/// `+ - * / %`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `%`
    Remainder,
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Arithmetic::Add => "+",
            Arithmetic::Subtract => "-",
            Arithmetic::Multiply => "*",
            Arithmetic::Divide => "/",
            Arithmetic::Remainder => "%",
        })
    }
}

/// `= <> < <= > >=` and their null-safe kin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `<>`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `IS DISTINCT FROM`
    Distinct,
    /// `IS NOT DISTINCT FROM`
    NotDistinct,
}

impl Comparison {
    fn relations(self) -> u32 {
        match self {
            Comparison::Equal => relation::EQUAL,
            Comparison::NotEqual => relation::LESS | relation::GREATER,
            Comparison::Less => relation::LESS,
            Comparison::LessOrEqual => relation::LESS | relation::EQUAL,
            Comparison::Greater => relation::GREATER,
            Comparison::GreaterOrEqual => relation::GREATER | relation::EQUAL,
            Comparison::Distinct => relation::LESS | relation::GREATER | relation::NULL_SAFE,
            Comparison::NotDistinct => relation::EQUAL | relation::NULL_SAFE,
        }
    }
}

/// What `IS` and `IS NOT` ask for. The answer is never null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// `IS TRUE`
    True,
    /// `IS FALSE`
    False,
    /// `IS UNKNOWN`
    Unknown,
    /// `IS NOT TRUE`
    NotTrue,
    /// `IS NOT FALSE`
    NotFalse,
    /// `IS NOT UNKNOWN`
    NotUnknown,
}

/// A typed tree. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Expression {
    data_type: DataType,
    node: Arc<Node>,
    depth: u32,
}

/// The bits of a constant, or a string.
#[derive(Clone, Debug)]
pub(super) enum Constant {
    Wide(i128),
    Text(Arc<str>),
}

impl From<f64> for Constant {
    fn from(value: f64) -> Self {
        Constant::Wide(i128::from(value.to_bits()))
    }
}

/// What the compiler sees: columns, constants, and what instructions do with them.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Column(u16),
    Constant(Constant),
    Null,
    Apply {
        op: Op,
        class: Class,
        result: Class,
        bits: u8,
        operands: Vec<Expression>,
        immediate: u32,
    },
    In {
        class: Class,
        operand: Expression,
        list: Vec<Constant>,
        has_null: bool,
    },
}

impl Expression {
    /// A column of the input, by its number.
    pub fn column(number: u16, data_type: DataType) -> Result<Self, Error> {
        if usize::from(number) >= super::instruction::OPERANDS {
            return Err(Error::Many { what: "columns", limit: super::instruction::OPERANDS });
        }
        Ok(Expression::new(checked(data_type)?, Node::Column(number)))
    }

    /// The same value for all rows.
    pub fn literal(scalar: &Scalar) -> Result<Self, Error> {
        let node = scalar.constant().map_or(Node::Null, Node::Constant);
        Ok(Expression::new(checked(scalar.data_type())?, node))
    }

    /// The type of its values.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    fn new(data_type: DataType, node: Node) -> Self {
        let below = match &node {
            Node::Column(_) | Node::Constant(_) | Node::Null => 0,
            Node::Apply { operands, .. } => {
                operands.iter().map(|operand| operand.depth).max().unwrap_or(0)
            }
            Node::In { operand, .. } => operand.depth,
        };
        Expression { data_type, node: Arc::new(node), depth: below + 1 }
    }

    /// An instruction's result, of the operands' own class.
    pub(super) fn apply<const N: usize>(
        data_type: DataType,
        op: Op,
        operands: [&Expression; N],
        immediate: u32,
    ) -> Self {
        let class = operands[0].data_type.class();
        let bits = if data_type.class() == Class::I64 { data_type.bits() } else { 0 };
        let operands = operands.into_iter().cloned().collect();
        let result = data_type.class();
        Expression::new(data_type, Node::Apply { op, class, result, bits, operands, immediate })
    }

    /// The same number, read as another type of the same class.
    pub(super) fn retyped(&self, data_type: DataType) -> Self {
        debug_assert_eq!(self.data_type.class(), data_type.class());
        Expression { data_type, ..self.clone() }
    }

    pub(super) fn constant(data_type: DataType, constant: Constant) -> Self {
        Expression::new(data_type, Node::Constant(constant))
    }

    pub(super) fn integer(value: i64) -> Self {
        Expression::constant(DataType::Int64, Constant::Wide(i128::from(value)))
    }

    /// `left operator right`, as DataFusion computes it: operands have one type, but decimals may
    /// differ in precision and scale. The result's type is Arrow's.
    pub fn arithmetic(operator: Arithmetic, left: &Self, right: &Self) -> Result<Self, Error> {
        let op = match operator {
            Arithmetic::Add => Op::Add,
            Arithmetic::Subtract => Op::Subtract,
            Arithmetic::Multiply => Op::Multiply,
            Arithmetic::Divide => Op::Divide,
            Arithmetic::Remainder => Op::Remainder,
        };
        match (left.data_type, right.data_type) {
            (a, b) if a == b && (a.is_integer() || a.is_float()) => {
                Ok(Expression::apply(a, op, [left, right], 0))
            }
            (DataType::Decimal64(..), DataType::Decimal64(..))
            | (DataType::Decimal128(..), DataType::Decimal128(..)) => {
                decimal_arithmetic(operator, op, left, right)
            }
            (a, b) => Err(Error::Operands { operation: operator.to_string(), left: a, right: b }),
        }
    }

    /// `-operand`; integers wrap.
    pub fn negate(operand: &Self) -> Result<Self, Error> {
        match operand.data_type {
            DataType::Decimal64(..) => {
                Ok(Expression::apply(operand.data_type, Op::Negate, [operand], flag::CHECKED))
            }
            it if it.is_integer() || it.is_float() || it.decimal().is_some() => {
                Ok(Expression::apply(it, Op::Negate, [operand], 0))
            }
            other => Err(Error::Operand { operation: "-".to_owned(), operand: other }),
        }
    }

    /// `left comparison right`, of one type.
    pub fn compare(comparison: Comparison, left: &Self, right: &Self) -> Result<Self, Error> {
        let same = match (left.data_type.decimal(), right.data_type.decimal()) {
            (Some((_, a)), Some((_, b))) => {
                a == b && left.data_type.class() == right.data_type.class()
            }
            _ => left.data_type == right.data_type,
        };
        if !same {
            return Err(Error::Operands {
                operation: format!("{comparison:?}"),
                left: left.data_type,
                right: right.data_type,
            });
        }
        let relations = comparison.relations();
        Ok(Expression::apply(DataType::Bool, Op::Compare, [left, right], relations))
    }

    /// `left AND right`.
    pub fn and(left: &Self, right: &Self) -> Result<Self, Error> {
        Expression::logic(Op::And, left, right)
    }

    /// `left OR right`.
    pub fn or(left: &Self, right: &Self) -> Result<Self, Error> {
        Expression::logic(Op::Or, left, right)
    }

    fn logic(op: Op, left: &Self, right: &Self) -> Result<Self, Error> {
        if left.data_type != DataType::Bool || right.data_type != DataType::Bool {
            let operation = format!("{op:?}").to_uppercase();
            return Err(Error::Operands {
                operation,
                left: left.data_type,
                right: right.data_type,
            });
        }
        Ok(Expression::apply(DataType::Bool, op, [left, right], 0))
    }

    /// `NOT operand`.
    pub fn not(operand: &Self) -> Result<Self, Error> {
        if operand.data_type != DataType::Bool {
            let operation = "NOT".to_owned();
            return Err(Error::Operand { operation, operand: operand.data_type });
        }
        Ok(Expression::apply(DataType::Bool, Op::Not, [operand], 0))
    }

    /// `operand IS …`.
    pub fn is(operand: &Self, truth: Truth) -> Result<Self, Error> {
        if operand.data_type != DataType::Bool {
            let operation = format!("IS {truth:?}");
            return Err(Error::Operand { operation, operand: operand.data_type });
        }
        let states = match truth {
            Truth::True => state::TRUE,
            Truth::False => state::FALSE,
            Truth::Unknown => state::NULL,
            Truth::NotTrue => state::FALSE | state::NULL,
            Truth::NotFalse => state::TRUE | state::NULL,
            Truth::NotUnknown => state::TRUE | state::FALSE,
        };
        Ok(Expression::apply(DataType::Bool, Op::Test, [operand], states))
    }

    /// `operand IS NULL`, of any type.
    #[must_use]
    pub fn is_null(operand: &Self) -> Self {
        Expression::apply(DataType::Bool, Op::Test, [operand], state::NULL)
    }

    /// `operand IS NOT NULL`, of any type.
    #[must_use]
    pub fn is_not_null(operand: &Self) -> Self {
        Expression::apply(DataType::Bool, Op::Test, [operand], state::TRUE | state::FALSE)
    }

    /// `operand IN (list)`: null if it isn't in it and the list has a null.
    pub fn in_list(operand: &Self, list: &[Scalar]) -> Result<Self, Error> {
        if let Some(other) = list.iter().find(|it| it.data_type() != operand.data_type) {
            return Err(Error::Operands {
                operation: "IN".to_owned(),
                left: operand.data_type,
                right: other.data_type(),
            });
        }
        let class = operand.data_type.class();
        if class == Class::Bool {
            let operation = "IN".to_owned();
            return Err(Error::Operand { operation, operand: operand.data_type });
        }
        let constants: Vec<Constant> = list.iter().filter_map(Scalar::constant).collect();
        let has_null = constants.len() < list.len();
        let operand = operand.clone();
        Ok(Expression::new(DataType::Bool, Node::In { class, operand, list: constants, has_null }))
    }

    /// `CASE WHEN … THEN … ELSE otherwise END`: values have one type. Without ELSE, null.
    pub fn case(branches: &[(Self, Self)], otherwise: Option<&Self>) -> Result<Self, Error> {
        let data_type = branches.first().map(|(_, value)| value).or(otherwise);
        let data_type = data_type.map_or(DataType::Bool, |value| value.data_type);
        let mut result = match otherwise {
            Some(value) => value.clone(),
            None => Expression::new(data_type, Node::Null),
        };
        for (condition, value) in branches.iter().rev() {
            if condition.data_type != DataType::Bool {
                let operation = "CASE WHEN".to_owned();
                return Err(Error::Operand { operation, operand: condition.data_type });
            }
            if value.data_type != data_type || result.data_type != data_type {
                return Err(Error::Operands {
                    operation: "CASE".to_owned(),
                    left: value.data_type,
                    right: result.data_type,
                });
            }
            result = Expression::apply(data_type, Op::Select, [value, &result, condition], 0);
        }
        Ok(result)
    }

    /// The first of the values that isn't null.
    pub fn coalesce(values: &[Self]) -> Result<Self, Error> {
        let Some((last, others)) = values.split_last() else {
            return Err(Error::Operand {
                operation: "COALESCE".to_owned(),
                operand: DataType::Bool,
            });
        };
        let branches: Vec<_> =
            others.iter().map(|it| (Expression::is_not_null(it), it.clone())).collect();
        Expression::case(&branches, Some(last))
    }

    /// `left`, but null where it equals `right`.
    pub fn null_if(left: &Self, right: &Self) -> Result<Self, Error> {
        let equal = Expression::compare(Comparison::Equal, left, right)?;
        let null = Expression::new(left.data_type, Node::Null);
        Expression::case(&[(equal, null)], Some(left))
    }
}

/// The type, if the kernels take it.
pub(super) fn checked(data_type: DataType) -> Result<DataType, Error> {
    let most = if matches!(data_type, DataType::Decimal64(..)) { 18 } else { 38 };
    match data_type.decimal() {
        Some((precision, scale))
            if precision == 0
                || precision > most
                || scale < 0
                || scale.cast_unsigned() > precision =>
        {
            Err(Error::Decimal(data_type))
        }
        _ => Ok(data_type),
    }
}

/// A power of ten, for the scale of a decimal.
pub(super) fn power_of_ten(exponent: u8) -> i128 {
    10i128.pow(u32::from(exponent))
}

/// Arrow's rules: scales are made alike by multiplication, and the result's type follows Hive's.
fn decimal_arithmetic(
    operator: Arithmetic,
    op: Op,
    left: &Expression,
    right: &Expression,
) -> Result<Expression, Error> {
    let (Some((p1, s1)), Some((p2, s2))) = (left.data_type.decimal(), right.data_type.decimal())
    else {
        return Err(Error::Operands {
            operation: operator.to_string(),
            left: left.data_type,
            right: right.data_type,
        });
    };
    let is_64 = matches!(left.data_type, DataType::Decimal64(..));
    let most = if is_64 { 18 } else { 38 };
    let (i1, i2) = (i16::from(p1) - i16::from(s1), i16::from(p2) - i16::from(s2));
    let (s1, s2) = (i16::from(s1), i16::from(s2));
    let scale = s1.max(s2);
    let (precision, scale, left_power, right_power) = match operator {
        Arithmetic::Add | Arithmetic::Subtract => {
            (scale + i1.max(i2) + 1, scale, scale - s1, scale - s2)
        }
        Arithmetic::Multiply => (i16::from(p1) + i16::from(p2) + 1, s1 + s2, 0, 0),
        Arithmetic::Divide => {
            let scale = (s1 + 4).min(most);
            let power = scale - s1 + s2;
            (power + i16::from(p1), scale, power.max(0), (-power).max(0))
        }
        Arithmetic::Remainder => (scale + i1.min(i2), scale, scale - s1, scale - s2),
    };
    if scale > most {
        let (left, right) = (left.data_type, right.data_type);
        return Err(Error::Scale { operation: "multiplication", left, right });
    }
    let precision = precision.min(most);
    let (precision, scale) = (precision as u8, scale as i8);
    let data_type = if is_64 {
        DataType::Decimal64(precision, scale)
    } else {
        DataType::Decimal128(precision, scale)
    };
    // Arrow scales only rows where both are values, so an overflow beside a null isn't one.
    let scaled = |operand: &Expression, precision: u8, power: i16, other: &Expression| {
        if power == 0 {
            return Ok(operand.clone());
        }
        if power > most {
            return Err(Error::Scale {
                operation: "division",
                left: left.data_type,
                right: right.data_type,
            });
        }
        let operand = if i16::from(precision) + power <= most {
            operand.clone()
        } else {
            Expression::case(&[(Expression::is_not_null(other), operand.clone())], None)?
        };
        let factor = Constant::Wide(power_of_ten(power as u8));
        let factor = Expression::constant(operand.data_type, factor);
        let operands = [&operand, &factor];
        Ok(Expression::apply(operand.data_type, Op::Multiply, operands, flag::CHECKED))
    };
    let operands = [&scaled(left, p1, left_power, right)?, &scaled(right, p2, right_power, left)?];
    Ok(Expression::apply(data_type, op, operands, flag::CHECKED))
}
