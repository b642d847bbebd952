//! What the agent and its executors say to each other.
//!
//! `creeld` starts each `creel-executor` with one end of a Unix socket pair as its standard
//! input. Over that pair go [`ToExecutor`] and [`FromExecutor`] messages as JSON, each behind its
//! length, and with an [`Attach`] goes the descriptor of a client's connection:
//!
//! ```text
//!   client ──creel.sock──▶ creeld ──Attach + descriptor──▶ creel-executor
//!      ▲                      ◀──── Ready, Closed, Report ────┘   │
//!      └───────────────── Arrow Flight SQL ───────────────────────┘
//! ```
//!
//! The end of the pair is the end of the executor: when the agent goes, however it goes, the
//! kernel closes its end, and the executor reads end of file and exits.
//!
//! - [`message`]: the messages.
//! - [`channel`]: how they travel.

pub mod channel;
pub mod message;

pub use channel::{ChannelError, Receiver, Sender, pair};
pub use message::*;
