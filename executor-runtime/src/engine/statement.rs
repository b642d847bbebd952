//! Which statements a client may run, and what each is.
//!
//! A client reads files and keeps views, tables and options of its own session. It can't write
//! files, can't lift limits, and can't fill memory that no limit counts. What is refused is
//! refused by its name, with what to do instead.

use std::path::Path;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{DdlStatement, LogicalPlan, Statement as SqlStatement, WriteOp};

use super::files::resolve;
use crate::error::{ExecutorError, Result};

/// DataFusion's options that a session may set: none of them lifts a limit or writes a file.
const SESSION_OPTIONS: [&str; 7] = [
    "datafusion.catalog.default_catalog",
    "datafusion.catalog.default_schema",
    "datafusion.execution.",
    "datafusion.explain.",
    "datafusion.format.",
    "datafusion.optimizer.",
    "datafusion.sql_parser.",
];

/// Those of them that a session may not set all the same.
const LIMITS: [&str; 1] = ["datafusion.sql_parser.recursion_limit"];

/// DataFusion's options that are settings of ours, with limits of their own.
const ALIASES: [(&str, &str); 2] = [
    ("datafusion.execution.batch_size", "sql.batch_size"),
    ("datafusion.execution.target_partitions", "sql.target_partitions"),
];

/// What a statement is to the session that runs it.
#[derive(Debug)]
pub enum Statement {
    /// It has rows.
    Query(LogicalPlan),
    /// It changes the session and has no rows.
    Command(LogicalPlan),
    /// It sets a setting of ours.
    Set {
        /// The setting, without `creel.`.
        name: String,
        /// As text; absent to go back to the default.
        value: Option<String>,
    },
}

impl Statement {
    /// Takes a plan if a client may run it. Relative paths mean those below `directory`.
    pub fn new(plan: LogicalPlan, directory: Option<&Path>) -> Result<Self> {
        check(&plan)?;
        match plan {
            LogicalPlan::Statement(SqlStatement::SetVariable(set)) => {
                if let Some(name) = setting_name(&set.variable) {
                    return Ok(Self::Set { name, value: Some(set.value) });
                }
                check_option("SET", &set.variable)?;
                Ok(Self::Command(LogicalPlan::Statement(SqlStatement::SetVariable(set))))
            }
            LogicalPlan::Statement(SqlStatement::ResetVariable(reset)) => {
                if let Some(name) = setting_name(&reset.variable) {
                    return Ok(Self::Set { name, value: None });
                }
                check_option("RESET", &reset.variable)?;
                Ok(Self::Command(LogicalPlan::Statement(SqlStatement::ResetVariable(reset))))
            }
            LogicalPlan::Ddl(DdlStatement::CreateExternalTable(mut table)) => {
                for location in &mut table.locations {
                    *location = resolve(location, directory)?;
                }
                Ok(Self::Command(LogicalPlan::Ddl(DdlStatement::CreateExternalTable(table))))
            }
            LogicalPlan::Statement(SqlStatement::Execute(_)) => Ok(Self::Query(plan)),
            LogicalPlan::Ddl(_) | LogicalPlan::Statement(_) => Ok(Self::Command(plan)),
            query => Ok(Self::Query(query)),
        }
    }
}

/// Our setting that a variable of SQL names, if it does.
fn setting_name(variable: &str) -> Option<String> {
    let alias = ALIASES.iter().find(|(theirs, _)| *theirs == variable).map(|(_, ours)| *ours);
    let ours = || creel_settings::find(variable).map(|setting| setting.name);
    alias.or_else(|| variable.strip_prefix("creel.")).or_else(ours).map(str::to_owned)
}

fn refused(statement: &str, reason: &str) -> ExecutorError {
    ExecutorError::Refused { statement: statement.to_owned(), reason: reason.to_owned() }
}

fn check_option(verb: &str, variable: &str) -> Result<()> {
    let known = SESSION_OPTIONS.iter().any(|option| variable.starts_with(option));
    if known && !LIMITS.contains(&variable) {
        return Ok(());
    }
    Err(refused(
        &format!("{verb} {variable}"),
        "limits and directories are the node's, set by its operator in creel.toml",
    ))
}

/// Refuses what no client may run, wherever in the plan it stands.
fn check(plan: &LogicalPlan) -> Result<()> {
    let mut refusal = None;
    plan.apply_with_subqueries(|node| {
        refusal = refusal_of(node);
        Ok(match refusal {
            Some(_) => TreeNodeRecursion::Stop,
            None => TreeNodeRecursion::Continue,
        })
    })
    .map_err(ExecutorError::Engine)?;
    refusal.map_or(Ok(()), Err)
}

/// The refusal of a statement that writes.
pub fn writes(statement: &str) -> ExecutorError {
    refused(statement, "clients can't write files here; fetch the result and write it yourself")
}

fn refusal_of(node: &LogicalPlan) -> Option<ExecutorError> {
    match node {
        LogicalPlan::Copy(_) => Some(writes("COPY TO")),
        LogicalPlan::Dml(dml) => {
            let name = match &dml.op {
                WriteOp::Insert(_) => "INSERT",
                WriteOp::Delete => "DELETE",
                WriteOp::Update => "UPDATE",
                WriteOp::Truncate => "TRUNCATE",
                WriteOp::MergeInto(_) => "MERGE",
                WriteOp::Ctas => "CREATE TABLE AS",
                other => other.name(),
            };
            Some(writes(name))
        }
        LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(_)) => Some(refused(
            "CREATE TABLE",
            "a table in memory counts against no limit; use CREATE VIEW or CREATE EXTERNAL TABLE",
        )),
        LogicalPlan::Ddl(DdlStatement::CreateIndex(_)) => {
            Some(refused("CREATE INDEX", "there are no indexes"))
        }
        LogicalPlan::Ddl(DdlStatement::CreateFunction(_) | DdlStatement::DropFunction(_)) => {
            Some(refused("CREATE FUNCTION", "clients can't add functions"))
        }
        LogicalPlan::Statement(
            SqlStatement::TransactionStart(_) | SqlStatement::TransactionEnd(_),
        ) => Some(refused("a transaction", "tables are read-only, there is nothing to commit")),
        _ => None,
    }
}

/// An engine's error that is a mistake in the statement, not a failure of ours.
pub fn is_mistake(error: &DataFusionError) -> bool {
    matches!(
        error.find_root(),
        DataFusionError::SQL(..)
            | DataFusionError::Plan(_)
            | DataFusionError::SchemaError(..)
            | DataFusionError::Configuration(_)
    )
}
