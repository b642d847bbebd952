//! The shared executor: DataFusion behind Arrow Flight SQL.
//!
//! An executor serves one user on one device. The agent starts it, hands it the connections of
//! that user's clients, and it serves Flight SQL over each of them, one session a connection:
//!
//! ```text
//!            creeld
//!              │ standard input: Start, Attach + descriptor, Detach, Cancel, Report, Drain
//!              ▼
//!   ┌─ creel-executor ─────────────────────────────────────────────────────┐
//!   │ process   one thread: talks to the agent, ends with it               │
//!   │                                                                      │
//!   │ flight    network threads: HTTP/2, Flight SQL, encoding of results   │
//!   │    │ statement                    ▲ record batches                   │
//!   │    ▼                              │                                  │
//!   │ engine    planning and query threads: session, plan, scan, operators │
//!   │           memory pool and spill directory, shared by all queries     │
//!   └──────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Network and queries have threads of their own, so that a busy query never delays the news
//! that its client is gone, or that somebody cancels it.
//!
//! - [`process`]: start, the talk with the agent, the end.
//! - [`privileges`]: becoming the user that is served.
//! - [`engine`]: sessions, statements, queries, memory.
//! - [`planner`]: which parts of a plan run on the GPU.
//! - [`operators`]: those that run on the GPU; [`batch`]: what they work on; [`gpu`]: its memory and
//!   turns.
//! - [`flight`]: the protocol.
//! - [`ExecutorError`]: what can go wrong.

pub mod batch;
pub mod engine;
mod error;
pub mod flight;
pub mod gpu;
pub mod operators;
pub mod planner;
pub mod privileges;
pub mod process;

pub use error::{ExecutorError, Result};
