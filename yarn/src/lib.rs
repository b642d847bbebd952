//! Hadoop YARN's configuration files: brought to what GPUs need, and back.
//!
//! - [`layout`]: where they are.
//! - [`role`]: what a machine is to YARN, and so what it needs.
//! - [`error`]: what can go wrong.

pub mod answer;
pub mod configuration;
pub mod daemons;
pub mod danger;
pub mod directory;
pub mod effective;
pub mod error;
pub mod files;
pub mod isolation;
pub mod keys;
pub mod layout;
pub mod plan;
pub mod queue;
pub mod restart;
pub mod role;
mod xml;

pub use directory::{Directory, File};
pub use error::Error;
pub use plan::{Plan, Wanted};
pub use role::{Role, Roles};
