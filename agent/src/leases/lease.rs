//! A lease: who holds which devices since when, and what said that they are due.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::holder::Holder;
use crate::api;

/// A lease, as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its number, unique in the life of a state directory.
    pub number: u64,
    /// Who holds it.
    pub holder: Holder,
    /// What is held; nothing, if the holder was allotted nothing.
    pub devices: Vec<Held>,
    /// Since when, in seconds since the Unix epoch.
    pub since: u64,
    /// What said how many.
    pub source: Source,
}

/// A device that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// Its address where its holder runs: the place among the devices that are visible there.
    pub address: u32,
}

/// What said how many devices are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// What the container's control group lets it open.
    Cgroup,
    /// The NodeManager, which assigned the devices itself.
    NodeManager,
    /// The ResourceManager's record of the container.
    ResourceManager,
    /// The variable `CREEL_GPUS`.
    #[serde(rename = "CREEL_GPUS")]
    CreelGpus,
    /// Spark's configuration in the container's directory.
    Spark,
    /// The request.
    Request,
    /// Nothing: one device is given.
    Default,
}

impl Source {
    /// Its name, in the API as in the store.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::NodeManager => "nodemanager",
            Self::ResourceManager => "resourcemanager",
            Self::CreelGpus => "CREEL_GPUS",
            Self::Spark => "spark",
            Self::Request => "request",
            Self::Default => "default",
        }
    }
}

/// What the id of a lease begins with; its number follows.
const PREFIX: &str = "lease-";

/// The id of a lease of that number, as `lease-7`.
pub fn id(number: u64) -> String {
    format!("{PREFIX}{number}")
}

/// The number in an id.
pub fn number(id: &str) -> Option<u64> {
    id.strip_prefix(PREFIX)?.parse().ok()
}

impl Lease {
    /// Its id.
    pub fn id(&self) -> String {
        id(self.number)
    }

    /// The devices that it is on, in the order of their addresses.
    pub fn uuids(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().map(|held| held.uuid.as_str())
    }

    /// Whether it is on that device.
    pub fn holds(&self, uuid: &str) -> bool {
        self.devices.iter().any(|held| held.uuid == uuid)
    }

    /// As the control API shows it.
    pub fn view(&self) -> api::Lease {
        api::Lease {
            id: self.id(),
            container: self.holder.container.clone(),
            uid: self.holder.uid,
            pid: self.holder.pid(),
            devices: self.devices.iter().map(|held| held.uuid.clone()).collect(),
            addresses: self.devices.iter().map(|held| held.address.to_string()).collect(),
            since: self.since,
            source: self.source.name().to_owned(),
        }
    }
}

/// Who holds it and what it is called, as `container_… of user 1000 (lease-7)`.
impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of user {} ({})", self.holder.name(), self.holder.uid, self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_have_one_name() {
        for source in [
            Source::Cgroup,
            Source::NodeManager,
            Source::ResourceManager,
            Source::CreelGpus,
            Source::Spark,
            Source::Request,
            Source::Default,
        ] {
            assert_eq!(serde_json::to_value(source).unwrap(), source.name());
        }
    }

    #[test]
    fn ids() {
        assert_eq!(number(&id(7)), Some(7));
        for other in ["lease-", "lease-x", "7", "lease--1"] {
            assert_eq!(number(other), None, "{other}");
        }
    }
}
