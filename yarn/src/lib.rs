//! Hadoop YARN's configuration files: brought to what GPUs need, and back.
//!
//! ```text
//!   layout ──▶ directory ──▶ effective ──▶ plan ──▶ files: diff, apply, undo
//!   where      read and      which of      what      all files or none;
//!   it is      understood    the entries   has to    every other byte stays
//!                            holds         change
//!                                            │
//!               answer ──────────────────────┤ what nvidia-smi shows
//!               isolation, danger ───────────┘ what would keep a daemon from starting
//! ```
//!
//! YARN's daemons read their files when they start, and some mistakes end them: a resource type
//! without the calculator that can count it, a plugin without its resource type, an `nvidia-smi`
//! that YARN can't read, an executor that is to isolate and can't. So a plan is made on the files
//! in memory, each step of it is looked at with the eyes of a daemon that starts just then, and
//! only then is anything written.
//!
//! - [`layout`]: where a machine has its configuration directory.
//! - [`directory`]: its files as they were read. [`configuration`]: one file, and edits of it that
//!   leave every other byte alone.
//! - [`effective`]: which value holds, of all the entries of a name. [`keys`]: the names.
//! - [`role`]: what a machine is to YARN. [`plan`]: what has to change for it, and why. [`queue`]:
//!   what a queue needs to reach nodes with a label.
//! - [`answer`]: whether YARN would accept what nvidia-smi answers. [`isolation`]: which isolation
//!   is possible. [`danger`]: what keeps daemons from starting.
//! - [`files`]: showing, making and taking back changes.
//! - [`daemons`]: those that run here. [`restart`]: which have to be restarted, in which order.
//! - [`error`]: what can go wrong.

pub mod answer;
pub mod configuration;
pub mod daemons;
pub mod danger;
pub mod directory;
pub mod effective;
pub mod error;
pub mod files;
pub mod isolation;
pub mod keys;
pub mod layout;
pub mod plan;
pub mod queue;
pub mod restart;
pub mod role;
mod xml;

pub use directory::{Directory, File};
pub use error::Error;
pub use plan::{Plan, Wanted};
pub use role::{Role, Roles};
