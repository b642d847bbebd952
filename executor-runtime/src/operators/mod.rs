//! Physical operators that run on the GPU.
//!
//! ```text
//!   GpuDownloadExec ── batches of the host again
//!     GpuHashAggregateExec
//!       GpuProjectExec          batches stay on the device between them
//!         GpuFilterExec
//!           GpuUploadExec ── small batches are put together, and go to the device
//!             DataSourceExec
//! ```
//!
//! Each stands where an operator of DataFusion stood, whose properties (order, partitioning,
//! equivalences) it has: the planner replaces node for node.

pub mod computation;
