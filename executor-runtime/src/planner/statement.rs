//! A statement's plan.

use std::sync::Arc;

use creel_settings::{GpuExplain, GpuMode, Settings};
use datafusion::arrow::array::{RecordBatch, StringArray};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::TaskContext;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::explain::ExplainExec;
use datafusion::physical_plan::{ExecutionPlan, collect};

use super::reason::Reason;
use super::report::Report;
use super::rule::GpuRule;
use crate::engine::NoGpu;
use crate::error::{ExecutorError, Result};

/// Plans a statement, as its session's settings say of the GPU. `query` is its id, for the log.
///
/// # Errors
///
/// What DataFusion says of the plan. With `gpu.mode = required`, also that a part of it can't run on
/// the GPU; EXPLAIN is never refused.
pub async fn plan(
    query: &str,
    state: SessionState,
    statement: &LogicalPlan,
    settings: &Settings,
    gpu: Result<(), &NoGpu>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let mode = settings.gpu_mode;
    let (state, plan, report) = if let Some(reason) = nowhere(mode, gpu) {
        let plan = state.create_physical_plan(statement).await?;
        (state, plan, Report::nowhere(reason))
    } else {
        let rule = GpuRule::new(mode, settings.gpu_min_rows, settings.gpu_batch_bytes.0);
        let rule = Arc::new(rule);
        let state = with_rule(state, Arc::clone(&rule));
        let plan = state.create_physical_plan(statement).await?;
        (state, plan, rule.report())
    };
    let text = told(mode, settings.gpu_explain, gpu, &report);
    if plan.is::<ExplainExec>() {
        return match text {
            Some(text) => with_report(plan, &state, text).await,
            None => Ok(plan),
        };
    }
    if mode == GpuMode::Required
        && let Some(reasons) = report.refusal()
    {
        return Err(ExecutorError::Refused {
            statement: "the query".to_owned(),
            reason: format!(
                "gpu.mode is required, and not all of it can run on the GPU: {reasons}"
            ),
        });
    }
    if let Some(text) = text {
        tracing::info!(query, "the query and the GPU: {}", text.replace('\n', " | "));
    }
    Ok(plan)
}

/// The state with one more rule, the last. All else is as it was: a catalog that isn't there is not
/// made, either.
fn with_rule(state: SessionState, rule: Arc<GpuRule>) -> SessionState {
    let config = state.config().clone().with_create_default_catalog_and_schema(false);
    SessionStateBuilder::new_from_existing(state)
        .with_config(config)
        .with_physical_optimizer_rule(rule)
        .build()
}

/// What is said of an executor without a GPU.
const CPU: &str = "the executor is one for the CPU; a GPU is had by a lease, as in a container that \
    asked YARN for one or by `creel run --gpus 1 -- COMMAND`, or where gpu.unleased = allow";

/// Why nothing runs on the GPU, whatever the plan is.
fn nowhere(mode: GpuMode, gpu: Result<(), &NoGpu>) -> Option<Reason> {
    match (mode, gpu) {
        (GpuMode::Off, _) => Some(Reason::Off),
        (GpuMode::ExplainOnly, _) | (_, Ok(())) => None,
        (_, Err(NoGpu::Unusable(why))) => Some(Reason::NoGpu(why.clone())),
        (_, Err(NoGpu::Cpu)) => Some(Reason::NoGpu(CPU.to_owned())),
    }
}

/// What is told of the plan. An executor for the CPU doesn't say with each query that it is one.
fn told(
    mode: GpuMode,
    explain: GpuExplain,
    gpu: Result<(), &NoGpu>,
    report: &Report,
) -> Option<String> {
    let is_clear = mode == GpuMode::On && gpu == Err(&NoGpu::Cpu);
    if mode == GpuMode::Off || is_clear && explain != GpuExplain::All {
        return None;
    }
    report.text(explain, mode)
}

/// The answer to EXPLAIN, with one more row.
async fn with_report(
    explain: Arc<dyn ExecutionPlan>,
    state: &SessionState,
    text: String,
) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = explain.schema();
    let mut rows = collect(explain, Arc::new(TaskContext::from(state))).await?;
    let (kind, text) = (StringArray::from(vec!["gpu"]), StringArray::from(vec![text]));
    rows.push(RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(kind), Arc::new(text)])?);
    Ok(MemorySourceConfig::try_new_exec(&[rows], schema, None)?)
}
