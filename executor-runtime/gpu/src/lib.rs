//! What the executor does on a GPU, below the engine.
//!
//! The crate knows neither DataFusion nor Arrow: it takes plain buffers, and its tests build in
//! seconds. The engine's GPU operators stand on it.
//!
//! - [`kernels`]: what runs on the device, and how it is given columns.
//! - [`program`]: expressions for the interpreter kernel.

pub mod kernels;
pub mod program;
