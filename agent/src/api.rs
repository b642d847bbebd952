//! The control API: what `agent.sock` answers, as JSON over HTTP/1.1.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/version` | [`Version`] |
//! | `GET /v1/status` | [`Status`] |
//! | `GET /v1/gpus` | [`Gpus`] |
//! | `GET /v1/executors` | [`Executors`] |
//! | `GET /v1/attachments` | [`Attachments`] |
//! | `GET /v1/leases` | [`Leases`] |
//! | `POST /v1/leases` with [`LeaseRequest`] | [`Granted`]; 409 where the node is full |
//! | `GET /v1/leases/{id}` | [`Granted`] |
//! | `DELETE /v1/leases/{id}` | [`Released`] |
//! | `GET /v1/queries` | [`Queries`] |
//! | `DELETE /v1/queries/{id}` | [`Cancelled`] |
//! | anything that fails | [`Failure`] with status 400, 403, 404, 409, 503 or 500 |
//!
//! Every answer carries [`SCHEMA`] in `"schema"`. Bytes are bytes, times are seconds since the
//! Unix epoch unless the name says otherwise, and what is unknown is `null`.
//! Root, the agent's own user and members of `agent.group` see and manage everything; anybody
//! else sees the node and what is their own, and may ask for a lease and end one of a process.

pub use creel_discovery::{Health, HealthState};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};

/// The version of this API's formats; a change that breaks a reader raises it.
pub const SCHEMA: u32 = 1;

/// What runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The agent's version.
    pub version: String,
}

/// The node in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The agent itself.
    pub agent: AgentStatus,
    /// GPUs found.
    pub gpus: u64,
    /// Executors that run.
    pub executors: u64,
    /// Connections open.
    pub attachments: u64,
    /// Leases given.
    pub leases: u64,
    /// Queries running.
    pub queries: u64,
}

/// The agent itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Whether it takes connections: false while it stops.
    pub ready: bool,
    /// Why discovery could not say what GPUs there are; absent where it could.
    pub gpu_error: Option<String>,
    /// Why what YARN is shown of the GPUs can't be kept; absent: it is kept.
    pub snapshot_error: Option<String>,
    /// What is wrong with the store of the leases; absent where nothing is.
    #[serde(default)]
    pub lease_error: Option<String>,
}

/// The node's GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpus {
    /// [`SCHEMA`].
    pub schema: u32,
    /// In PCI order.
    pub gpus: Vec<Gpu>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Place in PCI order, from 0.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// Minor number of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// As `00000000:17:00.0`.
    pub pci_bus_id: Option<String>,
    /// The model.
    pub name: Option<String>,
    /// Device memory.
    pub memory: GpuMemory,
    /// What the executor on it has of that; `null`: there is none.
    #[serde(default)]
    pub pool: Option<Pool>,
    /// Driver version.
    pub driver: Option<String>,
    /// CUDA version of the driver, as `13.0`.
    pub cuda: Option<String>,
    /// Slices.
    pub mig: Mig,
    /// Whether it is fit for use.
    pub health: Health,
    /// The lease that holds it.
    pub lease: Option<String>,
}

/// Device memory in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuMemory {
    /// All of it.
    pub total: Option<u64>,
    /// In use.
    pub used: Option<u64>,
    /// Free.
    pub free: Option<u64>,
}

/// Device memory that an executor has for its queries, in bytes. Of several executors on one
/// device, all that they have together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// `ARENA`, `DEFAULT`, `ASYNC` or `NONE`.
    pub kind: String,
    /// What it may take; `null`: the device alone limits it.
    pub limit: Option<u64>,
    /// What is in use.
    pub live: u64,
    /// The most that was in use at one time.
    pub peak: u64,
    /// What it took of the driver.
    pub taken: u64,
}

/// Multi-Instance GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mig {
    /// Whether MIG mode is on; `null` where the model has none.
    pub enabled: Option<bool>,
    /// The slices.
    pub slices: Vec<MigSlice>,
    /// Why YARN is still shown another layout; absent: it is shown this one.
    pub waiting: Option<String>,
}

/// A MIG slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigSlice {
    /// Place within its GPU, from 0.
    pub index: u32,
    /// `MIG-…`.
    pub uuid: Option<String>,
    /// As `3g.20gb`.
    pub profile: Option<String>,
    /// Bytes of device memory.
    pub memory_total: Option<u64>,
    /// What the executor on it has of that; `null`: there is none.
    #[serde(default)]
    pub pool: Option<Pool>,
    /// Whether it is fit for use; beside it, its GPU has to be.
    #[serde(default)]
    pub health: Health,
    /// The lease that holds it.
    #[serde(default)]
    pub lease: Option<String>,
}

