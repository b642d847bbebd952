//! Moving parts of a physical plan to the GPU.
//!
//! ```text
//!   SortExec                            SortExec
//!     ProjectionExec                      GpuDownloadExec
//!       FilterExec                          GpuProjectExec
//!         SortMergeJoinExec                   GpuFilterExec
//!           …                                   GpuUploadExec
//!                                                 SortMergeJoinExec
//!                                                   …
//! ```
//!
//! The rule is the last one: what other rules did by pushing filters (dynamic ones too), limits and
//! orders into scans and joins stays as it is. Each operator is replaced by one that has its
//! properties.

use std::sync::{Arc, Mutex};

use creel_settings::GpuMode;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::config::ConfigOptions;
use datafusion::error::Result as DataFusionResult;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};

use super::aggregate::{aggregation, column_that_stays};
use super::computation::{Value, Wanted, computation};
use super::cost::rows_scanned;
use super::data_type::on_device;
use super::reason::Reason;
use super::report::{Decision, Report};
use crate::operators::computation::{Aggregation, Computation};
use crate::operators::{
    GpuDownloadExec, GpuFilterExec, GpuHashAggregateExec, GpuProjectExec, GpuUploadExec,
};

/// Moves what it can to the GPU, for one statement.
#[derive(Debug)]
pub struct GpuRule {
    mode: GpuMode,
    min_rows: usize,
    batch_bytes: u64,
    report: Mutex<Report>,
}

impl GpuRule {
    /// A rule for plans in that mode; `min_rows` and `batch_bytes` are the settings of that name.
    /// Whoever asks for `off` needs none.
    pub fn new(mode: GpuMode, min_rows: usize, batch_bytes: u64) -> Self {
        // Who insists on the GPU doesn't ask what it is worth.
        let min_rows = if mode == GpuMode::Required { 0 } else { min_rows };
        Self { mode, min_rows, batch_bytes, report: Mutex::default() }
    }

    /// What was decided for the plan that it was applied to last.
    pub fn report(&self) -> Report {
        self.report.lock().unwrap().clone()
    }
}

impl PhysicalOptimizerRule for GpuRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let mut rewrite = Rewrite { rule: self, decisions: Vec::new() };
        let rewritten = rewrite.plan(&plan)?;
        *self.report.lock().unwrap() = Report { nowhere: None, decisions: rewrite.decisions };
        if Arc::ptr_eq(&plan, &rewritten) {
            return Ok(plan);
        }
        // What the operators require of each other was checked before this rule.
        SanityCheckPlan::new().optimize(rewritten, config)
    }

    fn name(&self) -> &'static str {
        "gpu"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// What an operator is on the GPU.
enum Form {
    Filter(Computation),
    Project(Computation),
    Aggregate(Aggregation),
}

impl Form {
    fn name(&self) -> &'static str {
        match self {
            Self::Filter(_) => "GpuFilterExec",
            Self::Project(_) => "GpuProjectExec",
            Self::Aggregate(_) => "GpuHashAggregateExec",
        }
    }

    fn replace(
        self,
        cpu: Arc<dyn ExecutionPlan>,
        input: Arc<dyn ExecutionPlan>,
    ) -> Arc<dyn ExecutionPlan> {
        match self {
            Self::Filter(predicate) => {
                let filter = cpu.downcast_ref::<FilterExec>();
                let projection = filter.and_then(|it| it.projection().as_ref());
                let projection = projection.map(|it| it.to_vec());
                let fetch = cpu.fetch();
                Arc::new(GpuFilterExec::new(cpu, input, predicate, projection, fetch))
            }
            Self::Project(computation) => Arc::new(GpuProjectExec::new(cpu, input, computation)),
            Self::Aggregate(aggregation) => {
                Arc::new(GpuHashAggregateExec::new(cpu, input, aggregation))
            }
        }
    }
}

/// Operators that stand on one another and are all for the GPU, from the top down.
struct Region {
    top: Arc<dyn ExecutionPlan>,
    operators: Vec<(Arc<dyn ExecutionPlan>, Form)>,
    input: Arc<dyn ExecutionPlan>,
}

struct Rewrite<'a> {
    rule: &'a GpuRule,
    decisions: Vec<Decision>,
}

