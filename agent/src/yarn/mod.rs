//! The agent and YARN: what the cluster's daemons say, beside what this node has.
//!
//! - [`conf_dir`]: where YARN's configuration files are; `creel_yarn` knows what belongs in them.
//! - [`container_id`]: how YARN names a container.
//! - [`nvidia_smi`]: what NodeManagers ask.
//! - [`provider`]: what the NodeManager's scripts print: label, attributes, health.
//! - [`rest`]: the web services of ResourceManager and NodeManager.

pub mod conf_dir;
pub mod container_id;
pub mod nvidia_smi;
pub mod provider;
pub mod rest;
