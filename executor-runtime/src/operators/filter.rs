//! GpuFilterExec: rows where a predicate is true.

use std::collections::VecDeque;
use std::sync::Arc;

use creel_gpu::memory::retry::with_retry;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;

use super::computation::Computation;
use super::metrics::GpuMetrics;
use super::node::{GpuExec, Operator};
use super::stream::DeviceStream;
use crate::batch::{Batch, select};
use crate::gpu::{GpuError, Work};

/// `FilterExec` on the GPU.
pub type GpuFilterExec = GpuExec<Filter>;

/// Rows where a predicate is true.
#[derive(Clone, Debug)]
pub struct Filter {
    predicate: Arc<Computation>,
    /// The columns that are handed on.
    columns: Vec<usize>,
    fetch: Option<usize>,
}

impl GpuFilterExec {
    /// Filters in the place of `cpu`. The predicate's one output is Boolean, and computed: its bitmap
    /// begins with the first row, which that of a column of the input need not do; `projection` are the
    /// columns to hand on, and `fetch` how many rows are wanted.
    pub fn new(
        cpu: Arc<dyn ExecutionPlan>,
        input: Arc<dyn ExecutionPlan>,
        predicate: Computation,
        projection: Option<Vec<usize>>,
        fetch: Option<usize>,
    ) -> Self {
        let columns = projection.unwrap_or_else(|| (0..input.schema().fields().len()).collect());
        let filter = Filter { predicate: Arc::new(predicate), columns, fetch };
        Self::with_operator(cpu, input, filter)
    }
}

impl Operator for Filter {
    const NAME: &'static str = "GpuFilterExec";

    fn start(
        &self,
        input: Box<dyn DeviceStream>,
        partition: usize,
        _: &Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Box<dyn DeviceStream> {
        let metrics = GpuMetrics::of_kernels(metrics, partition);
        let left = self.fetch.unwrap_or(usize::MAX);
        Box::new(Filtered { input, filter: self.clone(), left, ready: VecDeque::new(), metrics })
    }
}

struct Filtered {
    input: Box<dyn DeviceStream>,
    filter: Filter,
    /// Rows that are still wanted.
    left: usize,
    ready: VecDeque<Batch>,
    metrics: GpuMetrics,
}

impl DeviceStream for Filtered {
    fn next(&mut self, work: &mut Work<'_>) -> Result<Option<Batch>, GpuError> {
        while self.ready.is_empty() && self.left > 0 {
            let Some(batch) = self.input.next(work)? else { break };
            let (work, filter) = (&*work, &self.filter);
            let selected = self.metrics.step(work, |metrics| {
                with_retry(work.task(), metrics.attempts(), batch, |batch| {
                    select::select(work, &filter.predicate, batch, &filter.columns)
                })
            })?;
            self.metrics.output(selected.iter().flatten());
            self.ready.extend(selected.into_iter().flatten());
        }
        let Some(batch) = self.ready.pop_front().filter(|_| self.left > 0) else {
            self.metrics.settle()?;
            return Ok(None);
        };
        let rows = self.left.min(batch.rows() as usize);
        self.left -= rows;
        Ok(Some(batch.slice(0, rows as u32)))
    }
}
