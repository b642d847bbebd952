//! Aggregates, in all of DataFusion's modes.
//!
//! States are columns of DataFusion's own types, in its order: AVG has a count and a sum. So what
//! one of the two does in part, the other can finish. A state that serves two aggregates, as the
//! sum of SUM(x) and AVG(x), is kept once.

use std::sync::Arc;

use creel_gpu::program::DataType as DeviceType;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CaseExpr, Literal, lit};
use datafusion::physical_plan::aggregates::{
    AggregateExec, AggregateInputMode, AggregateOutputMode,
};
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode, PhysicalExpr};

use super::computation::{Value, Wanted, computation};
use super::data_type::{of_state, on_device};
use super::reason::{Reason, WhatOfAggregate, begin};
use crate::operators::computation::{Aggregation, Operation, State};

/// What the GPU is to compute, or why it can't.
///
/// A limit of the aggregate is a hint to stop early, and is dropped: whoever needs it stands above.
pub fn aggregation(aggregate: &AggregateExec) -> Result<Aggregation, Vec<Reason>> {
    let mut reasons = of_the_whole(aggregate);
    let mut builder = Builder::new(aggregate);
    for (function, filter) in aggregate.aggr_expr().iter().zip(aggregate.filter_expr()) {
        if let Err(what) = builder.add(function, filter.as_ref()) {
            reasons.push(Reason::Aggregate { aggregate: begin(function.name()), what });
        }
    }
    if reasons.is_empty() { builder.finish() } else { Err(reasons) }
}

fn of_the_whole(aggregate: &AggregateExec) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let group = aggregate.group_expr();
    if !group.is_single() && !group.is_true_no_grouping() {
        reasons.push(Reason::GroupingSets);
    }
    let is_sorted = *aggregate.input_order_mode() != InputOrderMode::Linear;
    if is_sorted || aggregate.properties().output_ordering().is_some() {
        reasons.push(Reason::KeepsOrder);
    }
    reasons
}

/// The functions that there are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Function {
    Count,
    Sum,
    Min,
    Max,
    Average,
}

impl Function {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "count" => Self::Count,
            "sum" => Self::Sum,
            "min" => Self::Min,
            "max" => Self::Max,
            "avg" => Self::Average,
            _ => return None,
        })
    }

    /// Whether it works on states of that type.
    fn takes(self, state: &DataType) -> bool {
        match self {
            Self::Count => *state == DataType::Int64,
            Self::Min | Self::Max => on_device(state).is_some(),
            Self::Sum | Self::Average => on_device(state).is_some_and(|it| {
                it.decimal().is_some() || matches!(it, DeviceType::Int64 | DeviceType::Float64)
            }),
        }
    }
}

struct Builder {
    input: SchemaRef,
    /// Whether rows come in, not states.
    is_first: bool,
    /// Whether states go out, not results.
    is_partial: bool,
    keys: usize,
    /// Where in the input the states of the next function are.
    next_state: usize,
    /// Keys, then arguments.
    arguments: Vec<Wanted>,
    states: Vec<State>,
    /// Keys, then states.
    fields: Vec<FieldRef>,
    /// Keys, then what comes of each function.
    results: Vec<Wanted>,
}

impl Builder {
    fn new(aggregate: &AggregateExec) -> Self {
        let group = aggregate.group_expr().expr();
        let keys = group.len();
        let fields: Vec<_> = aggregate.schema().fields().iter().take(keys).cloned().collect();
        let types = || fields.iter().map(|field| field.data_type().clone());
        let wanted = |(value, data_type)| Wanted { value, data_type };
        let values = group.iter().zip(types()).map(|((key, _), it)| (grouped_by(key, &it), it));
        let arguments = values.map(wanted);
        let results = (0..keys).map(Value::Input).zip(types()).map(wanted);
        Self {
            input: aggregate.input().schema(),
            is_first: aggregate.mode().input_mode() == AggregateInputMode::Raw,
            is_partial: aggregate.mode().output_mode() == AggregateOutputMode::Partial,
            keys,
            next_state: keys,
            arguments: arguments.collect(),
            states: Vec::new(),
            results: results.collect(),
            fields,
        }
    }

    fn add(
        &mut self,
        called: &AggregateFunctionExpr,
        filter: Option<&Arc<dyn PhysicalExpr>>,
    ) -> Result<(), WhatOfAggregate> {
        let unknown = |error: datafusion::error::DataFusionError| {
            WhatOfAggregate::Unknown(error.strip_backtrace())
        };
        let name = called.fun().name();
        let function =
            Function::of(name).ok_or_else(|| WhatOfAggregate::Function(name.to_owned()))?;
        if called.is_distinct() {
            return Err(WhatOfAggregate::Distinct);
        }
        if !called.order_bys().is_empty() {
            return Err(WhatOfAggregate::OrderBy);
        }
        let arguments = called.expressions();
        if arguments.len() > 1 {
            return Err(WhatOfAggregate::Arguments(arguments.len()));
        }
        let states = called.state_fields().map_err(unknown)?;
        let state = states.last().ok_or(WhatOfAggregate::Arguments(0))?;
        let result = called.field();
        let is_same = function == Function::Average || state.data_type() == result.data_type();
        for field in [state, &result] {
            if !function.takes(field.data_type()) || !is_same {
                return Err(WhatOfAggregate::Type(field.data_type().clone()));
            }
        }

        let argument = if self.is_first {
            let argument = arguments
                .first()
                .filter(|argument| function != Function::Count || !is_of_every_row(argument));
            self.argument_of(argument, filter)?
        } else {
            None
        };
        match function {
            Function::Count => {
                let count = self.state(argument, Operation::Count, state);
                self.result(Value::Input(count), &result);
            }
            Function::Sum | Function::Min | Function::Max => {
                let operation = match function {
                    Function::Min => Operation::Min,
                    Function::Max => Operation::Max,
                    _ => Operation::Sum,
                };
                let place = self.state(argument, operation, state);
                self.result(Value::Input(place), &result);
            }
            Function::Average => {
                let count = self.state(argument, Operation::Count, &states[0]);
                let sum = self.state(argument, Operation::Sum, state);
                if self.is_partial {
                    // DataFusion takes a count, even of 0, for the sign of a value.
                    self.result(Value::Positive(count), &states[0]);
                    self.result(Value::Input(sum), state);
                } else {
                    self.result(Value::Average { sum, count }, &result);
                }
            }
        }
        Ok(())
    }

