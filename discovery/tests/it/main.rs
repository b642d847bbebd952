//! The built `creel-discovery` on simulated nodes.

mod broken;
mod formats;
mod inventory;
mod node;
mod script;
mod watch;
