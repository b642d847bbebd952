//! A test double of the CUDA driver: `libcuda.so.1` of a simulated node.
//!
//! ```text
//!   the product ── cudarc ──▶ cu… functions (`api`)
//!                               │ refused as the driver refuses, faults of the node (`driver`)
//!        ┌──────────────────────┼──────────────────────┐
//!        ▼                      ▼                      ▼
//!   contexts, streams      allocations           modules: PTX text (`ptx`)
//!   and events: a worker   and pools (`memory`,  and its kernels, built by
//!   for each stream        `pool`): address      g++ (`compile`, `kernels`)
//!   (`stream`, `event`)    space, poison              │
//!        │                      │                     ▼
//!        └── memory in use ─────┴──▶ DIR/state   fibers (`shim/runtime.cpp`)
//! ```
//!
//! - `api`: the C functions.
//! - `driver`: what a process has of the driver, from `cuInit` on; what all calls go through.
//! - `device`: the devices that a process sees, and their attributes.
//! - `context`: contexts, and which is current on a thread.
//! - `stream`, `event`: work in order, done by a thread of the stream when it likes.
//! - `memory`, `pool`: device and pinned memory.
//! - `ptx`, `kernels`, `module`: what is in a module, and the host's code for it.
//! - [`compile`]: makes the host's code of `.cu` files.
//! - [`harness`]: for tests that use the driver.
//! - `log`: the calls, for tests to read.

#![allow(unsafe_code)]
#![allow(clippy::cast_possible_wrap, reason = "counts and sizes of devices are ints in C")]

mod api;
pub mod compile;
mod context;
mod device;
mod driver;
mod event;
pub mod harness;
mod kernels;
mod log;
mod memory;
mod module;
mod pool;
mod ptx;
mod stream;
mod table;
