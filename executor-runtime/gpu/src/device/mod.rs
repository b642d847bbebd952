//! The CUDA driver, as far as the executor uses it, and the only unsafe code of the crate.
//!
//! ```text
//!   Driver ── is there one, is it new enough
//!     └── Device ── by UUID, MIG slices too
//!           └── Context ── the device's primary context, its modules and kernels
//!                 ├── Stream ── work in order: copies, fills, launches
//!                 │     ├── Event ── a point in it, with its time
//!                 │     └── Copier ── copies of any length, through slabs of pinned memory
//!                 ├── PinnedMemory ── host memory that copies overlap with kernels
//!                 ├── DeviceUpstream ── the driver, as memory pools need it
//!                 └── DeviceMover ── batches at rest on their way down and up
//! ```
//!
//! Device memory is a [`Region`]: an address and a length, which bounds are checked against before
//! the device sees them. Who owns it, and when it goes back, is the memory pools' business. A
//! region that is nobody's any more can make the device fault, which ends the context; it can't
//! touch the process's own memory, but pinned memory that a kernel is pointed at by its address:
//! nothing here makes a region of one.
//!
//! The library is loaded by cudarc at run time; that a machine has none is [`DeviceError::NoDriver`].

// The driver is a C library.
#![allow(unsafe_code)]

pub mod context;
pub mod copier;
pub mod driver;
pub mod error;
pub mod event;
pub mod launch;
pub mod mover;
pub mod pinned;
pub mod region;
pub mod stream;
pub mod upstream;

pub use context::Context;
pub use copier::Copier;
pub use driver::{Device, Driver};
pub use error::{DeviceError, Remedy};
pub use event::Event;
pub use launch::Arguments;
pub use mover::DeviceMover;
pub use pinned::{HostMemory, PinnedMemory, Transfer};
pub use region::Region;
pub use stream::Stream;
pub use upstream::DeviceUpstream;