/// The executors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executors {
    /// [`SCHEMA`].
    pub schema: u32,
    /// By id.
    pub executors: Vec<Executor>,
}

/// An executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executor {
    /// As `cpu-1000`: device and user.
    pub id: String,
    /// `cpu`, or a GPU's UUID.
    pub device: String,
    /// The user that it runs as.
    pub uid: u32,
    /// Its process; `null` while there is none.
    pub pid: Option<u32>,
    /// What it does.
    pub state: ExecutorState,
    /// When it came to that state.
    pub since: u64,
    /// Times that it ended unasked and was started again.
    pub restarts: u64,
    /// Why it ended unasked the last time.
    pub last_error: Option<String>,
    /// Memory and spill; `null` while it runs not.
    pub memory: Option<creel_wire::MemoryReport>,
    /// Its GPU; `null` on the CPU, and while it runs not.
    #[serde(default)]
    pub gpu: Option<creel_wire::GpuReport>,
    /// Why its GPU can't be used, so that its queries run on the CPU; `null` where it can.
    #[serde(default)]
    pub gpu_unusable: Option<String>,
}

/// What an executor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorState {
    /// Its process starts.
    Starting,
    /// It takes connections.
    Running,
    /// It ends its queries, then itself.
    Draining,
    /// It ended unasked, too often to be started at once again.
    BackingOff,
    /// It ended unasked; the next connection starts it.
    Failed,
}

/// The connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachments {
    /// [`SCHEMA`].
    pub schema: u32,
    /// By number.
    pub attachments: Vec<Attachment>,
}

/// A connection to an executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Number, unique in the agent's life.
    pub id: u64,
    /// User of the peer.
    pub uid: u32,
    /// Process of the peer.
    pub pid: i32,
    /// YARN container of the peer.
    pub container: Option<String>,
    /// The executor that serves it.
    pub executor: String,
    /// When it was made.
    pub since: u64,
    /// Statements that it ran.
    pub queries: u64,
    /// Bytes of results that it was sent.
    pub bytes_sent: u64,
}

/// The leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leases {
    /// [`SCHEMA`].
    pub schema: u32,
    /// By id.
    pub leases: Vec<Lease>,
}

/// GPUs that a container or a process holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The lease's id, as `lease-7`.
    pub id: String,
    /// The YARN container; `null`: a process that is in none.
    pub container: Option<String>,
    /// The user.
    pub uid: u32,
    /// The process that stands for the holder: of a container, the one that the NodeManager's pid
    /// file names.
    #[serde(default)]
    pub pid: Option<i32>,
    /// UUIDs of GPUs and slices; none, if it was allotted none.
    pub devices: Vec<String>,
    /// Their addresses where the holder runs, in the same order.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// When it was given.
    pub since: u64,
    /// What said how many: `cgroup`, `nodemanager`, `resourcemanager`, `CREEL_GPUS`, `spark`,
    /// `request` or `default`.
    pub source: String,
}

/// Asks for the lease of the peer's container or, outside of one, of its process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaseRequest {
    /// How many; a container can't have more than YARN allotted to it.
    pub gpus: Option<u32>,
    /// How long to wait where the node is full, at the most 4 minutes.
    pub wait_ms: u64,
    /// Whether only the lease of a container will do: outside of one, 404.
    pub in_container: bool,
    /// What the peer knows of itself.
    #[serde(deserialize_with = "object")]
    pub hints: Hints,
}

/// A struct from a JSON object. Serde takes an array of its fields too, and so an empty one for
/// all defaults.
pub(crate) fn object<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: DeserializeOwned,
    D: Deserializer<'de>,
{
    let object = serde_json::Map::deserialize(deserializer)?;
    T::deserialize(serde_json::Value::Object(object)).map_err(D::Error::custom)
}

/// What a peer knows of itself. It counts where nobody else says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hints {
    /// The variable `CREEL_GPUS`.
    pub creel_gpus: Option<u32>,
    /// How many Spark's configuration in the container's directory asks for.
    pub spark_gpus: Option<u32>,
    /// UUIDs of the devices that are visible to it, in the order of their addresses there.
    pub visible: Option<Vec<String>>,
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The lease.
    pub lease: Lease,
}

/// A lease has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The lease.
    pub id: String,
}

/// The running queries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queries {
    /// [`SCHEMA`].
    pub schema: u32,
    /// By start.
    pub queries: Vec<Query>,
}

/// A running query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    /// The executor that runs it.
    pub executor: String,
    /// User that it runs for.
    pub uid: u32,
    /// How it stands.
    #[serde(flatten)]
    pub report: creel_wire::QueryReport,
}

/// A query was told to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelled {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The query.
    pub id: String,
}

/// A request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What failed, on what, why, and what to do.
    pub error: String,
}
