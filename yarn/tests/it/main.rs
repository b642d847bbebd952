//! Directories as distributions have them, brought to GPUs and back.

mod directories;
mod edits;
mod failures;
mod mutations;
mod restarts;
mod site;
