//! What the executor does on a GPU, below the engine.
//!
//! The crate knows neither DataFusion nor Arrow: it takes plain buffers, and its tests build in
//! seconds. The engine's GPU operators stand on it.
