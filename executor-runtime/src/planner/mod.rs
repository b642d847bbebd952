//! Which parts of a plan run on the GPU.
//!
//! ```text
//!   SQL ──DataFusion──▶ physical plan ──GpuRule──▶ the same, with Gpu operators ──▶ it runs
//!                                         │
//!                                         └──▶ Report: what is where, and why ──▶ EXPLAIN, log
//! ```
//!
//! A query never fails because a part isn't for the GPU: that part runs where it always ran, and
//! the report says why. Only `gpu.mode = required` refuses.
//!
//! - [`statement`]: a statement's plan, by the settings of its session.
//! - [`rule`]: which operators go to the GPU; [`cost`]: whether it is worth it.
//! - [`data_type`], [`expression`], [`computation`], [`aggregate`]: what they compute there.
//! - [`reason`], [`report`]: why some don't, and how that is told.

pub mod aggregate;
pub mod computation;
pub mod cost;
pub mod data_type;
pub mod expression;
pub mod reason;
pub mod report;
pub mod rule;
pub mod statement;

#[cfg(test)]
mod tests;
