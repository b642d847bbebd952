//! What YARN says of this node, beside what the node has, and where the two differ.
//!
//! ```text
//!   ResourceManager ─┐
//!   NodeManager ─────┤ look: all at once, each within        differences: what is not as it
//!   snapshot.json ───┼─▶ a deadline; what gives no ──▶ Seen ─▶ should be, and what to do
//!   agent.sock ──────┤   answer says why
//!   yarn-site.xml ───┘
//! ```
//!
//! [`look`] asks, [`differences`] compares.

mod differences;
mod look;

use std::path::PathBuf;

use creel_discovery::Snapshot;
use serde::Serialize;

pub use self::differences::{Difference, differences, fit};
pub use self::look::look;
use super::rest::{ClusterInfo, GpuResource, Node, NodeInfo};
use crate::api;

/// What somebody said, or why they said nothing.
pub type Said<T> = Result<T, String>;

/// What all say.
#[derive(Debug)]
pub struct Seen {
    /// Where the ResourceManagers are.
    pub resource_manager_urls: Vec<String>,
    /// Of the one that is active.
    pub resource_manager: Said<ClusterInfo>,
    /// What it knows of this node; `None`: it does not know the node.
    pub node: Said<Option<Node>>,
    /// Where the NodeManager is.
    pub node_manager_url: Option<String>,
    /// Of the NodeManager.
    pub node_manager: Said<NodeInfo>,
    /// What the NodeManager says of GPUs; `None`: its GPU plugin is off.
    pub node_manager_gpus: Said<Option<GpuResource>>,
    /// The node's GPUs, as the agent saw them last.
    pub snapshot: Said<Snapshot>,
    /// Whether that is as they are now.
    pub snapshot_is_current: bool,
    /// The agent's leases.
    pub leases: Said<Vec<api::Lease>>,
    /// YARN's configuration files.
    pub configuration: Said<Configuration>,
}

/// YARN's configuration files on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Configuration {
    /// The directory.
    pub conf_dir: PathBuf,
    /// What `creel yarn apply` would change; empty: nothing.
    pub pending: Vec<String>,
}
