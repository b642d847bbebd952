//! Why a part of a plan is not for the GPU.

use std::fmt::{self, Write};

use creel_gpu::program;
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::physical_plan::PhysicalExpr;

/// Why an operator stays on the CPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// An operator of a kind that the GPU doesn't have.
    #[error("there is no GPU form of it")]
    Operator,
    /// An expression that it doesn't compute.
    #[error("{expression} can't run on the GPU: {why}")]
    Expression {
        /// The expression, as DataFusion writes it; its begin if it is long.
        expression: String,
        /// What is wrong with it.
        why: Why,
    },
    /// A column that comes in or goes out, and whose type it doesn't take.
    #[error("its column {column} is {data_type}, which doesn't go to the GPU")]
    Column {
        /// The column's name.
        column: String,
        /// Its type.
        data_type: DataType,
    },
    /// An aggregate that it doesn't compute.
    #[error("{aggregate} can't run on the GPU: {what}")]
    Aggregate {
        /// The aggregate, as DataFusion names it.
        aggregate: String,
        /// What is wrong with it.
        what: WhatOfAggregate,
    },
    /// An aggregate by several sets of keys.
    #[error("grouping sets have no GPU form")]
    GroupingSets,
    /// Its input is sorted by what it groups by, so that it gives groups before it has seen all,
    /// and in that order.
    #[error("it keeps the order of its input, which a GPU's aggregate doesn't")]
    KeepsOrder,
    /// The input is small.
    #[error("{rows} rows come in, and the GPU is for {min_rows} or more (gpu.min_rows)")]
    TooFewRows {
        /// Rows that the scans below it are about to give.
        rows: usize,
        /// The setting `gpu.min_rows`.
        min_rows: usize,
    },
    /// There is nothing to compute, or nothing to compute it of.
    #[error("nothing would be gained on the GPU: {0}")]
    NothingGained(&'static str),
    /// There is no GPU, or none that works.
    #[error("there is no GPU: {0}")]
    NoGpu(String),
    /// The setting `gpu.mode`.
    #[error("gpu.mode is off")]
    Off,
}

/// Why an expression isn't for the GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// The interpreter doesn't have it.
    #[error(transparent)]
    Program(#[from] program::Error),
    /// An expression or function that has no translation.
    #[error("there is no GPU form of it")]
    Kind,
    /// A dynamic filter.
    #[error("it changes while the query runs")]
    Dynamic,
    /// A type that the device doesn't take.
    #[error("its type is {0}, which the GPU doesn't compute")]
    Type(DataType),
    /// It depends on the rules of a time zone.
    #[error("the GPU knows no time zones")]
    TimeZone,
    /// Elsewhere -0 and 0 are equal, here they are not.
    #[error("it tells -0 from 0, which the GPU doesn't")]
    SignedZero,
    /// An IN whose list isn't constant.
    #[error("its list isn't constant")]
    List,
    /// DataFusion itself can't say what it is.
    #[error("its type is unknown: {0}")]
    Unknown(String),
}

/// Why an aggregate isn't for the GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhatOfAggregate {
    /// A function that has no translation.
    #[error("there is no GPU form of {0}")]
    Function(String),
    /// `DISTINCT`.
    #[error("DISTINCT has no GPU form")]
    Distinct,
    /// `ORDER BY` within it.
    #[error("ORDER BY in an aggregate has no GPU form")]
    OrderBy,
    /// Several arguments.
    #[error("it has {0} arguments")]
    Arguments(usize),
    /// A type of its argument, state or result.
    #[error("it works on {0}, which the GPU doesn't")]
    Type(DataType),
    /// DataFusion itself can't say what it is.
    #[error("its state is unknown: {0}")]
    Unknown(String),
}

impl Reason {
    /// That an expression isn't for the GPU.
    pub fn of(expression: &dyn PhysicalExpr, why: impl Into<Why>) -> Self {
        Self::Expression { expression: begin(expression), why: why.into() }
    }

    /// That a column can't go to the GPU.
    pub fn column(field: &Field) -> Self {
        Self::Column { column: field.name().clone(), data_type: field.data_type().clone() }
    }

    /// Whether there is nothing that the GPU could do better.
    pub fn is_idle(&self) -> bool {
        matches!(self, Self::NothingGained(_))
    }

    /// Whether the GPU could run it, and isn't asked to since that would be slower.
    pub fn is_choice(&self) -> bool {
        self.is_idle() || matches!(self, Self::TooFewRows { .. })
    }
}

/// Characters of a text that are shown of it.
const SHOWN: usize = 200;

/// The begin of a text; all of it if it isn't long.
pub fn begin(text: impl fmt::Display) -> String {
    let mut begin = Begin { text: String::new(), left: SHOWN };
    // It fails where there is more than is shown; the rest is not even made.
    if write!(begin, "{text}").is_err() {
        begin.text.push('…');
    }
    begin.text
}

struct Begin {
    text: String,
    left: usize,
}

impl Write for Begin {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let all = part.chars().count();
        self.text.extend(part.chars().take(self.left));
        self.left = self.left.checked_sub(all).ok_or(fmt::Error)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_begin_of_a_long_text_is_shown() {
        assert_eq!(begin("x > 1"), "x > 1");
        let long = begin("é".repeat(1000));
        assert_eq!(long.chars().count(), SHOWN + 1);
        assert!(long.ends_with("é…"), "{long}");
    }
}
