//! Showing, making and taking back changes of files.
//!
//! ```text
//!   plan ──diff──▶ unified diff
//!     │
//!     └──apply──▶ 1. lock the directory          yarn-site.xml           the file
//!                 2. write every new file beside  .yarn-site.xml.creel-1  its next content
//!                    the old, and sync            .creel/record.json      what was changed, and how
//!                 3. write the record             .creel/yarn-site.xml.before-1, .after-1
//!                 4. rename, file by file                      │
//!                                                              ▼
//!                                 undo: a file that is as it was written gets back what it was;
//!                                 one that was edited since loses the recorded entries alone
//! ```
//!
//! Whatever fails before step 4 leaves every file as it was; what fails in it is taken back. A
//! crash in it leaves a prefix of the files changed, an order in which every daemon starts
//! ([`File`](crate::File)), and a record with which [`undo()`] works.
//!
//! The record is in the directory that it is about, so that it is found by whoever finds that; a
//! directory, so that neither Java's class path nor Spark, which sends the files of a configuration
//! directory along, takes it for one of Hadoop's.

mod apply;
mod diff;
mod lock;
mod record;
mod replace;
mod undo;

pub use self::apply::apply;
pub use self::diff::diff;
pub use self::record::{Made, Record, Written, recorded};
pub use self::undo::{Undone, undo};
