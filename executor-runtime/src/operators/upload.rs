//! GpuUploadExec: from the host to the device.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use creel_gpu::memory::retry::{Split, with_retry};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet,
};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions, Statistics,
};
use futures::StreamExt;

use super::metrics::GpuMetrics;
use super::node::GpuNode;
use super::stream::DeviceStream;
use crate::batch::{Batch, upload};
use crate::gpu::{GpuError, Work};

/// Rows of a batch, at the most; bytes end most of them before.
const ROWS: usize = 1 << 28;

/// Bytes of a column's strings from which on a batch is large enough: offsets have 31 bits.
const STRINGS: u64 = 1 << 30;

/// Puts the batches of its input together, and copies them to the device.
#[derive(Debug)]
pub struct GpuUploadExec {
    input: Arc<dyn ExecutionPlan>,
    batch_bytes: u64,
    metrics: ExecutionPlanMetricsSet,
}

impl GpuUploadExec {
    /// Uploads batches of about so many bytes (`gpu.batch_bytes`).
    pub fn new(input: Arc<dyn ExecutionPlan>, batch_bytes: u64) -> Self {
        Self { input, batch_bytes, metrics: ExecutionPlanMetricsSet::new() }
    }
}

impl GpuNode for GpuUploadExec {
    fn open(&self, partition: usize, context: &Arc<TaskContext>) -> Result<Box<dyn DeviceStream>> {
        // Not that it spills: it goes on with less, so others come first.
        let name = format!("GpuUploadExec[{partition}]");
        let consumer = MemoryConsumer::new(name).with_can_spill(true);
        Ok(Box::new(Uploads {
            input: self.input.execute(partition, Arc::clone(context))?,
            schema: self.input.schema(),
            batch_bytes: self.batch_bytes,
            reservation: consumer.register(context.memory_pool()),
            ready: VecDeque::new(),
            at_end: false,
            uploaded: MetricBuilder::new(&self.metrics).counter("uploaded_bytes", partition),
            metrics: GpuMetrics::of_copies(&self.metrics, partition),
        }))
    }
}

struct Uploads {
    input: SendableRecordBatchStream,
    schema: SchemaRef,
    batch_bytes: u64,
    /// The engine's memory, for batches that wait to be put together.
    reservation: MemoryReservation,
    ready: VecDeque<Batch>,
    at_end: bool,
    uploaded: Count,
    metrics: GpuMetrics,
}

/// Batches of the host that become one on the device.
struct Pieces(Vec<RecordBatch>);

impl Pieces {
    fn rows(&self) -> usize {
        self.0.iter().map(RecordBatch::num_rows).sum()
    }
}

impl Split for Pieces {
    fn indivisible(&self) -> Option<&'static str> {
        (self.rows() < 2).then_some("it is one row")
    }

    fn split(self) -> [Self; 2] {
        let mut left = self.rows() / 2;
        let mut first = self.0;
        let mut second = Vec::new();
        let whole = first.iter().take_while(|piece| {
            let fits = piece.num_rows() <= left;
            left -= if fits { piece.num_rows() } else { 0 };
            fits
        });
        let mut rest = first.split_off(whole.count()).into_iter();
        if let Some(cut) = rest.next() {
            if left > 0 {
                first.push(cut.slice(0, left));
            }
            second.push(cut.slice(left, cut.num_rows() - left));
        }
        second.extend(rest);
        [Self(first), Self(second)]
    }
}

impl Uploads {
    /// Batches of the input that are large enough together, or the last ones.
    fn collect(&mut self, work: &mut Work<'_>) -> Result<Pieces, GpuError> {
        let mut pieces = Vec::new();
        let (mut rows, mut bytes, mut strings) = (0, 0, 0);
        // One at the least, however little is wanted.
        while pieces.is_empty() || rows < ROWS && bytes < self.batch_bytes && strings < STRINGS {
            let Some(batch) = work.wait_for(self.input.next())? else {
                self.at_end = true;
                break;
            };
            let batch = batch?;
            if batch.num_rows() == 0 {
                continue;
            }
            let (more, longest) = upload::bytes(&batch);
            (rows, bytes) = (rows + batch.num_rows(), bytes + more);
            strings += longest;
            let room = self.reservation.try_grow(batch.get_array_memory_size());
            pieces.push(batch);
            if room.is_err() {
                // The engine has no memory for more.
                break;
            }
        }
        Ok(Pieces(pieces))
    }
}

impl DeviceStream for Uploads {
    fn next(&mut self, work: &mut Work<'_>) -> Result<Option<Batch>, GpuError> {
        while self.ready.is_empty() && !self.at_end {
            let pieces = self.collect(work)?;
            if pieces.0.is_empty() {
                continue;
            }
            work.begin()?;
            let (work, schema, uploaded) = (work.uploading(), &self.schema, &self.uploaded);
            let batches = self.metrics.step(&work, |metrics| {
                with_retry(work.task(), metrics.attempts(), pieces, |pieces| {
                    let batch = upload::upload(&work, schema, &pieces.0)?;
                    let bytes: u64 = pieces.0.iter().map(|piece| upload::bytes(piece).0).sum();
                    uploaded.add(bytes as usize);
                    Ok(batch)
                })
            })?;
            self.reservation.free();
            self.metrics.output(&batches);
            self.ready.extend(batches);
        }
        if self.ready.is_empty() {
            self.metrics.settle()?;
        }
        Ok(self.ready.pop_front())
    }
}

impl DisplayAs for GpuUploadExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => write!(f, "batch_bytes={}", self.batch_bytes),
            _ => write!(f, "GpuUploadExec: batch_bytes={}", self.batch_bytes),
        }
    }
}

impl ExecutionPlan for GpuUploadExec {
    fn name(&self) -> &'static str {
        "GpuUploadExec"
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
            return internal_err!("GpuUploadExec needs an input");
        };
        Ok(Arc::new(Self::new(input, self.batch_bytes)))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, super::RECOMPUTE)
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("GpuUploadExec gives batches of the device: GpuDownloadExec executes it")
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
