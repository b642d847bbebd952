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
//! equivalences) it has: the planner replaces node for node. What lies between an upload and a
//! download is a region.
//!
//! - [`node`]: what they have in common as nodes of a plan; [`stream`]: how batches go from one to
//!   the other.
//! - [`computation`]: what they compute.
//! - [`upload`], [`filter`], [`project`], [`aggregate`], [`download`]: the operators.
//! - [`metrics`]: what EXPLAIN ANALYZE says of them.

pub mod aggregate;
pub mod computation;
pub mod download;
pub mod filter;
pub mod metrics;
pub mod node;
pub mod project;
pub mod stream;
#[cfg(test)]
mod tests;
pub mod upload;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::ReplaceChildrenOptions;
use datafusion::physical_plan::execution_plan::ChildrenPropertiesMode;

pub use aggregate::GpuHashAggregateExec;
pub use download::GpuDownloadExec;
pub use filter::GpuFilterExec;
pub use node::GpuNode;
pub use project::GpuProjectExec;
pub use upload::GpuUploadExec;

const RECOMPUTE: ReplaceChildrenOptions =
    ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);

/// The plan's root, if its batches are on the device.
pub fn gpu_node(plan: &dyn ExecutionPlan) -> Option<&dyn GpuNode> {
    macro_rules! first_of {
        ($($node:ty),*) => {
            $(if let Some(node) = plan.downcast_ref::<$node>() { return Some(node); })*
        };
    }
    first_of!(GpuUploadExec, GpuFilterExec, GpuProjectExec, GpuHashAggregateExec);
    None
}

/// Whether the batches of the plan's root are on the device.
pub fn is_gpu(plan: &dyn ExecutionPlan) -> bool {
    gpu_node(plan).is_some()
}
