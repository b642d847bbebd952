//! What EXPLAIN ANALYZE says of an operator on the GPU.

use creel_gpu::device::Event;
use creel_gpu::memory::retry::Attempts;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, Time};

use crate::batch::Batch;
use crate::gpu::{GpuError, Work};

/// An operator's counters, in one partition.
pub struct GpuMetrics {
    elapsed: Time,
    rows: Count,
    device_time: Time,
    unspilled: Count,
    retries: Count,
    splits: Count,
    attempts: Attempts,
    /// The last step's start and end, whose time is not known yet.
    pending: Option<(Event, Event)>,
}

impl GpuMetrics {
    /// Counters of a partition of an operator that computes.
    pub fn of_kernels(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        Self::new(metrics, partition, "kernel_time")
    }

    /// Counters of a partition of one that copies.
    pub fn of_copies(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        Self::new(metrics, partition, "copy_time")
    }

    fn new(metrics: &ExecutionPlanMetricsSet, partition: usize, time: &'static str) -> Self {
        let count = |name: &'static str| MetricBuilder::new(metrics).counter(name, partition);
        Self {
            elapsed: MetricBuilder::new(metrics).elapsed_compute(partition),
            rows: MetricBuilder::new(metrics).output_rows(partition),
            device_time: MetricBuilder::new(metrics).subset_time(time, partition),
            unspilled: count("unspilled_bytes"),
            retries: count("retries"),
            splits: count("splits"),
            attempts: Attempts::default(),
            pending: None,
        }
    }

    /// Where retry blocks count.
    pub fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    /// Takes a step, and measures its time on the device by events in the region's stream, and on the
    /// host.
    pub fn step<T>(
        &mut self,
        work: &Work<'_>,
        step: impl FnOnce(&Self) -> Result<T, GpuError>,
    ) -> Result<T, GpuError> {
        self.settle()?;
        let elapsed = self.elapsed.clone();
        let _elapsed = elapsed.timer();
        let start = Event::record(work.stream(), true)?;
        let before = work.unspilled();
        let result = step(self);
        self.unspilled.add((work.unspilled() - before) as usize);
        self.count_attempts();
        let result = result?;
        self.pending = Some((start, Event::record(work.stream(), true)?));
        Ok(result)
    }

    /// Counts batches that are handed on.
    pub fn output<'a>(&self, batches: impl IntoIterator<Item = &'a Batch>) {
        self.output_rows(batches.into_iter().map(|batch| batch.rows() as usize).sum());
    }

    /// Counts rows that are handed on.
    pub fn output_rows(&self, rows: usize) {
        self.rows.add(rows);
    }

    /// Counts the last step's time, which is known once the device is past its end.
    pub fn settle(&mut self) -> Result<(), GpuError> {
        if let Some((start, end)) = self.pending.take() {
            end.wait()?;
            self.device_time.add_duration(end.since(&start)?);
        }
        Ok(())
    }

    fn count_attempts(&self) {
        let (retries, splits) = (self.attempts.retries(), self.attempts.splits());
        self.retries.add(retries as usize - self.retries.value());
        self.splits.add(splits as usize - self.splits.value());
    }
}
