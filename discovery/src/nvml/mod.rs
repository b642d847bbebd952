//! Reading NVML.
//!
//! - `kernel`: what is known without it.
//! - `library`: finding and starting it.
//! - `reader`: what it knows, as an [`Inventory`](crate::Inventory).
//! - `watch`: what it reports as it happens.
//! - `raw`: the few calls that `nvml-wrapper` lacks, and the only unsafe code.

mod kernel;
mod library;
mod raw;
mod reader;
mod watch;

pub use library::LIBRARIES;
pub use reader::read;
pub use watch::{Unwatched, watch};
