//! Hadoop YARN's configuration files: brought to what GPUs need, and back.
//!
//! - [`layout`]: where they are.
//! - [`role`]: what a machine is to YARN, and so what it needs.
//! - [`error`]: what can go wrong.

pub mod error;
pub mod layout;
pub mod role;

pub use error::Error;
pub use role::{Role, Roles};
