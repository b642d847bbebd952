//! The ResourceManager's web services, `/ws/v1/cluster`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Address, GPU, Trouble, http, lenient};
use crate::error::Error;
use crate::yarn::container_id::ContainerId;

/// The ResourceManagers of a cluster: one, or several of which one is active.
#[derive(Debug)]
pub struct ResourceManager {
    addresses: Vec<Address>,
    deadline: Duration,
    /// Which one answered last.
    active: AtomicUsize,
}

/// What a ResourceManager says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all(deserialize = "camelCase"))]
pub struct ClusterInfo {
    /// `STARTED` and others.
    #[serde(deserialize_with = "lenient::text")]
    pub state: Option<String>,
    /// `ACTIVE`, `STANDBY` and others.
    #[serde(deserialize_with = "lenient::text")]
    pub ha_state: Option<String>,
    /// As `3.3.6`.
    #[serde(deserialize_with = "lenient::text")]
    pub resource_manager_version: Option<String>,
    /// Milliseconds since the Unix epoch.
    #[serde(deserialize_with = "lenient::number")]
    pub started_on: Option<u64>,
}

/// What the ResourceManager knows of a node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// `host:port` of its NodeManager's RPC.
    pub id: String,
    /// Its name.
    #[serde(default, deserialize_with = "lenient::text")]
    pub node_host_name: Option<String>,
    /// `host:port` of its NodeManager's web services.
    #[serde(default, rename = "nodeHTTPAddress", deserialize_with = "lenient::text")]
    pub http_address: Option<String>,
    /// `RUNNING`, `UNHEALTHY`, `LOST` and others (`NodeState`).
    #[serde(default, deserialize_with = "lenient::text")]
    pub state: Option<String>,
    /// What the health scripts and disk checks say; absent: nothing.
    #[serde(default, deserialize_with = "lenient::text")]
    pub health_report: Option<String>,
    /// The NodeManager's version.
    #[serde(default, deserialize_with = "lenient::text")]
    pub version: Option<String>,
    /// Containers that run.
    #[serde(default, deserialize_with = "lenient::number")]
    pub num_containers: Option<u64>,
    /// Labels (`NODE_PARTITION`).
    #[serde(default, deserialize_with = "lenient::list")]
    pub node_labels: Vec<String>,
    /// Attributes.
    #[serde(default, rename = "nodeAttributesInfo", deserialize_with = "lenient::object")]
    attributes: Attributes,
    /// What it has.
    #[serde(default, rename = "totalResource", deserialize_with = "lenient::object")]
    pub total: Resources,
    /// What containers have of it.
    #[serde(default, rename = "usedResource", deserialize_with = "lenient::object")]
    pub used: Resources,
}

impl Node {
    /// Its attributes.
    pub fn attributes(&self) -> &[NodeAttribute] {
        &self.attributes.list
    }
}

/// Amounts of resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Resources {
    #[serde(rename = "resourceInformations", deserialize_with = "lenient::object")]
    informations: Informations,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Informations {
    #[serde(rename = "resourceInformation", deserialize_with = "lenient::list")]
    list: Vec<Amount>,
}

/// An amount of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Amount {
    /// As `memory-mb`, `vcores` or [`GPU`].
    pub name: String,
    /// How many of its units.
    #[serde(default, deserialize_with = "lenient::number")]
    pub value: Option<u64>,
    /// As `Mi`; empty for what is counted.
    #[serde(default)]
    pub units: String,
}

impl Resources {
    /// How many GPUs; absent: the ResourceManager does not know the type.
    pub fn gpus(&self) -> Option<u64> {
        self.amounts().iter().find(|amount| amount.name == GPU).and_then(|amount| amount.value)
    }

    /// All amounts.
    pub fn amounts(&self) -> &[Amount] {
        &self.informations.list
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Attributes {
    #[serde(rename = "nodeAttributeInfo", deserialize_with = "lenient::list")]
    list: Vec<NodeAttribute>,
}

/// An attribute of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAttribute {
    /// `nm.yarn.io` for what NodeManagers say, `rm.yarn.io` for what operators do.
    pub prefix: String,
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A label of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NodeLabel {
    /// Its name.
    pub name: String,
    /// Whether only applications that ask for it run on its nodes.
    #[serde(default, rename = "exclusivity", deserialize_with = "lenient::flag")]
    pub exclusive: Option<bool>,
}

/// What the ResourceManager allotted to a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedContainer {
    /// Its id.
    pub id: String,
    /// `host:port` of its NodeManager's RPC.
    pub node: Option<String>,
    /// `RUNNING` and others (`ContainerState`).
    pub state: Option<String>,
    /// Amounts by resource, as `memory-mb` or [`GPU`]; empty where its version does not say.
    pub resources: BTreeMap<String, u64>,
}

impl AllocatedContainer {
    /// How many GPUs: 0 where it was allotted none, absent where the ResourceManager's version
    /// does not say what was allotted.
    pub fn gpus(&self) -> Option<u64> {
        (!self.resources.is_empty()).then(|| self.resources.get(GPU).copied().unwrap_or(0))
    }
}

impl ResourceManager {
    /// A client of those ResourceManagers; each question takes no longer than `deadline`.
    pub fn new(addresses: Vec<Address>, deadline: Duration) -> Self {
        Self { addresses, deadline, active: AtomicUsize::new(0) }
    }

