//! The built `creel-discovery` on simulated nodes.

mod any_snapshot;
mod broken;
mod device_group;
mod formats;
mod inventory;
mod node;
mod nvidia_smi;
mod script;
mod watch;
