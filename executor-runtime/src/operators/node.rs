//! What GPU operators have in common as nodes of a plan.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{OrderingRequirements, PhysicalExpr};
use datafusion::physical_plan::InputDistributionRequirements;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions, Statistics,
};

use super::stream::DeviceStream;

/// An operator's own part of its node.
pub trait Operator: fmt::Debug + Clone + Send + Sync + 'static {
    /// The node's name in plans.
    const NAME: &'static str;

    /// Its batches, of those of its input.
    fn start(
        &self,
        input: Box<dyn DeviceStream>,
        partition: usize,
        context: &Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Box<dyn DeviceStream>;
}

/// A node whose batches are on the device.
pub trait GpuNode: ExecutionPlan {
    /// Starts a partition. Nothing is computed before the first batch is asked for.
    fn open(&self, partition: usize, context: &Arc<TaskContext>) -> Result<Box<dyn DeviceStream>>;
}

/// A GPU operator in the place of one of DataFusion.
#[derive(Debug)]
pub struct GpuExec<O> {
    /// The node that it replaces, over DataFusion's own input. It gives properties, text and
    /// statistics, and is never executed.
    cpu: Arc<dyn ExecutionPlan>,
    input: Arc<dyn ExecutionPlan>,
    operator: O,
    metrics: ExecutionPlanMetricsSet,
}

impl<O: Operator> GpuExec<O> {
    pub(super) fn with_operator(
        cpu: Arc<dyn ExecutionPlan>,
        input: Arc<dyn ExecutionPlan>,
        operator: O,
    ) -> Self {
        Self { cpu, input, operator, metrics: ExecutionPlanMetricsSet::new() }
    }
}

/// The child's node of batches on the device.
pub(super) fn gpu_input(input: &dyn ExecutionPlan) -> Result<&dyn GpuNode> {
    let Some(node) = super::gpu_node(input) else {
        return internal_err!("{} gives batches of the host to a GPU operator", input.name());
    };
    Ok(node)
}

impl<O: Operator> GpuNode for GpuExec<O> {
    fn open(&self, partition: usize, context: &Arc<TaskContext>) -> Result<Box<dyn DeviceStream>> {
        let input = gpu_input(self.input.as_ref())?.open(partition, context)?;
        Ok(self.operator.start(input, partition, context, &self.metrics))
    }
}

impl<O: Operator> DisplayAs for GpuExec<O> {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The text of the node that is replaced.
        struct Text<'a>(&'a dyn ExecutionPlan, DisplayFormatType);
        impl fmt::Display for Text<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt_as(self.1, f)
            }
        }
        let text = Text(self.cpu.as_ref(), format).to_string();
        if matches!(format, DisplayFormatType::TreeRender) {
            return f.write_str(&text);
        }
        let details = text.strip_prefix(self.cpu.name()).unwrap_or(&text);
        write!(f, "{}{details}", O::NAME)
    }
}

impl<O: Operator> ExecutionPlan for GpuExec<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.cpu.properties()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.cpu.input_distribution_requirements()
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        self.cpu.required_input_ordering()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.cpu.maintains_input_order()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.cpu.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let cpu = Arc::clone(&self.cpu).replace_children(children.clone(), options)?;
        let Some(input) = children.pop() else {
            return internal_err!("{} needs an input", O::NAME);
        };
        Ok(Arc::new(Self::with_operator(cpu, input, self.operator.clone())))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, super::RECOMPUTE)
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("{} gives batches of the device: GpuDownloadExec executes it", O::NAME)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.cpu.child_stats_requests(partition)
    }

    fn statistics_from_inputs(
        &self,
        input: &[Arc<Statistics>],
        arguments: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.cpu.statistics_from_inputs(input, arguments)
    }
}
