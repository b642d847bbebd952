//! What can't be made a program.

use super::DataType;

/// Why an expression or program can't be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An operation on types that it doesn't take.
    #[error("{operation} doesn't take {left} and {right} on the GPU")]
    Operands {
        /// The operation.
        operation: String,
        /// The type of its left operand.
        left: DataType,
        /// The type of its right operand.
        right: DataType,
    },
    /// An operation on a type that it doesn't take.
    #[error("{operation} doesn't take {operand} on the GPU")]
    Operand {
        /// The operation.
        operation: String,
        /// The type of its operand.
        operand: DataType,
    },
    /// A cast that isn't supported.
    #[error("a cast from {from} to {to} isn't supported on the GPU")]
    Cast {
        /// The type of the value.
        from: DataType,
        /// The type asked for.
        to: DataType,
    },
    /// A decimal type whose precision or scale the kernels don't take, or no decimal type at all.
    #[error("{0} isn't supported on the GPU: its scale must be from 0 to its precision")]
    Decimal(DataType),
    /// The result's scale would be larger than any decimal's.
    #[error("{operation} of {left} and {right} has a scale that no decimal has")]
    Scale {
        /// The operation.
        operation: &'static str,
        /// The type of its left operand.
        left: DataType,
        /// The type of its right operand.
        right: DataType,
    },
    /// More intermediate results at once than the interpreter has room for.
    #[error(
        "the expressions need more intermediate results at once than the GPU's interpreter holds; \
         evaluate fewer of them at once"
    )]
    Temporaries,
    /// A tree with more levels than compiling it may take stack for.
    #[error("an expression is more than {limit} levels deep; the GPU doesn't evaluate it")]
    Depth {
        /// How many there may be.
        limit: u32,
    },
    /// More columns or constants than an operand can name.
    #[error("the expressions have more than {limit} {what}; evaluate fewer of them at once")]
    Many {
        /// Columns or constants.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
}
