//! The kernels, each with its one caller: what it is given, checked, and the launch that fits it.
//!
//! Memory is the caller's: it reserves before it uses, so each primitive says what it takes, in
//! bytes, and steps whose results decide the size of the next end with a number. Everything is work
//! in the order of a stream; what returns a number waits for it.
//!
//! ```text
//!   evaluate ─▶ filter ─▶ gather          WHERE, SELECT
//!   evaluate ─▶ hash ─▶ group ─▶ aggregate ─▶ gather of the groups' rows     GROUP BY
//! ```
//!
//! - [`mod@evaluate`]: programs of expressions.
//! - [`scan`]: prefix sums.
//! - [`filter`]: from a predicate to rows.
//! - [`gather`]: rows by index.
//! - [`append`]: batches put together.
//! - [`group`]: rows by key.
//! - [`aggregate`]: states of groups.

pub mod aggregate;
pub mod append;
pub mod evaluate;
pub mod filter;
pub mod gather;
pub mod group;
pub mod scan;

/// Threads of a block, but for `evaluate`.
const THREADS: u32 = 256;

/// The index that is no row: gathering it gives null.
pub const NO_ROW: u32 = u32::MAX;

/// Blocks for one thread each.
fn blocks(threads: u32) -> u64 {
    u64::from(threads.div_ceil(THREADS))
}
