//! The node's NVIDIA GPUs, as NVML knows them.
//!
//! ```text
//!   caller ──▶ creel-discovery ──▶ creel-discovery --in-process ──dlopen──▶ libnvidia-ml.so.1
//!              waits no longer      reads (nvml), prints (format)              │ ioctl
//!              than its deadline                                           kernel driver
//! ```
//!
//! A call into NVML can hang in the kernel for good, and a process with such a thread can't end,
//! nor give back the pipes that it holds. So nobody reads NVML in a process that somebody waits
//! for: a child does, whose pipes lead to the parent alone, and which the parent leaves behind at
//! the [`deadline`]. A daemon runs the `creel-discovery` binary and reads its answer with
//! [`Inventory::from_json`].
//!
//! What the driver doesn't know is absent (`null`), not zero. What it fails to say is a
//! [`Problem`] of the one GPU, and hides no other.
//!
//! - [`inventory`]: what there is to know; the types are the JSON format.
//! - [`nvml`]: reading it.
//! - [`health`]: which errors make a GPU unfit for use.
//! - [`event`]: errors as they happen (Xid).
//! - [`mod@format`]: Spark's, YARN's and people's formats.
//! - [`snapshot`]: the inventory in a file, for those who can't wait.
//! - [`nvidia_smi`]: answering from it in nvidia-smi's place.
//! - [`agent`]: asking the node's agent what a container holds.
//! - [`device_group`]: which GPUs a control group denies.
//! - [`deadline`]: running a child process that may never end.
//! - [`error`]: what can go wrong.

pub mod agent;
pub mod deadline;
pub mod device_group;
pub mod error;
pub mod event;
pub mod format;
pub mod health;
pub mod inventory;
pub mod nvidia_smi;
pub mod nvml;
pub mod snapshot;

pub use error::Error;
pub use format::{Address, Format};
pub use health::{Health, HealthState};
pub use inventory::{Gpu, Inventory, Problem, Slice, Unit};
pub use snapshot::Snapshot;
