//! The agent and YARN: what the cluster's daemons say, beside what this node has.
//!
//! - [`conf_dir`]: where YARN's configuration files are; `creel_yarn` knows what belongs in them.
//! - [`container_id`]: how YARN names a container.
//! - [`rest`]: the web services of ResourceManager and NodeManager.

pub mod conf_dir;
pub mod container_id;
pub mod rest;