    /// The place of what a function aggregates; none if it counts rows.
    fn argument_of(
        &mut self,
        argument: Option<&Arc<dyn PhysicalExpr>>,
        filter: Option<&Arc<dyn PhysicalExpr>>,
    ) -> Result<Option<usize>, WhatOfAggregate> {
        let data_type = match argument {
            Some(argument) => argument
                .data_type(&self.input)
                .map_err(|error| WhatOfAggregate::Unknown(error.strip_backtrace()))?,
            None => DataType::Boolean,
        };
        let value = match (filter, argument) {
            (Some(filter), argument) => {
                Value::Where { filter: Arc::clone(filter), value: argument.cloned() }
            }
            (None, Some(argument)) => Value::of(argument),
            (None, None) => return Ok(None),
        };
        Ok(Some(self.argument(value, data_type)))
    }

    fn argument(&mut self, value: Value, data_type: DataType) -> usize {
        let known = self.arguments.iter().position(|wanted| wanted.value == value);
        known.unwrap_or_else(|| {
            self.arguments.push(Wanted { value, data_type });
            self.arguments.len() - 1
        })
    }

    /// The place of a state among keys and states. Where states come in, the next one of the input
    /// is merged into it.
    fn state(&mut self, argument: Option<usize>, operation: Operation, field: &FieldRef) -> usize {
        let merge = match operation {
            Operation::Count => Operation::SumOfCounts,
            other => other,
        };
        let state = if self.is_first {
            State { argument, operation, merge }
        } else {
            let column = self.next_state;
            self.next_state += 1;
            let argument = self.argument(Value::Input(column), field.data_type().clone());
            State { argument: Some(argument), operation: merge, merge }
        };
        let is_known = |(place, known): (usize, &State)| {
            let data_type = self.fields[self.keys + place].data_type();
            known.argument == state.argument
                && known.operation == state.operation
                && data_type == field.data_type()
        };
        let known = self.states.iter().enumerate().position(is_known);
        self.keys
            + known.unwrap_or_else(|| {
                self.states.push(state);
                self.fields.push(Arc::clone(field));
                self.states.len() - 1
            })
    }

    fn result(&mut self, value: Value, field: &Field) {
        self.results.push(Wanted { value, data_type: field.data_type().clone() });
    }

    fn finish(self) -> Result<Aggregation, Vec<Reason>> {
        let schema = Arc::new(Schema::new(self.fields));
        let arguments = computation(&self.input, &self.arguments)?;
        let are_states = self.results.len() == schema.fields().len()
            && self.results.iter().enumerate().all(|(at, it)| it.value == Value::Input(at));
        let results = if are_states { None } else { Some(computation(&schema, &self.results)?) };
        Ok(Aggregation { arguments, keys: self.keys, states: self.states, schema, results })
    }
}

/// What is grouped by: the key itself, but 0 for -0. The two are one group, whose key is 0.
fn grouped_by(key: &Arc<dyn PhysicalExpr>, data_type: &DataType) -> Value {
    let zero = match data_type {
        DataType::Float32 => lit(0_f32),
        DataType::Float64 => lit(0_f64),
        _ => return Value::of(key),
    };
    let is_zero = BinaryExpr::new(Arc::clone(key), Operator::Eq, Arc::clone(&zero));
    let branch = (Arc::new(is_zero) as _, zero);
    match CaseExpr::try_new(None, vec![branch], Some(Arc::clone(key))) {
        Ok(folded) => Value::Expression(Arc::new(folded)),
        Err(_) => Value::of(key),
    }
}

/// Whether an argument of COUNT is never null, as in `count(*)`: a literal.
fn is_of_every_row(argument: &Arc<dyn PhysicalExpr>) -> bool {
    argument.downcast_ref::<Literal>().is_some_and(|literal| !literal.value().is_null())
}

/// The first column that can't go to the GPU, of those that come in and go out.
pub fn column_that_stays(aggregate: &AggregateExec) -> Option<Reason> {
    let (input, output) = (aggregate.input().schema(), aggregate.schema());
    let keys = aggregate.group_expr().expr().len();
    let has_states = aggregate.mode().input_mode() == AggregateInputMode::Partial;
    let gives_states = aggregate.mode().output_mode() == AggregateOutputMode::Partial;
    [(input, has_states), (output, gives_states)].into_iter().find_map(|(schema, of_states)| {
        let (keys, others) = schema.fields().split_at(keys.min(schema.fields().len()));
        let is_out = |field: &&FieldRef| on_device(field.data_type()).is_none();
        let is_no_state = |field: &&FieldRef| of_state(field.data_type()).is_none();
        let keys = keys.iter().find(is_out);
        let others =
            || others.iter().find(|it| if of_states { is_no_state(it) } else { is_out(it) });
        keys.or_else(others).map(|field| Reason::column(field))
    })
}
