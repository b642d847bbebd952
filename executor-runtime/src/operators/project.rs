//! GpuProjectExec: columns that are computed of others.

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
use crate::batch::{Batch, evaluate};
use crate::gpu::{GpuError, Work};

/// `ProjectionExec` on the GPU.
pub type GpuProjectExec = GpuExec<Project>;

/// Columns that are computed of others.
#[derive(Clone, Debug)]
pub struct Project {
    computation: Arc<Computation>,
}

impl GpuProjectExec {
    /// Projects in the place of `cpu`.
    pub fn new(
        cpu: Arc<dyn ExecutionPlan>,
        input: Arc<dyn ExecutionPlan>,
        computation: Computation,
    ) -> Self {
        Self::with_operator(cpu, input, Project { computation: Arc::new(computation) })
    }
}

impl Operator for Project {
    const NAME: &'static str = "GpuProjectExec";

    fn start(
        &self,
        input: Box<dyn DeviceStream>,
        partition: usize,
        _: &Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Box<dyn DeviceStream> {
        let metrics = GpuMetrics::of_kernels(metrics, partition);
        let computation = Arc::clone(&self.computation);
        Box::new(Projected { input, computation, ready: VecDeque::new(), metrics })
    }
}

struct Projected {
    input: Box<dyn DeviceStream>,
    computation: Arc<Computation>,
    ready: VecDeque<Batch>,
    metrics: GpuMetrics,
}

impl DeviceStream for Projected {
    fn next(&mut self, work: &mut Work<'_>) -> Result<Option<Batch>, GpuError> {
        if self.ready.is_empty()
            && let Some(batch) = self.input.next(work)?
        {
            let (work, computation) = (&*work, &self.computation);
            let computed = self.metrics.step(work, |metrics| {
                with_retry(work.task(), metrics.attempts(), batch, |batch| {
                    evaluate::compute(work, computation, batch)
                })
            })?;
            self.metrics.output(&computed);
            self.ready.extend(computed);
        }
        if self.ready.is_empty() {
            self.metrics.settle()?;
        }
        Ok(self.ready.pop_front())
    }
}
