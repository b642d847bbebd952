//! What an operator computes of its input's columns.

use creel_gpu::program::Program;
use datafusion::arrow::datatypes::{DataType, SchemaRef};

/// Columns, each taken as it is or computed by a program of the interpreter kernel.
#[derive(Clone, Debug)]
pub struct Computation {
    /// Programs, each of which is one launch. More than one where one doesn't hold them all.
    pub passes: Vec<Pass>,
    /// The columns that come of it, in order.
    pub outputs: Vec<Output>,
}

/// A program, and the columns that it reads.
#[derive(Clone, Debug)]
pub struct Pass {
    /// What is computed. Its column `n` is the input's column `columns[n]`.
    pub program: Program,
    /// Columns of the input, by their place.
    pub columns: Vec<usize>,
}

/// A column that comes of a computation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A column of the input, by its place.
    Input(usize),
    /// A result of a program.
    Computed {
        /// The place of its pass.
        pass: usize,
        /// Which of the program's outputs.
        output: usize,
        /// Its type, as Arrow has it.
        data_type: DataType,
    },
}

impl Output {
    /// The column of the input that it is, if it is one.
    pub fn input(&self) -> Option<usize> {
        match self {
            Self::Input(place) => Some(*place),
            Self::Computed { .. } => None,
        }
    }
}

impl Computation {
    /// The columns of the input that it needs, by their places; some more than once.
    pub fn reads(&self) -> impl Iterator<Item = usize> {
        let programs = self.passes.iter().flat_map(|pass| pass.columns.iter().copied());
        programs.chain(self.outputs.iter().filter_map(Output::input))
    }
}

/// What a grouping computes.
///
/// ```text
///   input ──▶ keys, arguments ──▶ keys, states ──▶ output
///             `arguments`          `states`         `results`
/// ```
#[derive(Clone, Debug)]
pub struct Aggregation {
    /// From the input's columns to keys, then arguments.
    pub arguments: Computation,
    /// How many of these are keys; without any, all rows are one group.
    pub keys: usize,
    /// What is kept of each group.
    pub states: Vec<State>,
    /// Keys, then states, as columns: what `Partial` gives, and `results` takes.
    pub schema: SchemaRef,
    /// From keys and states to the output; absent where states are the output.
    pub results: Option<Computation>,
}

/// What is kept of each group.
#[derive(Clone, Debug)]
pub struct State {
    /// Its argument, by the place among keys and arguments; absent where rows are counted.
    pub argument: Option<usize>,
    /// What is done with arguments.
    pub operation: Operation,
    /// What is done with states of parts, to have that of the whole.
    pub merge: Operation,
}

/// How values of a group become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// How many aren't null; never null itself.
    Count,
    /// The sum of counts; 0 where there is none.
    SumOfCounts,
    /// The sum, in the type of the state: integers wrap.
    Sum,
    /// The least.
    Min,
    /// The largest.
    Max,
}
