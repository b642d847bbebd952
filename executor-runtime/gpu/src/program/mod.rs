//! Expressions as programs of the interpreter kernel (`kernels/expression/evaluate.cu`).
//!
//! ```text
//!   Expression ──compile──▶ Program ──upload once──▶ evaluate(program, columns, outputs, rows)
//!   typed tree              16-byte instructions      a thread: each instruction for four rows
//! ```
//!
//! The constructors of [`Expression`] check types and lower what SQL has to what the kernel has:
//! an hour of a timestamp is a remainder and a quotient, CASE a chain of selections. What they
//! can't is an [`Error`], for the planner to leave that part to the CPU. [`compile()`] shares what
//! occurs twice, and gives temporaries their slots.
//!
//! Results are DataFusion's: integers wrap in `+ - *` and fail in division by zero; decimals fail
//! when 128 (or 64) bits overflow; casts fail, or give null if asked to ([`Failure`]); floats
//! compare in IEEE 754's total order with -0 equal to +0. A row that fails raises its fault only if
//! it reaches an output: not from a branch that CASE doesn't take, nor from the right of a false AND.
//!
//! - [`data_type`]: the types, and how they are worked on.
//! - [`expression`]: building a tree.
//! - [`mod@cast`], [`date_part`]: its larger parts.
//! - [`mod@compile`]: from trees to a program.
//! - [`instruction`]: what the kernel reads.
//! - [`error`]: what can't be done.

pub mod cast;
pub mod compile;
pub mod data_type;
pub mod date_part;
pub mod error;
pub mod expression;
pub mod instruction;

pub use cast::Failure;
pub use compile::{Program, compile};
pub use data_type::{DataType, TimeUnit};
pub use date_part::DatePart;
pub use error::Error;
pub use expression::{Arithmetic, Comparison, Expression, Scalar, Truth};
