//! GpuHashAggregateExec: groups, and what is computed of each.
//!
//! ```text
//!   batch ─▶ keys, arguments ─▶ groups and states ─┐
//!   batch ─▶ keys, arguments ─▶ groups and states ─┼▶ put together ─▶ groups and states ─▶ results
//!   batch ─▶ keys, arguments ─▶ groups and states ─┘
//! ```
//!
//! Each batch becomes the states of its groups, which rest until there are enough to put them
//! together and group them once more. Where that takes more memory than there is, it is done for a
//! part of the groups at a time, by the hash of their keys.

use std::collections::VecDeque;
use std::sync::Arc;

use creel_gpu::memory::ledger::Kind;
use creel_gpu::memory::retry::{Split, with_retry, with_retry_no_split};
use creel_gpu::program::{self, Comparison, Expression, Scalar};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;

use super::computation::{Aggregation, Computation, Output, Pass};
use super::metrics::GpuMetrics;
use super::node::{GpuExec, Operator};
use super::stream::DeviceStream;
use crate::batch::group::{self, Reduction};
use crate::batch::{Batch, concat, evaluate, select, upload};
use crate::gpu::{GpuError, Work};

/// `AggregateExec` on the GPU.
pub type GpuHashAggregateExec = GpuExec<HashAggregate>;

/// Rows of states that rest before they are put together, at the least.
const RESTING_ROWS: u64 = 1 << 20;

/// States rest in pieces of that share of the device's memory, so that a part of their groups can be
/// looked for in one after the other.
const RESTING_SHARE: u64 = 16;

/// Groups, and what is computed of each.
#[derive(Clone, Debug)]
pub struct HashAggregate {
    aggregation: Arc<Aggregation>,
    input: SchemaRef,
}

impl GpuHashAggregateExec {
    /// Groups in the place of `cpu`.
    pub fn new(
        cpu: Arc<dyn ExecutionPlan>,
        input: Arc<dyn ExecutionPlan>,
        aggregation: Aggregation,
    ) -> Self {
        let schema = input.schema();
        let aggregate = HashAggregate { aggregation: Arc::new(aggregation), input: schema };
        Self::with_operator(cpu, input, aggregate)
    }
}

impl HashAggregate {
    /// The groups of a batch, and their states.
    fn first(&self, work: &Work<'_>, batch: &Batch) -> Result<Batch, GpuError> {
        let Aggregation { arguments, keys, states, schema, .. } = &*self.aggregation;
        let arguments = evaluate::compute(work, arguments, batch)?;
        let reductions: Vec<_> = states
            .iter()
            .map(|state| Reduction { argument: state.argument, operation: state.operation })
            .collect();
        group::group(work, &arguments, *keys, &reductions, schema)
    }

    /// The groups of several, or of a part of them, in pieces that may rest each for itself.
    fn merge(&self, work: &Work<'_>, states: &Resting) -> Result<Vec<Batch>, GpuError> {
        let keys = self.aggregation.keys;
        let batches: Vec<Batch> = match &states.hashes {
            None => states.batches.to_vec(),
            Some(hashes) => {
                let parts = states.batches.iter();
                let parts = parts.map(|batch| hashes.select(work, batch, keys));
                parts.filter_map(Result::transpose).collect::<Result<_, _>>()?
            }
        };
        if batches.is_empty() {
            return Ok(Vec::new());
        }
        let whole = concat::concat(work, &batches)?;
        drop(batches);
        let reductions: Vec<_> = self
            .aggregation
            .states
            .iter()
            .enumerate()
            .map(|(place, state)| Reduction {
                argument: Some(keys + place),
                operation: state.merge,
            })
            .collect();
        let merged = group::group(work, &whole, keys, &reductions, &self.aggregation.schema)?;
        drop(whole);
        let device = work.gpu().ledger().limits().bytes.of(Kind::Device);
        concat::cut(work, merged, device / RESTING_SHARE)
    }
}

/// States that rest until they are put together.
#[derive(Clone)]
struct Resting {
    batches: Arc<Vec<Batch>>,
    keys: usize,
    /// Which groups of them; absent for all.
    hashes: Option<Hashes>,
}

impl Split for Resting {
    fn indivisible(&self) -> Option<&'static str> {
        match self.hashes {
            _ if self.keys == 0 => Some("it is one group"),
            Some(Hashes { low, high }) if low == high => Some("its groups have the same hash"),
            _ => None,
        }
    }

    fn split(self) -> [Self; 2] {
        let Hashes { low, high } = self.hashes.unwrap_or(Hashes { low: i32::MIN, high: i32::MAX });
        let middle = ((i64::from(low) + i64::from(high)) >> 1) as i32;
        let of = |low, high| Self { hashes: Some(Hashes { low, high }), ..self.clone() };
        [of(low, middle), of(middle + 1, high)]
    }
}

/// Groups by the hash of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hashes {
    low: i32,
    high: i32,
}

