//! The real `creeld` with a stand-in for `creel-executor`, and the clients of YARN's daemons against
//! stand-ins of these.

mod attach;
mod control;
mod crash;
mod doors;
mod leases;
mod life;
mod losses;
mod node;
mod node_manager;
mod rest;
mod web;
mod yarn_files;
mod yarn_status;
