//! Every setting of Creel, declared once.
//!
//! [`declaration`] holds the only list of settings there is. All that knows a setting by its name
//! comes from it:
//!
//! ```text
//!                         declaration.rs
//!        ┌─────────────┬───────┴──────┬─────────────────┐
//!   struct Settings  SETTINGS      default_file()    markdown()
//!   typed fields     name, kind,   packaging/        docs/
//!   and defaults     scope, help   creel.toml        configuration.md
//!        ▲
//!        └── file < environment < flags        (an operator: `Settings::load`)
//!            BTreeMap<String, String>          (agent to executor: `to_map`, `from_map`)
//!            SET creel.NAME = VALUE            (a client's session: `set_session`)
//! ```
//!
//! ```
//! use creel_settings::{Scope, Settings, Sources, find};
//!
//! let sources = Sources { flags: vec![("executor.threads".into(), "4".into())], ..Sources::default() };
//! let settings = Settings::load(&sources)?.settings;
//! assert_eq!(settings.executor_threads, 4);
//! assert_eq!(settings.sql_batch_size, 8192);
//! assert_eq!(find("sql.batch_size").unwrap().scope, Scope::Session);
//! # Ok::<(), creel_settings::Error>(())
//! ```
//!
//! - [`declaration`]: the settings.
//! - [`load`]: `creel.toml`, the environment and flags, one over the other, and where each value
//!   came from.
//! - [`file`](mod@file): `creel.toml` itself.
//! - [`alias`]: names that other software has for them.
//! - [`value`]: the types of values; [`size`], [`duration`], [`memory`], [`fraction`], [`choice`]
//!   and [`auto`] are those with a notation of their own.
//! - [`document`]: the default file and the page of the manual.

pub mod alias;
pub mod auto;
pub mod choice;
pub mod declaration;
pub mod document;
pub mod duration;
pub mod error;
pub mod file;
pub mod fraction;
pub mod load;
pub mod memory;
pub mod size;
pub mod value;

pub use alias::ALIASES;
pub use auto::Auto;
pub use choice::{
    GpuExplain, GpuMode, KeepLostGpus, LogFormat, MigMinor, PoolDebug, PoolKind, PoolSizing,
    Unleased,
};
pub use declaration::{SETTINGS, Scope, Setting, Settings, find};
pub use document::{default_file, markdown};
pub use error::Error;
pub use fraction::Fraction;
pub use load::{DEFAULT_FILE, Loaded, Origin, Sources, assignment};
pub use memory::Memory;
pub use size::Size;
pub use value::{Kind, Value};
