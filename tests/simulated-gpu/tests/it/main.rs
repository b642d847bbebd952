//! The built library, called as a C program calls it, and the program that changes its node.

#![allow(unsafe_code)]

mod abi;
mod program;
