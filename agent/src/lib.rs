//! The node agent: `creeld`, which knows the node's GPUs and hosts its executors, and `creel`,
//! the command line that talks to it.

pub mod api;
pub mod error;
pub mod run_dir;
