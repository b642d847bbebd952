//! Whether a part of a plan is worth the way to the GPU and back.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

/// Rows that the scans below are about to give together, by their statistics; none if one of them
/// doesn't know.
///
/// Scans, and not the input itself: so both halves of an aggregate are judged alike, though but a
/// few groups come between them.
pub fn rows_scanned(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let children = plan.children();
    if children.is_empty() {
        let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new());
        return statistics.ok()?.num_rows.get_value().copied();
    }
    children
        .into_iter()
        .map(rows_scanned)
        .try_fold(0_usize, |all, rows| Some(all.saturating_add(rows?)))
}
