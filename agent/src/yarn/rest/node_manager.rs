//! The NodeManager's web services, `/ws/v1/node`.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Address, Trouble, http, lenient};
use crate::error::Error;
use crate::yarn::container_id::ContainerId;

/// A NodeManager.
#[derive(Debug)]
pub struct NodeManager {
    address: Address,
    deadline: Duration,
}

/// What a NodeManager says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all(deserialize = "camelCase"))]
pub struct NodeInfo {
    /// `host:port` of its RPC: its name at the ResourceManager.
    #[serde(deserialize_with = "lenient::text")]
    pub id: Option<String>,
    /// Its name.
    #[serde(deserialize_with = "lenient::text")]
    pub node_host_name: Option<String>,
    /// As `3.3.6`.
    #[serde(deserialize_with = "lenient::text")]
    pub node_manager_version: Option<String>,
    /// Whether it calls itself healthy.
    #[serde(deserialize_with = "lenient::flag")]
    pub node_healthy: Option<bool>,
    /// What the health scripts and disk checks say; absent: nothing.
    #[serde(deserialize_with = "lenient::text")]
    pub health_report: Option<String>,
    /// The resource types that it knows, as `yarn.io/gpu, memory-mb (unit=Mi), vcores`.
    #[serde(deserialize_with = "lenient::text")]
    pub resource_types: Option<String>,
    /// When it started, in milliseconds since the Unix epoch.
    #[serde(rename(deserialize = "nmStartupTime"), deserialize_with = "lenient::number")]
    pub started: Option<u64>,
}

/// What a container does (`ContainerState` of the NodeManager).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// It waits for its files, or for room.
    Starting,
    /// Its process runs.
    Running,
    /// It ends, or its end is being cleaned up: its process may be there still.
    Ending,
    /// It is gone.
    Done,
    /// A state that this version does not know.
    Unknown,
}

/// A container of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// What it does.
    pub state: ContainerState,
    /// Who it runs as.
    pub user: Option<String>,
}

/// What a NodeManager says of `yarn.io/gpu`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuResource {
    /// The driver's version.
    pub driver: Option<String>,
    /// The GPUs that nvidia-smi shows it, in its order.
    pub gpus: Vec<Gpu>,
    /// The GPUs that it gives to containers. Empty without LinuxContainerExecutor, which alone
    /// assigns them.
    pub total: Vec<GpuDevice>,
    /// Those of them that a container holds.
    pub assigned: Vec<AssignedGpu>,
}

/// A GPU as nvidia-smi shows it to the NodeManager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The model.
    pub name: Option<String>,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// Minor number of its device.
    pub minor: Option<u32>,
}

/// A GPU that the NodeManager gives to containers. Hadoop 3.5 says of none which one it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GpuDevice {
    /// Its place in nvidia-smi's answer.
    #[serde(deserialize_with = "lenient::index")]
    pub index: Option<u32>,
    /// Minor number of its device.
    #[serde(deserialize_with = "lenient::index")]
    pub minor_number: Option<u32>,
}

/// A GPU that a container holds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct AssignedGpu {
    /// The container.
    #[serde(rename = "containerId")]
    pub container: String,
    /// Which GPU.
    #[serde(flatten)]
    pub device: GpuDevice,
}

impl GpuResource {
    /// How many GPUs a container holds.
    pub fn count_of(&self, container: &str) -> usize {
        self.assigned.iter().filter(|assigned| assigned.container == container).count()
    }
}

impl NodeManager {
    /// A client of that NodeManager; each question takes no longer than `deadline`.
    pub fn new(address: Address, deadline: Duration) -> Self {
        Self { address, deadline }
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What it says of itself.
    pub async fn info(&self) -> Result<NodeInfo, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Answer {
            node_info: NodeInfo,
        }
        Ok(self.known::<Answer>("/ws/v1/node/info").await?.node_info)
    }

