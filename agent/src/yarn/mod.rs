//! The agent and YARN: what the cluster's daemons say, beside what this node has.
//!
//! - [`cluster`]: where the daemons are, and what their configuration says.
//! - [`conf_dir`]: where YARN's configuration files are; `creel_yarn` knows what belongs in them.
//! - [`container_id`]: how YARN names a container.
//! - [`executor`]: what starts containers.
//! - [`manage`]: keeping these files as GPUs need them.
//! - [`nvidia_smi`]: what NodeManagers ask.
//! - [`provider`]: what the NodeManager's scripts print: label, attributes, health.
//! - [`resource`]: fewer GPUs for the ResourceManager to give out.
//! - [`rest`]: the web services of ResourceManager and NodeManager.
//! - [`status`]: what YARN says of the node, beside what it is.

pub mod cluster;
pub mod conf_dir;
pub mod container_id;
pub mod executor;
pub mod manage;
pub mod nvidia_smi;
pub mod provider;
pub mod resource;
pub mod rest;
pub mod status;