impl Hashes {
    /// The groups of a batch whose hash is one of these.
    fn select(
        self,
        work: &Work<'_>,
        batch: &Batch,
        keys: usize,
    ) -> Result<Option<Batch>, GpuError> {
        let columns: Vec<usize> = (0..batch.columns().len()).collect();
        let hashed = group::with_hashes(work, batch, keys)?;
        select::select(work, &self.predicate(columns.len()), &hashed, &columns)
    }

    /// Whether the column at the place has one of these.
    fn predicate(self, place: usize) -> Computation {
        let between = || -> Result<_, program::Error> {
            let bound = |value: i32| {
                Expression::literal(&Scalar::Integer(value.into(), program::DataType::Int32))
            };
            let hash = Expression::column(0, program::DataType::Int32)?;
            let above = Expression::compare(Comparison::GreaterOrEqual, &hash, &bound(self.low)?)?;
            let below = Expression::compare(Comparison::LessOrEqual, &hash, &bound(self.high)?)?;
            program::compile(&[Expression::and(&above, &below)?])
        };
        let program = between().expect("a program of two comparisons");
        let data_type = DataType::Boolean;
        Computation {
            passes: vec![Pass { program, columns: vec![place] }],
            outputs: vec![Output::Computed { pass: 0, output: 0, data_type }],
        }
    }
}

impl Operator for HashAggregate {
    const NAME: &'static str = "GpuHashAggregateExec";

    fn start(
        &self,
        input: Box<dyn DeviceStream>,
        partition: usize,
        _: &Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Box<dyn DeviceStream> {
        Box::new(Aggregated {
            input,
            aggregate: self.clone(),
            resting: Vec::new(),
            rows_after_merge: 0,
            at_end: false,
            ready: VecDeque::new(),
            metrics: GpuMetrics::of_kernels(metrics, partition),
        })
    }
}

struct Aggregated {
    input: Box<dyn DeviceStream>,
    aggregate: HashAggregate,
    resting: Vec<Batch>,
    /// Rows that rested after they were put together last.
    rows_after_merge: u64,
    at_end: bool,
    ready: VecDeque<Batch>,
    metrics: GpuMetrics,
}

impl Aggregated {
    fn rows(&self) -> u64 {
        self.resting.iter().map(|batch| u64::from(batch.rows())).sum()
    }

    fn take(&mut self, work: &Work<'_>, batch: Batch) -> Result<(), GpuError> {
        let aggregate = &self.aggregate;
        let states = self.metrics.step(work, |metrics| {
            with_retry(work.task(), metrics.attempts(), batch, |batch| aggregate.first(work, batch))
        })?;
        self.resting.extend(states);
        Ok(())
    }

    /// Puts what rests together: after this no two of its rows have the same keys.
    fn merge(&mut self, work: &Work<'_>) -> Result<(), GpuError> {
        if self.resting.len() > 1 {
            let aggregate = &self.aggregate;
            let batches = Arc::new(std::mem::take(&mut self.resting));
            let keys = aggregate.aggregation.keys;
            let resting = Resting { batches, keys, hashes: None };
            let merged = self.metrics.step(work, |metrics| {
                with_retry(work.task(), metrics.attempts(), resting, |resting| {
                    aggregate.merge(work, resting)
                })
            })?;
            self.resting.extend(merged.into_iter().flatten());
        }
        self.rows_after_merge = self.rows();
        Ok(())
    }

    /// The result of what rests.
    fn finish(&mut self, work: &Work<'_>) -> Result<(), GpuError> {
        let aggregate = self.aggregate.clone();
        if self.resting.is_empty() && aggregate.aggregation.keys == 0 {
            // One group, of no rows.
            let empty = [RecordBatch::new_empty(Arc::clone(&aggregate.input))];
            let empty = self.metrics.step(work, |metrics| {
                with_retry_no_split(work.task(), metrics.attempts(), || {
                    upload::upload(work, &aggregate.input, &empty)
                })
            })?;
            self.take(work, empty)?;
        }
        self.merge(work)?;
        for batch in std::mem::take(&mut self.resting) {
            let Some(results) = &aggregate.aggregation.results else {
                self.ready.push_back(batch);
                continue;
            };
            let results = self.metrics.step(work, |metrics| {
                with_retry(work.task(), metrics.attempts(), batch, |batch| {
                    evaluate::compute(work, results, batch)
                })
            })?;
            self.ready.extend(results);
        }
        self.metrics.output(&self.ready);
        Ok(())
    }
}

impl DeviceStream for Aggregated {
    fn next(&mut self, work: &mut Work<'_>) -> Result<Option<Batch>, GpuError> {
        while !self.at_end {
            let Some(batch) = self.input.next(work)? else {
                self.at_end = true;
                work.begin()?;
                self.finish(work)?;
                break;
            };
            self.take(work, batch)?;
            if self.rows() > RESTING_ROWS.max(2 * self.rows_after_merge) {
                self.merge(work)?;
            }
        }
        if self.ready.is_empty() {
            self.metrics.settle()?;
        }
        Ok(self.ready.pop_front())
    }
}
