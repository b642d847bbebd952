//! The kernels, through the device layer, on the simulated driver, against plain Rust.

#![allow(unsafe_code)]
#![allow(
    clippy::cast_possible_wrap,
    clippy::float_cmp,
    reason = "the bits of random numbers are of any type, and infinities are equal"
)]

mod aggregate;
mod append;
mod copier;
mod device;
mod evaluate;
mod filter;
mod gather;
mod gpu;
mod group;
mod memory;
mod rows;
mod scan;
mod spill;
