//! The node agent: `creeld`, which knows the node's GPUs and hosts its executors, and `creel`,
//! the command line that talks to it.
//!
//! ```text
//!   creel, dashboards            Flight SQL clients in containers
//!         │ HTTP/JSON                      │ gRPC
//!    agent.sock                       creel.sock
//! ┌───────┴────────────────────────────────┴──────────────────────┐
//! │    control ──────▶ executors ◀── data ── peer: uid, pidfd,    │
//! │       │               │  ▲         └──▶ refusal    container  │
//! │      gpus             │  └─ supervisor, one per executor      │
//! └───────┼───────────────┼───────────────────────────────────────┘
//!         ▼               ▼ socket pair: creel_wire, descriptors
//!  creel-discovery   creel-executor --uid …, one per user
//! ```
//!
//! The agent is small and outlives everything it starts. It never calls the driver (a call may
//! hang in the kernel for good) nor runs a query: the one is done by `creel-discovery`, the other
//! by `creel-executor`, each a process that it can lose.
//!
//! The daemon, from the outside in:
//! - [`daemon`]: start, reload, drain, end. [`lock`]: one agent per run directory. [`logging`],
//!   [`service`] (systemd), [`socket`], [`run_dir`], [`state_dir`].
//! - [`data`]: connections of clients. [`peer`]: who they are. [`refusal`]: how some are turned
//!   away. [`connections`]: how many there may be.
//! - [`executors`]: the processes that serve them.
//! - [`gpus`]: the node's GPUs and their health. [`leases`]: who holds which.
//! - [`control`]: the API of [`api`].
//! - [`yarn`]: the cluster that the node belongs to.
//!
//! The command line: [`cli`], which asks through [`client`]. [`doctor`]: what is wrong with a node.

pub mod api;
pub mod cli;
pub mod client;
pub mod clock;
pub mod connections;
pub mod control;
pub mod daemon;
pub mod data;
pub mod doctor;
pub mod error;
pub mod executors;
pub mod gpus;
pub mod leases;
pub mod lock;
pub mod logging;
pub mod peer;
pub mod programs;
pub mod refusal;
pub mod run_dir;
pub mod service;
pub mod socket;
pub mod state_dir;
pub mod yarn;
