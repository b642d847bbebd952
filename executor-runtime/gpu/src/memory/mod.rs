//! Memory of the device and of the host beside it.
//!
//! ```text
//!   operator ── retry ─── takes a step again, or halves of it
//!       │
//!     Task ──── semaphore: may it use the GPU now?
//!       │ ───── ledger ─── may it have so many bytes?  try, spill, wait, retry, split, fail
//!       │          └────── spill: batches at rest go to the host, then to disk
//!       │ ───── pool ───── where are they?
//!       │ ───── pinned ─── slabs for copies
//!       ▼
//!   upstream ── the driver
//! ```
//!
//! How large all that is follows from the settings `gpu.memory.*` and what the driver and the host
//! tell: [`sizing`] for the device, [`host`] for the host.
//!
//! - [`error`]: what can go wrong, and what the caller may do about it.
//! - [`host`]: how much of the host's memory there is to use.
//! - [`ledger`]: who may have how much.
//! - [`pinned`]: page-locked memory.
//! - [`pool`]: device memory in pieces.
//! - [`retry`]: steps that are taken again.
//! - [`semaphore`]: how many tasks use the GPU.
//! - [`sizing`]: how large the pool is.
//! - [`spill`]: batches at rest.
//! - [`upstream`]: what the driver gives.

#[cfg(test)]
mod double;
pub mod error;
pub mod host;
pub mod ledger;
pub mod pinned;
pub mod pool;
pub mod retry;
pub mod semaphore;
pub mod sizing;
pub mod spill;
pub mod upstream;