    /// Its containers; one that has ended stays among them until its application ends.
    pub async fn containers(&self) -> Result<Vec<Container>, Error> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default, deserialize_with = "lenient::object")]
            containers: Containers,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Containers {
            #[serde(deserialize_with = "lenient::list")]
            container: Vec<Fields>,
        }
        let answer: Answer = self.known("/ws/v1/node/containers").await?;
        Ok(answer.containers.container.into_iter().map(Container::from).collect())
    }

    /// One of its containers; `None`: it knows no such container, or no longer.
    pub async fn container(&self, id: &ContainerId) -> Result<Option<Container>, Error> {
        #[derive(Deserialize)]
        struct Answer {
            container: Fields,
        }
        let path = format!("/ws/v1/node/containers/{id}");
        let answer: Option<Answer> = self.ask(&path).await?;
        Ok(answer.map(|answer| answer.container.into()))
    }

    /// What it says of `yarn.io/gpu`; `None`: its GPU plugin is off.
    ///
    /// Each question has it run nvidia-smi.
    pub async fn gpus(&self) -> Result<Option<GpuResource>, Error> {
        let answer: GpuAnswer = self.known("/ws/v1/node/resources/yarn.io%2Fgpu").await?;
        // Of a resource without a plugin there is an empty object, or one without these.
        let plugin = answer.information.is_some() || answer.total.is_some();
        Ok(plugin.then(|| answer.into()))
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Error> {
        let answer = http::get(&self.address, path, self.deadline).await;
        answer.map_err(|trouble| self.trouble(trouble))
    }

    async fn known<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.ask(path).await?.ok_or_else(|| {
            self.trouble(Trouble::Status { status: 404, text: format!("there is no {path}") })
        })
    }

    fn trouble(&self, trouble: Trouble) -> Error {
        Error::YarnDaemon { daemon: "NodeManager", url: self.address.to_string(), trouble }
    }
}

#[derive(Deserialize)]
struct Fields {
    id: String,
    #[serde(default, deserialize_with = "lenient::text")]
    state: Option<String>,
    #[serde(default, deserialize_with = "lenient::text")]
    user: Option<String>,
}

impl From<Fields> for Container {
    fn from(fields: Fields) -> Self {
        let state = match fields.state.as_deref() {
            Some("NEW" | "LOCALIZING" | "SCHEDULED" | "RELAUNCHING" | "REINITIALIZING") => {
                ContainerState::Starting
            }
            Some("RUNNING" | "PAUSING" | "PAUSED" | "RESUMING") => ContainerState::Running,
            Some(
                "KILLING"
                | "EXITED_WITH_SUCCESS"
                | "EXITED_WITH_FAILURE"
                | "CONTAINER_CLEANEDUP_AFTER_KILL"
                | "CONTAINER_RESOURCES_CLEANINGUP"
                | "LOCALIZATION_FAILED",
            ) => ContainerState::Ending,
            Some("DONE") => ContainerState::Done,
            _ => ContainerState::Unknown,
        };
        Self { id: fields.id, state, user: fields.user }
    }
}

/// As 3.3 and 3.4 write it (the names of `NMGpuResourceInfo`'s beans), and 3.5 (those of
/// nvidia-smi's XML).
#[derive(Default, Deserialize)]
#[serde(default)]
struct GpuAnswer {
    #[serde(rename = "gpuDeviceInformation", deserialize_with = "lenient::object")]
    information: Option<Information>,
    #[serde(rename = "totalGpuDevices", deserialize_with = "lenient::object")]
    total: Option<Devices>,
    #[serde(rename = "assignedGpuDevices", deserialize_with = "lenient::list")]
    assigned: Vec<AssignedGpu>,
}

/// A list that is there, be it empty.
#[derive(Deserialize)]
#[serde(transparent)]
struct Devices(#[serde(deserialize_with = "lenient::list")] Vec<GpuDevice>);

#[derive(Default, Deserialize)]
#[serde(default)]
struct Information {
    #[serde(
        alias = "driver_version",
        rename = "driverVersion",
        deserialize_with = "lenient::text"
    )]
    driver: Option<String>,
    #[serde(alias = "gpu", deserialize_with = "lenient::list")]
    gpus: Vec<GpuFields>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GpuFields {
    #[serde(alias = "product_name", rename = "productName", deserialize_with = "lenient::text")]
    name: Option<String>,
    #[serde(deserialize_with = "lenient::text")]
    uuid: Option<String>,
    #[serde(alias = "minor_number", rename = "minorNumber", deserialize_with = "lenient::index")]
    minor: Option<u32>,
}

impl From<GpuAnswer> for GpuResource {
    fn from(answer: GpuAnswer) -> Self {
        let information = answer.information.unwrap_or_default();
        let gpus = information.gpus.into_iter();
        Self {
            driver: information.driver,
            gpus: gpus
                .map(|gpu| Gpu { name: gpu.name, uuid: gpu.uuid, minor: gpu.minor })
                .collect(),
            total: answer.total.map(|total| total.0).unwrap_or_default(),
            assigned: answer.assigned,
        }
    }
}
