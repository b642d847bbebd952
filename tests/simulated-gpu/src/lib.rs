//! A test double of NVIDIA's driver libraries: a node with GPUs, where there is none.
//!
//! The product knows nothing of this crate. It loads `libnvidia-ml.so.1` and `libcuda.so.1` as on
//! any node, and with the `lib` directory of a *simulated node* on `LD_LIBRARY_PATH`, this is what
//! it gets. (The CUDA driver is a crate of its own, `cuda/`, over this one.)
//!
//! ```text
//!   simulated-gpu prepare ──writes──▶ DIR/topology.toml   what the node has
//!                                     DIR/faults.toml     what is wrong with it  ◀── simulated-gpu fault
//!                                     DIR/state           what happens on it     ◀── simulated-gpu use, xid
//!                                     DIR/lib/libnvidia-ml.so.1, libcuda.so.1
//!                                          ▲ dlopen
//!   any program with LD_LIBRARY_PATH=DIR/lib
//! ```
//!
//! A library finds its node by its own path (`DIR/lib/..`), or by [`node::DIR_VARIABLE`], so a
//! process needs nothing but `LD_LIBRARY_PATH`. All processes of a node share its state.
//!
//! - [`spec`]: the short form of a node, `h200:2,mig=1x3g.71gb`.
//! - [`topology`]: the long form, a TOML file, and what both come to.
//! - [`model`]: the constants of the GPU models.
//! - [`mig`]: which MIG slices fit on a GPU.
//! - [`fault`]: what can be wrong, from the start or from now on.
//! - [`state`]: the memory in use and the events, shared by all processes of a node.
//! - [`node`]: a node's directory.
//! - [`code`]: NVML's return codes.
//! - [`cuda_code`]: the CUDA driver's.
//! - [`error`]: what is wrong with a description of a node.
//! - `nvml`: the C functions.

#![allow(unsafe_code)]

pub mod code;
pub mod cuda_code;
pub mod error;
pub mod fault;
pub mod mig;
pub mod model;
pub mod node;
mod nvml;
pub mod spec;
pub mod state;
pub mod topology;

pub use code::Code;
pub use cuda_code::CudaCode;
pub use error::Error;
pub use fault::{Action, Fault};
pub use node::Node;
pub use topology::Topology;
