//! The built library, called through cudarc as the product calls it.

#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, reason = "nearly all is a call of C")]

mod calls;
mod device;
mod faults;
mod kernels;
mod memory;
mod mutants;
mod product;
mod sanitizer;
mod streams;