    /// What the active one says of itself.
    pub async fn info(&self) -> Result<ClusterInfo, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Answer {
            cluster_info: ClusterInfo,
        }
        // A ResourceManager on standby answers this question itself.
        let answer = self.ask("/ws/v1/cluster/info", |answer: &Answer| {
            answer.cluster_info.ha_state.as_deref() != Some("STANDBY")
        });
        Ok(self.known(answer.await?, "/ws/v1/cluster/info")?.cluster_info)
    }

    /// All nodes, in whatever state.
    pub async fn nodes(&self) -> Result<Vec<Node>, Error> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default, deserialize_with = "lenient::object")]
            nodes: Nodes,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Nodes {
            #[serde(deserialize_with = "lenient::list")]
            node: Vec<Node>,
        }
        let path = "/ws/v1/cluster/nodes";
        Ok(self.known(self.ask(path, |_: &Answer| true).await?, path)?.nodes.node)
    }

    /// The node whose NodeManager has the id `host:port`; `None`: it has never registered, or has
    /// been gone for long.
    pub async fn node(&self, id: &str) -> Result<Option<Node>, Error> {
        #[derive(Deserialize)]
        struct Answer {
            node: Node,
        }
        let path = format!("/ws/v1/cluster/nodes/{}", encoded(id));
        Ok(self.ask(&path, |_: &Answer| true).await?.map(|answer| answer.node))
    }

    /// The labels of the cluster.
    pub async fn node_labels(&self) -> Result<Vec<NodeLabel>, Error> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default, rename = "nodeLabelInfo", deserialize_with = "lenient::list")]
            labels: Vec<NodeLabel>,
        }
        let path = "/ws/v1/cluster/get-node-labels";
        Ok(self.known(self.ask(path, |_: &Answer| true).await?, path)?.labels)
    }

    /// What was allotted to a container; `None`: there is no such container, or it has ended.
    pub async fn container(&self, id: &ContainerId) -> Result<Option<AllocatedContainer>, Error> {
        /// Bare up to 3.4, with its name from 3.5 on.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Answer {
            Named { container: Fields },
            Bare(Fields),
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Fields {
            container_id: String,
            #[serde(default, deserialize_with = "lenient::text")]
            assigned_node_id: Option<String>,
            #[serde(default, deserialize_with = "lenient::text")]
            container_state: Option<String>,
            #[serde(default, deserialize_with = "lenient::object")]
            allocated_resources: Entries,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Entries {
            #[serde(deserialize_with = "lenient::list")]
            entry: Vec<Entry>,
        }
        #[derive(Deserialize)]
        struct Entry {
            key: String,
            #[serde(deserialize_with = "lenient::number")]
            value: Option<u64>,
        }
        let path = format!(
            "/ws/v1/cluster/apps/{}/appattempts/{}/containers/{id}",
            id.application(),
            id.attempt()
        );
        // One that answers for another container is not believed.
        let asked = id.to_string();
        let Some(Answer::Named { container: fields } | Answer::Bare(fields)) =
            self.ask(&path, |_: &Answer| true).await?
        else {
            return Ok(None);
        };
        if fields.container_id != asked {
            let reason = format!("it is about {} and not {asked}", fields.container_id);
            return Err(self.trouble(Trouble::Answer(reason)));
        }
        let entries = fields.allocated_resources.entry.into_iter();
        Ok(Some(AllocatedContainer {
            id: fields.container_id,
            node: fields.assigned_node_id,
            state: fields.container_state,
            resources: entries.filter_map(|entry| Some((entry.key, entry.value?))).collect(),
        }))
    }

    /// Asks the one that answered last, then the others. Each has an equal part of the time that
    /// is left. An answer that is not `wanted` is one of a ResourceManager on standby.
    async fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        wanted: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, Error> {
        let count = self.addresses.len();
        let first = self.active.load(Ordering::Relaxed);
        let started = Instant::now();
        let mut failure = None;
        for turn in 0..count {
            let at = (first + turn) % count;
            let left = self.deadline.saturating_sub(started.elapsed());
            let share = left / (count - turn) as u32;
            let address = &self.addresses[at];
            let trouble = match http::get::<T>(address, path, share).await {
                Ok(Some(answer)) if !wanted(&answer) => Trouble::Standby,
                Ok(answer) => {
                    self.active.store(at, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(trouble) => trouble,
            };
            // A standby is not what is wrong where another one can't be reached.
            if failure.is_none() || trouble != Trouble::Standby {
                failure = Some(Error::YarnDaemon {
                    daemon: "ResourceManager",
                    url: address.to_string(),
                    trouble,
                });
            }
        }
        Err(failure.unwrap_or(Error::YarnAddressUnknown {
            daemon: "ResourceManager",
            setting: "yarn.resourcemanager_url",
            key: "yarn.resourcemanager.hostname",
        }))
    }

    /// An answer to a question about what every ResourceManager has.
    fn known<T>(&self, answer: Option<T>, path: &str) -> Result<T, Error> {
        answer.ok_or_else(|| {
            self.trouble(Trouble::Status { status: 404, text: format!("there is no {path}") })
        })
    }

    /// What is wrong with the one that answered last.
    fn trouble(&self, trouble: Trouble) -> Error {
        let at = self.active.load(Ordering::Relaxed);
        let url = self.addresses.get(at).map(ToString::to_string).unwrap_or_default();
        Error::YarnDaemon { daemon: "ResourceManager", url, trouble }
    }
}

/// A node's id as a part of a path.
fn encoded(id: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._:".contains(byte);
    let mut text = String::with_capacity(id.len());
    for byte in id.as_bytes() {
        if plain(byte) {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}
