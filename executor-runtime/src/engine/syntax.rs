//! From text to a statement, within limits.
//!
//! A statement nests: `1 + 1 + 1` is a tree of three levels, and so is a chain of `OR`, `UNION` or
//! `JOIN`.
//! DataFusion plans such a tree in a time that grows with the square of its depth, and can't be
//! interrupted meanwhile, so its depth has a limit. Long lists (`IN (…)`, `VALUES …`) are flat.

use std::ops::ControlFlow;

use creel_settings::Settings;
use datafusion::execution::session_state::SessionState;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, Query, Select, SetExpr, Statement as Sql, Visit, Visitor,
};

use super::statement::writes;
use crate::error::{ExecutorError, Result};

/// No statement is longer, whatever the setting says: as a tree it must fit on a thread's stack.
/// Half a level comes from a byte at the most (`1+1+1`), and drops in 200 bytes of stack.
const MAX_STATEMENT_BYTES: u64 = 4 << 20;

/// Parses one statement, and refuses what is too long, too deep, or writes.
pub fn parse(state: &SessionState, sql: &str, settings: &Settings) -> Result<Statement> {
    let limit = settings.sql_max_statement_bytes.0.min(MAX_STATEMENT_BYTES);
    if sql.len() as u64 > limit {
        return Err(ExecutorError::Invalid(format!(
            "the statement has {} bytes, more than sql.max_statement_bytes allows ({limit})",
            sql.len()
        )));
    }
    let dialect = state.config_options().sql_parser.dialect;
    let statement = state.sql_to_statement(sql, &dialect)?;
    check(&statement, settings.sql_max_depth)?;
    Ok(statement)
}

fn check(statement: &Statement, max_depth: usize) -> Result<()> {
    match statement {
        Statement::Explain(explain) => check(&explain.statement, max_depth),
        Statement::CopyTo(_) => Err(writes("COPY TO")),
        Statement::Statement(sql) => {
            let mut depth = Depth { now: 0, limit: max_depth };
            if sql.visit(&mut depth).is_break() {
                return Err(ExecutorError::Invalid(format!(
                    "the statement nests deeper than sql.max_depth allows ({max_depth} levels); \
                     write long chains of OR as IN (...), and of UNION as VALUES"
                )));
            }
            written(sql).map_or(Ok(()), |name| Err(writes(name)))
        }
        Statement::CreateExternalTable(_) | Statement::Reset(_) => Ok(()),
    }
}

/// The name of a statement that writes to a table, whether there is such a table or not.
fn written(sql: &Sql) -> Option<&'static str> {
    match sql {
        Sql::Insert(_) => Some("INSERT"),
        Sql::Update(_) => Some("UPDATE"),
        Sql::Delete(_) => Some("DELETE"),
        Sql::Merge(_) => Some("MERGE"),
        Sql::Truncate(_) => Some("TRUNCATE"),
        Sql::Copy { .. } => Some("COPY TO"),
        Sql::Explain { statement, .. } | Sql::Prepare { statement, .. } => written(statement),
        _ => None,
    }
}

/// Counts levels, and stops at too many: what is deeper is never walked.
struct Depth {
    now: usize,
    limit: usize,
}

impl Depth {
    fn check(&self, depth: usize) -> ControlFlow<()> {
        if depth > self.limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Visitor for Depth {
    type Break = ();

    fn pre_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
        self.now += 1;
        self.check(self.now)
    }

    fn post_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
        self.now -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        // `a UNION b UNION c` is `(a UNION b) UNION c`.
        let first = Some(query.body.as_ref());
        let chain = std::iter::successors(first, |body| match body {
            SetExpr::SetOperation { left, .. } => Some(left.as_ref()),
            _ => None,
        });
        self.now += 1;
        self.check(self.now + chain.count() - 1)
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        // `FROM a, b JOIN c` is `(a × b) ⋈ c`.
        let tables = select.from.iter().map(|table| 1 + table.joins.len());
        self.check(self.now + tables.sum::<usize>())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.now -= 1;
        ControlFlow::Continue(())
    }
}
