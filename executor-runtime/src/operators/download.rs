//! GpuDownloadExec: from the device to the host, and the thread that all above it is computed on.
//!
//! A region of GPU operators waits: for its turn on the GPU, for memory, for the device. So each of
//! its partitions has a thread of its own, which the query threads don't wait for but through a short
//! channel. Input from the CPU is computed on that thread too.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use creel_gpu::memory::retry::with_retry;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, exec_err, internal_datafusion_err, internal_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, Time,
};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions,
    Statistics, displayable,
};
use futures::Stream as FuturesStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::metrics::GpuMetrics;
use super::node::gpu_input;
use super::stream::DeviceStream;
use crate::batch::Batch;
use crate::batch::download::download;
use crate::engine::failure::of_panic;
use crate::gpu::{GpuError, GpuQuery, Work};
use crate::process::STACK_BYTES;

/// Batches that wait for whoever reads them.
const BATCHES_AHEAD: usize = 2;

/// Batches of the engine's size that are copied at once.
const BATCHES_AT_ONCE: usize = 16;

/// Copies batches to the host.
#[derive(Debug)]
pub struct GpuDownloadExec {
    input: Arc<dyn ExecutionPlan>,
    metrics: ExecutionPlanMetricsSet,
}

impl GpuDownloadExec {
    /// Downloads the batches of a GPU operator.
    pub fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// What kind of work it is: the same for the same operators, whichever partition and query.
    fn stage(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        displayable(self.input.as_ref()).indent(false).to_string().hash(&mut hasher);
        hasher.finish()
    }
}

impl DisplayAs for GpuDownloadExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => Ok(()),
            _ => f.write_str("GpuDownloadExec"),
        }
    }
}

impl ExecutionPlan for GpuDownloadExec {
    fn name(&self) -> &'static str {
        "GpuDownloadExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(input) = children.pop() else {
            return internal_err!("GpuDownloadExec needs an input");
        };
        Ok(Arc::new(Self::new(input)))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, super::RECOMPUTE)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let Some(query) = context.session_config().get_extension::<GpuQuery>() else {
            return internal_err!("a plan for the GPU runs without one");
        };
        let region = Region {
            source: gpu_input(self.input.as_ref())?.open(partition, &context)?,
            query,
            schema: self.schema(),
            stage: self.stage(),
            batch_rows: context.session_config().batch_size(),
            waited: MetricBuilder::new(&self.metrics).subset_time("semaphore_wait", partition),
            downloaded: MetricBuilder::new(&self.metrics).counter("downloaded_bytes", partition),
            metrics: GpuMetrics::of_copies(&self.metrics, partition),
        };
        Ok(Box::pin(RegionStream {
            schema: self.schema(),
            state: State::Waiting(Box::new(region)),
        }))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(
        &self,
        input: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&input[0]))
    }
}

/// A partition of a region, before it runs.
struct Region {
    source: Box<dyn DeviceStream>,
    query: Arc<GpuQuery>,
    schema: SchemaRef,
    stage: u64,
    batch_rows: usize,
    waited: Time,
    downloaded: Count,
    metrics: GpuMetrics,
}

impl Region {
    /// Runs on a thread of its own; its batches come through the channel.
    fn start(self, threads: Handle) -> Result<Receiver<Result<RecordBatch>>> {
        let (sender, receiver) = channel(BATCHES_AHEAD);
        let thread = std::thread::Builder::new().name("gpu".into()).stack_size(STACK_BYTES);
        let run = move || {
            let last = sender.clone();
            let outcome = catch_unwind(AssertUnwindSafe(|| self.run(threads, sender)));
            let error = match outcome {
                Ok(Ok(()) | Err(GpuError::Unwanted)) => return,
                Ok(Err(error)) => error.into(),
                Err(panic) => {
                    internal_datafusion_err!("the GPU's thread broke off: {}", of_panic(&*panic))
                }
            };
            // Nobody may be there to hear it.
            let _ = last.blocking_send(Err(error));
        };
        match thread.spawn(run) {
            Ok(_) => Ok(receiver),
            Err(error) => exec_err!("no thread can be had for the GPU: {error}"),
        }
    }

    fn run(self, threads: Handle, sender: Sender<Result<RecordBatch>>) -> Result<(), GpuError> {
        let query = Arc::clone(&self.query);
        let gpu = query.gpu();
        self.compute(threads, sender).map_err(|error| {
            if error.is_final() {
                gpu.fail(&error.to_string());
            }
            match gpu.spill().take_failure() {
                Some(spill) if error.is_shortage() => error.after(&spill),
                _ => error,
            }
        })
    }

    fn compute(
        mut self,
        threads: Handle,
        sender: Sender<Result<RecordBatch>>,
    ) -> Result<(), GpuError> {
        let gpu = Arc::clone(self.query.gpu());
        let task = self.query.task(self.stage);
        let streams = [Arc::new(gpu.context().stream()?), Arc::new(gpu.context().stream()?)];
        let copiers = streams.each_ref().map(|stream| gpu.copier(stream));
        let result = {
            let work = Work::new(&gpu, &task, copiers, threads, sender, self.waited.clone());
            self.pump(work)
        };
        // Its batches go back before the pool forgets the streams.
        drop(self.source);
        let retired = streams.iter().try_for_each(|stream| gpu.pool().retire(stream.id()));
        result.and(retired.map_err(GpuError::from))
    }

    fn pump(&mut self, mut work: Work<'_>) -> Result<(), GpuError> {
        let rows = self.batch_rows.saturating_mul(BATCHES_AT_ONCE);
        while let Some(batch) = self.source.next(&mut work)? {
            // What waits for a slow reader waits where it may be spilled.
            for first in (0..batch.rows()).step_by(rows) {
                work.begin()?;
                let part = batch.slice(first, (batch.rows() - first).min(rows as u32));
                self.hand_out(&mut work, part)?;
            }
        }
        self.metrics.settle()
    }

    /// Copies a batch to the host, and hands it out.
    fn hand_out(&mut self, work: &mut Work<'_>, batch: Batch) -> Result<(), GpuError> {
        let downloaded = self.metrics.step(work, |metrics| {
            with_retry(work.task(), metrics.attempts(), batch, |batch| {
                download(work, batch, &self.schema)
            })
        })?;
        for downloaded in downloaded {
            self.downloaded.add(downloaded.bytes as usize);
            for batch in downloaded.batches(self.batch_rows) {
                let batch = batch?;
                self.metrics.output_rows(batch.num_rows());
                work.send(batch)?;
            }
        }
        Ok(())
    }
}

/// A region's batches. Its thread starts when the first one is asked for, and ends when this is
/// dropped.
struct RegionStream {
    schema: SchemaRef,
    state: State,
}

enum State {
    Waiting(Box<Region>),
    Running(Receiver<Result<RecordBatch>>),
    Failed,
}

impl FuturesStream for RegionStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let State::Waiting(_) = &self.state {
            let State::Waiting(region) = std::mem::replace(&mut self.state, State::Failed) else {
                unreachable!("it was waiting just now");
            };
            match region.start(Handle::current()) {
                Ok(receiver) => self.state = State::Running(receiver),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        match &mut self.state {
            State::Running(receiver) => receiver.poll_recv(context),
            State::Waiting(_) | State::Failed => Poll::Ready(None),
        }
    }
}

impl RecordBatchStream for RegionStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
