//! The real `creeld` with a stand-in for `creel-executor`.

mod attach;
mod control;
mod crash;
mod doors;
mod life;
mod node;
