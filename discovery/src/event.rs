//! Errors as they happen: `creel-discovery --watch` prints one [`XidEvent`] per line.

use serde::{Deserialize, Serialize};

/// An Xid: an error that the driver reports of a GPU. What it means: [`crate::health::xid`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XidEvent {
    /// The GPU.
    pub uuid: Option<String>,
    /// Where it is.
    pub pci_bus_id: Option<String>,
    /// The number; absent: the driver doesn't know.
    pub xid: Option<u64>,
    /// When it was reported, in seconds since the Unix epoch.
    pub time: u64,
}
