//! Types of values, and how the interpreter works on them.

use std::fmt;

use crate::kernels::column::Layout;

/// A type, as Arrow has it. Time zones are not known here: a timestamp is its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    /// True and false.
    Bool,
    /// Signed, 8 bits.
    Int8,
    /// Signed, 16 bits.
    Int16,
    /// Signed, 32 bits.
    Int32,
    /// Signed, 64 bits.
    Int64,
    /// Single precision.
    Float32,
    /// Double precision.
    Float64,
    /// Days since 1970-01-01.
    Date32,
    /// Time since 1970-01-01, in 64 bits.
    Timestamp(TimeUnit),
    /// Precision and scale; in 64 bits.
    Decimal64(u8, i8),
    /// Precision and scale; in 128 bits.
    Decimal128(u8, i8),
    /// A string: plain, or by a dictionary of strings.
    Utf8,
}

/// What a timestamp counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeUnit {
    /// Seconds.
    Second,
    /// 10⁻³ s.
    Millisecond,
    /// 10⁻⁶ s.
    Microsecond,
    /// 10⁻⁹ s.
    Nanosecond,
}

impl TimeUnit {
    /// How many make a second.
    pub fn per_second(self) -> i64 {
        match self {
            TimeUnit::Second => 1,
            TimeUnit::Millisecond => 1_000,
            TimeUnit::Microsecond => 1_000_000,
            TimeUnit::Nanosecond => 1_000_000_000,
        }
    }

    /// How many make a day of 24 hours.
    pub fn per_day(self) -> i64 {
        self.per_second() * 86_400
    }
}

/// What values are while they are worked on (`Type` of the kernel).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// A bit.
    Bool = 0,
    /// 64 bits; narrower integers, dates, timestamps and decimals of 64 bits too.
    I64,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// 128 bits: decimals.
    I128,
    /// A string's address and length.
    Text,
}

impl Class {
    /// 8-byte words of a temporary's value; a Bool has none.
    pub fn words(self) -> usize {
        match self {
            Class::Bool => 0,
            Class::I64 | Class::F32 | Class::F64 => 1,
            Class::I128 | Class::Text => 2,
        }
    }
}

impl DataType {
    /// How values of the type are worked on.
    pub fn class(self) -> Class {
        match self {
            DataType::Bool => Class::Bool,
            DataType::Float32 => Class::F32,
            DataType::Float64 => Class::F64,
            DataType::Decimal128(..) => Class::I128,
            DataType::Utf8 => Class::Text,
            _ => Class::I64,
        }
    }

    /// How a result of the type is written.
    pub fn layout(self) -> Layout {
        match self {
            DataType::Bool => Layout::Bool,
            DataType::Int8 => Layout::I8,
            DataType::Int16 => Layout::I16,
            DataType::Int32 | DataType::Date32 => Layout::I32,
            DataType::Int64 | DataType::Timestamp(_) | DataType::Decimal64(..) => Layout::I64,
            DataType::Float32 => Layout::F32,
            DataType::Float64 => Layout::F64,
            DataType::Decimal128(..) => Layout::I128,
            DataType::Utf8 => Layout::Text,
        }
    }

    /// Whether it is Int8 to Int64.
    pub fn is_integer(self) -> bool {
        matches!(self, DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64)
    }

    /// Whether it is Float32 or Float64.
    pub fn is_float(self) -> bool {
        matches!(self, DataType::Float32 | DataType::Float64)
    }

    /// Precision and scale of a decimal.
    pub fn decimal(self) -> Option<(u8, i8)> {
        match self {
            DataType::Decimal64(precision, scale) | DataType::Decimal128(precision, scale) => {
                Some((precision, scale))
            }
            _ => None,
        }
    }

    /// Bits of a value of class I64.
    pub(super) fn bits(self) -> u8 {
        match self {
            DataType::Int8 => 8,
            DataType::Int16 => 16,
            DataType::Int32 | DataType::Date32 => 32,
            _ => 64,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataType::Bool => to.write_str("Boolean"),
            DataType::Decimal64(precision, scale) => write!(to, "Decimal64({precision}, {scale})"),
            DataType::Decimal128(precision, scale) => {
                write!(to, "Decimal128({precision}, {scale})")
            }
            DataType::Timestamp(unit) => write!(to, "Timestamp({unit:?})"),
            other => write!(to, "{other:?}"),
        }
    }
}
