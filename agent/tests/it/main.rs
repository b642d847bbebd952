//! The real `creeld` with a stand-in for `creel-executor`.

mod attach;
mod control;
mod crash;
mod life;
mod node;
