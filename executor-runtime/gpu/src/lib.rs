//! What the executor does on a GPU, below the engine.
//!
//! The crate knows neither DataFusion nor Arrow: it takes plain buffers, and its tests build in
//! seconds. The engine's GPU operators stand on it.
//!
//! - [`kernels`]: what runs on the device, and how it is given columns.
//! - [`memory`]: who may have how much of it, and where that is.
//! - [`program`]: expressions for the interpreter kernel.

pub mod kernels;
pub mod memory;
pub mod program;
