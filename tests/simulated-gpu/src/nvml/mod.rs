//! The C functions of NVML (`nvml.h`), over a simulated node.
//!
//! Each does as the driver's does: it refuses to work before `nvmlInit`, with a handle that it
//! didn't give, a null pointer, a buffer that is too small, or a struct of a version that it
//! doesn't know, and it says `NOT_SUPPORTED` of what the model doesn't have.
//!
//! - `session`: from `nvmlInit` to `nvmlShutdown`, faults, handles.
//! - `system`: driver, versions, error texts.
//! - `device`: GPUs.
//! - `link`: `NVLink`.
//! - `mig`: MIG slices.
//! - `event`: event sets.

mod device;
mod event;
mod link;
mod mig;
mod output;
mod session;
mod system;
