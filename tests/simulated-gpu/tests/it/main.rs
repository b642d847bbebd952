//! The built library, called as a C program calls it, and the program that changes its node.

mod abi;
mod program;