impl Rewrite<'_> {
    fn plan(&mut self, plan: &Arc<dyn ExecutionPlan>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        if plan.is::<GpuDownloadExec>() {
            return Ok(Arc::clone(plan));
        }
        if plan.is::<RecursiveQueryExec>() {
            // What is in it runs again and again, on a few rows each time.
            let decision = Decision::on_cpu(plan.as_ref(), vec![Reason::Operator], true);
            self.decisions.push(decision);
            return Ok(Arc::clone(plan));
        }
        match self.region(plan) {
            Ok(region) => self.replace(region),
            Err(reasons) => {
                if !reasons.is_empty() {
                    let is_required =
                        is_required(plan.as_ref()) && !reasons.iter().all(Reason::is_choice);
                    self.decisions.push(Decision::on_cpu(plan.as_ref(), reasons, is_required));
                }
                self.children(plan)
            }
        }
    }

    fn children(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let children: DataFusionResult<Vec<_>> =
            plan.children().into_iter().map(|child| self.plan(child)).collect();
        replace_children_if_necessary(Arc::clone(plan), children?)
    }

    /// What can go to the GPU from here down, if this can; no reasons where none is asked for.
    fn region(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Region, Vec<Reason>> {
        let mut operators = vec![(Arc::clone(plan), form(plan)?)];
        let mut input = Arc::clone(plan.children()[0]);
        // Between two operators of a region there is nothing to yield for.
        while let next = below_wrappers(&input)
            && let Ok(form) = form(next)
        {
            let next = Arc::clone(next);
            input = Arc::clone(next.children()[0]);
            operators.push((next, form));
        }
        // What only orders columns does so as well before they go to the GPU.
        while let Some((last, _)) = operators.pop_if(|(last, _)| is_trivial(last.as_ref())) {
            input = last;
        }
        if operators.is_empty() {
            return Err(vec![Reason::NothingGained("it computes nothing")]);
        }
        if input.schema().fields().is_empty() {
            return Err(vec![Reason::NothingGained("no column comes in")]);
        }
        let min_rows = self.rule.min_rows;
        if min_rows > 0
            && let Some(rows) = rows_scanned(&input)
            && rows < min_rows
        {
            return Err(vec![Reason::TooFewRows { rows, min_rows }]);
        }
        Ok(Region { top: Arc::clone(plan), operators, input })
    }

    fn replace(&mut self, region: Region) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        for (cpu, form) in &region.operators {
            self.decisions.push(Decision::on_gpu(cpu.as_ref(), form.name()));
        }
        let input = self.plan(&region.input)?;
        if self.rule.mode == GpuMode::ExplainOnly {
            return Ok(region.top);
        }
        let mut plan: Arc<dyn ExecutionPlan> =
            Arc::new(GpuUploadExec::new(input, self.rule.batch_bytes));
        for (cpu, form) in region.operators.into_iter().rev() {
            plan = form.replace(cpu, plan);
        }
        Ok(Arc::new(GpuDownloadExec::new(plan)))
    }
}

/// What an operator is on the GPU, or why it is nothing there. No reasons are given for what only
/// moves rows, or gives them: nobody expects that there.
fn form(plan: &Arc<dyn ExecutionPlan>) -> Result<Form, Vec<Reason>> {
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        return match (aggregation(aggregate), column_that_stays(aggregate)) {
            (Ok(aggregation), None) => Ok(Form::Aggregate(aggregation)),
            (translated, column) => {
                Err(column.into_iter().chain(translated.err().into_iter().flatten()).collect())
            }
        };
    }
    let (wanted, as_form): (Vec<Wanted>, fn(Computation) -> Form) =
        if let Some(filter) = plan.downcast_ref::<FilterExec>() {
            let value = Value::Expression(Arc::clone(filter.predicate()));
            (vec![Wanted { value, data_type: DataType::Boolean }], Form::Filter)
        } else if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
            let schema = projection.schema();
            let columns = projection.expr().iter().zip(schema.fields());
            let wanted = columns.map(|(column, field)| Wanted {
                value: Value::of(&column.expr),
                data_type: field.data_type().clone(),
            });
            (wanted.collect(), Form::Project)
        } else if plan.children().is_empty() || MOVERS.contains(&plan.name()) {
            return Err(Vec::new());
        } else {
            return Err(vec![Reason::Operator]);
        };
    let input = plan.children()[0].schema();
    let stays = |schema: &Schema| {
        let field = schema.fields().iter().find(|field| on_device(field.data_type()).is_none());
        field.map(|field| Reason::column(field))
    };
    let column = stays(&input).or_else(|| stays(&plan.schema()));
    match (computation(&input, &wanted), column) {
        (Ok(computation), None) => Ok(as_form(computation)),
        (translated, column) => {
            Err(column.into_iter().chain(translated.err().into_iter().flatten()).collect())
        }
    }
}

/// Operators that compute nothing.
const MOVERS: [&str; 14] = [
    "AnalyzeExec",
    "BufferExec",
    "CoalesceBatchesExec",
    "CoalescePartitionsExec",
    "CooperativeExec",
    "ExplainExec",
    "GlobalLimitExec",
    "InterleaveExec",
    "LocalLimitExec",
    "OutputRequirementExec",
    "RepartitionExec",
    "ScalarSubqueryExec",
    "SortPreservingMergeExec",
    "UnionExec",
];

/// The plan below operators that change nothing but when batches come.
fn below_wrappers(plan: &Arc<dyn ExecutionPlan>) -> &Arc<dyn ExecutionPlan> {
    match plan.downcast_ref::<CooperativeExec>() {
        Some(wrapper) => below_wrappers(wrapper.input()),
        None => plan,
    }
}

/// Whether `gpu.mode = required` insists on an operator: whether it has a form on the GPU, and
/// computes something.
fn is_required(plan: &dyn ExecutionPlan) -> bool {
    let has_form = plan.is::<FilterExec>() || plan.is::<AggregateExec>();
    has_form || plan.is::<ProjectionExec>() && !is_trivial(plan)
}

/// Whether an operator is a projection of columns and constants alone.
fn is_trivial(plan: &dyn ExecutionPlan) -> bool {
    let is_given = |value: &dyn PhysicalExpr| value.is::<Column>() || value.is::<Literal>();
    let projection = plan.downcast_ref::<ProjectionExec>();
    projection.is_some_and(|it| it.expr().iter().all(|column| is_given(column.expr.as_ref())))
}
