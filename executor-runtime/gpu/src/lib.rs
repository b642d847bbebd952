//! What the executor does on a GPU, below the engine.
//!
//! The crate knows neither DataFusion nor Arrow: it takes plain buffers, and its tests build in
//! seconds. The engine's GPU operators stand on it.
//!
//! ```text
//!   operators of the engine
//!        │ expressions          │ columns
//!        ▼                      ▼
//!     program ─────────▶ primitives ─────▶ kernels (PTX)
//!                               │
//!                             device ────▶ libcuda.so.1, at run time
//! ```
//!
//! - [`device`]: the driver: contexts, streams, events, copies, launches.
//! - [`kernels`]: what runs on the device, and how it is given columns.
//! - [`memory`]: who may have how much of it, and where that is.
//! - [`primitives`]: the kernels, with what they take.
//! - [`program`]: expressions for the interpreter kernel.

pub mod device;
pub mod kernels;
pub mod memory;
pub mod primitives;
pub mod program;
