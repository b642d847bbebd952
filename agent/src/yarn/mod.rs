//! The agent and YARN.
//!
//! - [`conf_dir`]: where YARN's configuration files are; `creel_yarn` knows what belongs in them.

pub mod conf_dir;
