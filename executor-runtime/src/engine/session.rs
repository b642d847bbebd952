//! What a connection has of its own: tables, options, prepared statements.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};

use creel_settings::{SETTINGS, Scope, Settings};
use creel_wire::Attach;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, DynamicFileCatalog, MemoryCatalogProvider,
    MemoryCatalogProviderList, MemorySchemaProvider,
};
use datafusion::common::ParamValues;
use datafusion::common::config::ConfigNonZeroUsize;
use datafusion::execution::TaskContext;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;

use super::files::PathTables;
use super::query::{Batches, Query};
use super::result::ResultSchema;
use super::statement::Statement;
use super::traffic::Traffic;
use super::{Engine, partitions, syntax};
use crate::error::{ExecutorError, Result};
use crate::gpu::GpuAttachment;
use crate::planner;

/// A connection's session. Clones are the same session.
#[derive(Clone)]
pub struct Session(Arc<Inner>);

struct Inner {
    engine: Arc<Engine>,
    context: SessionContext,
    attach: Attach,
    traffic: Arc<Traffic>,
    gpu: Option<GpuAttachment>,
    settings: Mutex<Settings>,
    /// What was planned and not yet fetched, by number, so the oldest comes first.
    planned: Mutex<BTreeMap<u64, Planned>>,
    /// What was prepared, by handle.
    prepared: Mutex<HashMap<String, Prepared>>,
}

/// A statement that is ready to run, once.
pub struct Planned {
    query: Arc<Query>,
    sql_bytes: usize,
    schema: ResultSchema,
    work: Work,
}

enum Work {
    Plan(Arc<dyn ExecutionPlan>),
    Command(Statement),
    /// A command that has run.
    Done,
}

impl Planned {
    /// The query.
    pub fn query(&self) -> &Arc<Query> {
        &self.query
    }

    /// What its batches will look like.
    pub fn schema(&self) -> &ResultSchema {
        &self.schema
    }
}

/// A prepared statement, which runs as often as one likes.
#[derive(Clone)]
pub struct Prepared {
    /// The statement.
    pub sql: String,
    /// What its results look like, as far as is known without the parameters.
    pub schema: ResultSchema,
    /// Its parameters in order: `$1`, `$2`, ….
    pub parameters: Vec<FieldRef>,
    /// Values for them, once they were sent.
    pub values: Option<ParamValues>,
}

/// Prepared statements that a connection may keep, and how long their texts may be together.
const PREPARED_KEPT: usize = 10_000;
const PREPARED_BYTES: usize = 16 << 20;

/// Planned statements that wait to be fetched, and how long their texts may be together; past that
/// the oldest are dropped.
const PLANNED_KEPT: usize = 1000;
const PLANNED_BYTES: usize = 8 << 20;

impl Session {
    /// A session of that engine, for that client.
    pub fn new(
        engine: Arc<Engine>,
        template: &SessionState,
        attach: Attach,
        traffic: Arc<Traffic>,
        gpu: Option<GpuAttachment>,
    ) -> Self {
        let paths = PathTables::new(attach.cwd.clone());
        let catalogs = DynamicFileCatalog::new(own_catalogs(template), Arc::new(paths.clone()));
        let state = SessionStateBuilder::new_from_existing(template.clone())
            .with_session_id(format!("attachment-{}", attach.attachment))
            .with_catalog_list(Arc::new(catalogs))
            .build();
        let context = SessionContext::new_with_state(state);
        paths.serve(&context);
        let settings = Mutex::new(engine.settings().clone());
        Self(Arc::new(Inner {
            engine,
            context,
            attach,
            traffic,
            gpu,
            settings,
            planned: Mutex::default(),
            prepared: Mutex::default(),
        }))
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }

    /// DataFusion's session.
    pub fn context(&self) -> &SessionContext {
        &self.0.context
    }

    /// What the connection did.
    pub fn traffic(&self) -> &Arc<Traffic> {
        &self.0.traffic
    }

    fn directory(&self) -> Option<&Path> {
        self.0.attach.cwd.as_deref()
    }

    fn new_query(&self, sql: &str) -> Arc<Query> {
        let (number, id) = self.0.engine.queries().next_id();
        Arc::new(Query::new(number, id, sql, Arc::clone(&self.0.traffic)))
    }

    async fn parse(&self, sql: &str) -> Result<LogicalPlan> {
        let settings = self.0.engine.settings();
        let state = self.0.context.state();
        let statement = syntax::parse(&state, sql, settings)?;
        Ok(state.statement_to_plan(statement).await?)
    }

    /// Plans a statement, with values for its parameters if it has any.
    pub async fn plan(&self, sql: &str, values: Option<ParamValues>) -> Result<Planned> {
        self.0.engine.queries().admit()?;
        let (query, sql_bytes) = (self.new_query(sql), sql.len());
        let (session, sql) = (self.clone(), sql.to_owned());
        let id = query.id().to_owned();
        let work = async move {
            let mut plan = session.parse(&sql).await?;
            if let Some(values) = values {
                plan = plan.with_param_values(values)?;
            }
            session.plan_statement(&id, Statement::new(plan, session.directory())?).await
        };
        let (schema, work) = query.plan(&self.0.engine, work).await?;
        Ok(Planned { query, sql_bytes, schema, work })
    }

    async fn plan_statement(&self, id: &str, statement: Statement) -> Result<(ResultSchema, Work)> {
        let Statement::Query(plan) = statement else {
            let nothing = ResultSchema::new(&Schema::empty());
            return Ok((nothing, Work::Command(statement)));
        };
        // What EXECUTE runs was looked at when it was prepared.
        let frame = self.0.context.execute_logical_plan(plan).await?;
        let (state, plan) = frame.into_parts();
        let settings = self.0.settings.lock().unwrap().clone();
        let gpu = self.0.engine.gpu().map(|_| ());
        let plan = planner::statement::plan(id, state, &plan, &settings, gpu).await?;
        Ok((ResultSchema::new(&plan.schema()), Work::Plan(plan)))
    }

    /// Runs a planned statement if it is no query.
    pub async fn run_command(&self, planned: Planned) -> Result<Planned> {
        let Planned { query, sql_bytes, schema, work } = planned;
        let Work::Command(statement) = work else {
            return Ok(Planned { query, sql_bytes, schema, work });
        };
        self.0.traffic.count_query();
        let session = self.clone();
        query.plan(&self.0.engine, async move { session.command(statement).await }).await?;
        Ok(Planned { query, sql_bytes, schema, work: Work::Done })
    }

    /// Runs a planned statement; one that is no query has run when this returns.
    pub async fn execute(&self, planned: Planned) -> Result<(ResultSchema, Option<Batches>)> {
        let Planned { query, schema, work, .. } = self.run_command(planned).await?;
        match work {
            Work::Plan(plan) => {
                let engine = Arc::clone(&self.0.engine);
                let context = self.task_context(query.id());
                let batches = query.start(engine, plan, context, schema.clone());
                Ok((schema, Some(batches)))
            }
            Work::Command(_) | Work::Done => Ok((schema, None)),
        }
    }

    /// What a query's operators find around them, its account of the GPU included.
    fn task_context(&self, query: &str) -> Arc<TaskContext> {
        let Some(gpu) = &self.0.gpu else { return self.0.context.task_ctx() };
        let context = TaskContext::from(&*self.0.context.state_ref().read());
        let account = Arc::new(gpu.query(query));
        let config = context.session_config().clone().with_extension(account);
        Arc::new(context.with_session_config(config))
    }

    async fn command(&self, statement: Statement) -> Result<()> {
        match statement {
            Statement::Set { name, value } => self.set(&name, value.as_deref()),
            Statement::Command(plan) | Statement::Query(plan) => {
                let location = match &plan {
                    LogicalPlan::Ddl(DdlStatement::CreateExternalTable(table)) => {
                        Some(table.locations.join("', '"))
                    }
                    _ => None,
                };
                let done = self.0.context.execute_logical_plan(plan).await;
                done.map(|_| ()).map_err(|error| match location {
                    Some(location) => error.context(format!("cannot read '{location}'")).into(),
                    None => error.into(),
                })
            }
        }
    }

    /// Looks at a statement that is to run later, with parameters: what it needs and gives.
    pub async fn prepare(&self, sql: &str) -> Result<Prepared> {
        self.0.engine.queries().admit()?;
        let query = self.new_query(sql);
        let (session, text) = (self.clone(), sql.to_owned());
        let work = async move {
            let plan = session.parse(&text).await?;
            let parameters = parameters(&plan)?;
            let schema = match Statement::new(plan, session.directory())? {
                // Without its values a plan can't be optimised to its end, so types are as
                // the statement alone says.
                Statement::Query(plan) => ResultSchema::new(plan.schema().as_arrow()),
                _ => ResultSchema::new(&Schema::empty()),
            };
            Ok((schema, parameters))
        };
        let (schema, parameters) = query.plan(&self.0.engine, work).await?;
        Ok(Prepared { sql: sql.to_owned(), schema, parameters, values: None })
    }

    /// Keeps a planned statement until it is fetched by its handle, which is the query's id.
    pub fn keep(&self, planned: Planned) -> String {
        let handle = planned.query.id().to_owned();
        let mut kept = self.0.planned.lock().unwrap();
        kept.insert(planned.query.number(), planned);
        while kept.len() > PLANNED_KEPT
            || kept.len() > 1 && kept.values().map(|it| it.sql_bytes).sum::<usize>() > PLANNED_BYTES
        {
            kept.pop_first();
        }
        handle
    }

    /// Takes a planned statement by its handle.
    pub fn take(&self, handle: &str) -> Result<Planned> {
        self.remove_planned(handle).ok_or_else(|| {
            ExecutorError::NotFound(format!(
                "there is no result '{handle}' on this connection: it was fetched already, or planned on another"
            ))
        })
    }

    fn remove_planned(&self, id: &str) -> Option<Planned> {
        let mut kept = self.0.planned.lock().unwrap();
        let number = kept.iter().find(|(_, planned)| planned.query.id() == id).map(|(n, _)| *n)?;
        kept.remove(&number)
    }

    /// Ends a query of this connection, planned or running; false if there is none of that id.
    pub fn cancel(&self, id: &str) -> bool {
        let planned = self.remove_planned(id).is_some();
        let attachment = self.0.attach.attachment;
        planned || self.0.engine.queries().cancel_own(id, attachment, "its client cancelled it")
    }

    /// Keeps a prepared statement; its handle.
    pub fn keep_prepared(&self, prepared: Prepared) -> Result<String> {
        let (_, handle) = self.0.engine.queries().next_id();
        let mut kept = self.0.prepared.lock().unwrap();
        let bytes: usize = kept.values().map(|prepared| prepared.sql.len()).sum();
        if kept.len() >= PREPARED_KEPT || bytes + prepared.sql.len() > PREPARED_BYTES {
            return Err(ExecutorError::Invalid(format!(
                "this connection has {} prepared statements of {bytes} bytes, and may keep \
                 {PREPARED_KEPT} of {PREPARED_BYTES} bytes: close some",
                kept.len()
            )));
        }
        kept.insert(handle.clone(), prepared);
        Ok(handle)
    }

    /// A prepared statement.
    pub fn prepared(&self, handle: &str) -> Result<Prepared> {
        self.0.prepared.lock().unwrap().get(handle).cloned().ok_or_else(|| no_prepared(handle))
    }

    /// Gives a prepared statement values for its parameters.
    pub fn bind(&self, handle: &str, values: ParamValues) -> Result<()> {
        let mut prepared = self.0.prepared.lock().unwrap();
        let prepared = prepared.get_mut(handle).ok_or_else(|| no_prepared(handle))?;
        prepared.values = Some(values);
        Ok(())
    }

    /// Forgets a prepared statement.
    pub fn close_prepared(&self, handle: &str) {
        self.0.prepared.lock().unwrap().remove(handle);
    }

    /// Sets a setting of the session; without a value it goes back to the node's.
    pub fn set(&self, name: &str, value: Option<&str>) -> Result<()> {
        let wrong = |error: creel_settings::Error| match error {
            creel_settings::Error::OperatorOnly(_) => ExecutorError::Refused {
                statement: format!("SET {name}"),
                reason: error.to_string(),
            },
            error => ExecutorError::Setting(error.to_string()),
        };
        let node = self.0.engine.settings();
        let mut settings = self.0.settings.lock().unwrap();
        let short = name.strip_prefix("creel.").unwrap_or(name);
        let value = value.map(str::to_owned).or_else(|| node.get(short)).unwrap_or_default();
        settings.set_session(name, &value).map_err(wrong)?;

        let state = self.0.context.state_ref();
        let mut state = state.write();
        let execution = &mut state.config_mut().options_mut().execution;
        let threads = self.0.engine.query_threads();
        execution.target_partitions = partitions(&settings, threads);
        execution.batch_size = ConfigNonZeroUsize::try_new(settings.sql_batch_size)?;
        Ok(())
    }

    /// The settings that a session may change, as they are now.
    pub fn options(&self) -> BTreeMap<&'static str, String> {
        let settings = self.0.settings.lock().unwrap();
        SETTINGS
            .iter()
            .filter(|setting| setting.scope == Scope::Session)
            .filter_map(|setting| Some((setting.name, settings.get(setting.name)?)))
            .collect()
    }
}

fn no_prepared(handle: &str) -> ExecutorError {
    ExecutorError::NotFound(format!("there is no prepared statement '{handle}' on this connection"))
}

/// Catalogs that a session can fill, with the default one in place.
fn own_catalogs(template: &SessionState) -> Arc<dyn CatalogProviderList> {
    let names = &template.config_options().catalog;
    let catalog = MemoryCatalogProvider::new();
    let schema = Arc::new(MemorySchemaProvider::new());
    catalog
        .register_schema(&names.default_schema, schema)
        .expect("a catalog in memory takes a schema");
    let catalogs = MemoryCatalogProviderList::new();
    catalogs.register_catalog(names.default_catalog.clone(), Arc::new(catalog));
    Arc::new(catalogs)
}

/// The parameters of a statement, `$1` first; of an unknown type where the statement doesn't say.
fn parameters(plan: &LogicalPlan) -> Result<Vec<FieldRef>> {
    let mut fields: Vec<_> = plan.get_parameter_fields()?.into_iter().collect();
    fields
        .sort_by_key(|(name, _)| (name.trim_start_matches('$').parse::<u32>().ok(), name.clone()));
    let field = |(name, field): (String, Option<_>)| {
        let data_type = field.map_or(DataType::Null, |field: Arc<Field>| field.data_type().clone());
        Arc::new(Field::new(name, data_type, true))
    };
    Ok(fields.into_iter().map(field).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use creel_wire::Start;
    use datafusion::arrow::array::{AsArray, RecordBatch};
    use datafusion::arrow::datatypes::Int64Type;
    use datafusion::dataframe::DataFrameWriteOptions;
    use futures::TryStreamExt;
    use tempfile::TempDir;

    use super::*;

    /// An engine and the directory that its client works in.
    struct Node {
        engine: Arc<Engine>,
        directory: TempDir,
    }

    impl Node {
        fn new(settings: &[(&str, &str)]) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let spill_dir = directory.path().join("spill");
            std::fs::create_dir(&spill_dir).unwrap();
            let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let settings: BTreeMap<String, String> = settings.iter().map(text).collect();
            let start = Start {
                id: "cpu-1".to_owned(),
                device: "cpu".to_owned(),
                spill_dir,
                settings,
                gpus: 0,
                holders: Vec::new(),
            };
            let settings = Settings::from_map(&start.settings).unwrap();
            let handle = tokio::runtime::Handle::current();
            let engine = Arc::new(Engine::new(&start, settings, 2, handle).unwrap());
            Self { engine, directory }
        }

        fn session(&self) -> Session {
            self.engine.open_session(Attach {
                attachment: 7,
                pid: 1,
                uid: 1,
                cwd: Some(self.directory.path().to_owned()),
                container: None,
            })
        }

        /// Writes a table of numbers from 0 as Parquet.
        async fn numbers(&self, file: &str, rows: u64) {
            let path = self.directory.path().join(file);
            let sql = format!(
                "SELECT value AS n, 'row ' || value AS t FROM generate_series(0, {})",
                rows - 1
            );
            let frame = SessionContext::new().sql(&sql).await.unwrap();
            let options = DataFrameWriteOptions::new().with_single_file_output(true);
            frame.write_parquet(path.to_str().unwrap(), options, None).await.unwrap();
        }

        fn write(&self, file: &str, text: impl AsRef<[u8]>) {
            let path = self.directory.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    async fn run(session: &Session, sql: &str) -> Result<Vec<RecordBatch>> {
        let planned = session.plan(sql, None).await?;
        match session.execute(planned).await?.1 {
            Some(batches) => batches.try_collect().await,
            None => Ok(Vec::new()),
        }
    }

    async fn number(session: &Session, sql: &str) -> i64 {
        let batches = run(session, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        batches[0].column(0).as_primitive::<Int64Type>().value(0)
    }

    async fn error(session: &Session, sql: &str) -> ExecutorError {
        run(session, sql).await.map(|_| ()).expect_err(sql)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn files_are_tables() {
        let node = Node::new(&[]);
        node.numbers("a.parquet", 10).await;
        node.numbers("b.parquet", 5).await;
        node.write("c.csv", "x,y\n1,2\n");
        node.write("spark/_SUCCESS", "");
        node.write("spark/year=2024/part-0.csv", "x\n1\n2\n");
        node.write("spark/year=2025/part-0.csv", "x\n3\n");
        node.write(
            "Upper.PARQUET",
            std::fs::read(node.directory.path().join("b.parquet")).unwrap(),
        );
        let session = node.session();
        assert_eq!(number(&session, "SELECT count(*) FROM 'a.parquet'").await, 10);
        assert_eq!(number(&session, "SELECT sum(n) FROM '*.parquet'").await, 45 + 10);
        assert_eq!(number(&session, "SELECT count(*) FROM 'Upper.PARQUET'").await, 5);
        assert_eq!(number(&session, "SELECT sum(y) FROM 'c.csv'").await, 2);
        let absolute = node.directory.path().join("a.parquet");
        let sql = format!("SELECT max(n) FROM '{}'", absolute.display());
        assert_eq!(number(&session, &sql).await, 9);
        let of_a_year = "SELECT count(*) FROM 'spark/' WHERE year = '2024'";
        assert_eq!(number(&session, of_a_year).await, 2);
        // A file that came since is seen.
        node.numbers("d.parquet", 1).await;
        assert_eq!(number(&session, "SELECT count(*) FROM '*.parquet'").await, 16);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn tables_and_views_belong_to_the_session() {
        let node = Node::new(&[]);
        node.numbers("a.parquet", 10).await;
        let session = node.session();
        run(&session, "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'a.parquet'")
            .await
            .unwrap();
        run(&session, "CREATE VIEW v AS SELECT n FROM t WHERE n > 6").await.unwrap();
        assert_eq!(number(&session, "SELECT count(*) FROM v").await, 3);
        let other = node.session();
        let error = error(&other, "SELECT * FROM t").await.to_string();
        assert!(error.contains("'datafusion.public.t' not found"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_writes_or_lifts_limits_is_refused_by_name() {
        let node = Node::new(&[]);
        node.numbers("a.parquet", 10).await;
        let session = node.session();
        run(&session, "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'a.parquet'")
            .await
            .unwrap();
        for (sql, name) in [
            ("COPY (SELECT 1) TO 'x.csv'", "COPY TO"),
            ("EXPLAIN COPY (SELECT 1) TO 'x.csv'", "COPY TO"),
            ("EXPLAIN ANALYZE COPY (SELECT 1) TO 'x.csv'", "COPY TO"),
            ("COPY t TO 'x'", "COPY TO"),
            ("COPY nothing TO 'x.csv'", "COPY TO"),
            ("PREPARE p AS INSERT INTO t VALUES (1, 'x')", "INSERT"),
            ("INSERT INTO nothing VALUES (1)", "INSERT"),
            ("DELETE FROM t", "DELETE"),
            ("UPDATE t SET n = 1", "UPDATE"),
            ("TRUNCATE TABLE t", "TRUNCATE"),
            ("INSERT INTO t VALUES (1, 'x')", "INSERT"),
            ("CREATE TABLE m AS SELECT 1", "CREATE TABLE"),
            ("CREATE TABLE m (x INT)", "CREATE TABLE"),
            ("SET datafusion.runtime.memory_limit = '100G'", "datafusion.runtime.memory_limit"),
            ("SET datafusion.runtime.temp_directory = '/'", "datafusion.runtime.temp_directory"),
            ("RESET datafusion.runtime.memory_limit", "datafusion.runtime.memory_limit"),
            ("SET creel.executor.memory = '100g'", "executor.memory"),
            ("SET datafusion.sql_parser.recursion_limit = 100000", "recursion_limit"),
            ("START TRANSACTION", "transaction"),
        ] {
            let error = error(&session, sql).await;
            assert!(matches!(error, ExecutorError::Refused { .. }), "{sql}: {error}");
            assert!(error.to_string().contains(name), "{sql}: {error}");
        }
        assert!(!node.directory.path().join("x.csv").exists());
        assert_eq!(number(&session, "SELECT count(*) FROM t").await, 10);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn options_are_the_sessions_and_have_limits() {
        let node = Node::new(&[]);
        let session = node.session();
        run(&session, "SET creel.sql.batch_size = 100").await.unwrap();
        assert_eq!(session.options()["sql.batch_size"], "100");
        assert_eq!(session.context().copied_config().batch_size(), 100);
        run(&session, "SET datafusion.execution.batch_size = 200").await.unwrap();
        assert_eq!(session.options()["sql.batch_size"], "200");
        run(&session, "RESET creel.sql.batch_size").await.unwrap();
        assert_eq!(session.options()["sql.batch_size"], "8192");
        assert_eq!(node.session().options()["sql.batch_size"], "8192");
        let error = error(&session, "SET creel.sql.batch_size = 0").await;
        assert!(matches!(error, ExecutorError::Setting(_)), "{error}");
    }

    /// What EXPLAIN says of the GPU.
    async fn told_of_the_gpu(session: &Session, sql: &str) -> Option<String> {
        let batches = run(session, &format!("EXPLAIN {sql}")).await.unwrap();
        let texts = |batch: &RecordBatch, column: usize| -> Vec<String> {
            let column = batch.column(column).as_string::<i32>();
            column.iter().flatten().map(str::to_owned).collect()
        };
        let mut rows = batches.iter().flat_map(|it| texts(it, 0).into_iter().zip(texts(it, 1)));
        rows.find(|(kind, _)| kind == "gpu").map(|(_, plan)| plan)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn on_a_cpu_the_gpu_is_mentioned_only_when_asked_for() {
        let node = Node::new(&[]);
        node.numbers("a.parquet", 10).await;
        let session = node.session();
        let sql = "SELECT sum(n) FROM 'a.parquet' WHERE n > 3";
        assert_eq!(told_of_the_gpu(&session, sql).await, None);
        run(&session, "SET creel.gpu.explain = 'ALL'").await.unwrap();
        let told = told_of_the_gpu(&session, sql).await.unwrap();
        assert!(told.contains("the executor is one for the CPU"), "{told}");
        run(&session, "SET creel.gpu.mode = 'explain_only'").await.unwrap();
        run(&session, "SET creel.gpu.min_rows = 0").await.unwrap();
        let told = told_of_the_gpu(&session, sql).await.unwrap();
        assert!(told.contains("*GpuFilterExec: n@0 > 3"), "{told}");
        assert_eq!(number(&session, sql).await, 4 + 5 + 6 + 7 + 8 + 9);
        run(&session, "SET creel.gpu.mode = 'required'").await.unwrap();
        let refused = error(&session, sql).await;
        assert!(matches!(refused, ExecutorError::Refused { .. }), "{refused}");
        assert!(refused.to_string().contains("gpu.mode is required"), "{refused}");
        run(&session, "SET creel.gpu.mode = 'off'").await.unwrap();
        assert_eq!(told_of_the_gpu(&session, sql).await, None);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn errors_name_the_file_and_the_reason() {
        let node = Node::new(&[]);
        node.numbers("a.parquet", 1000).await;
        let whole = std::fs::read(node.directory.path().join("a.parquet")).unwrap();
        node.write("cut.parquet", &whole[..whole.len() / 2]);
        node.write("set/good.parquet", &whole);
        node.write("set/cut.parquet", &whole[..whole.len() / 2]);
        node.write("notes.txt", "x");
        node.write("mixed/a.csv", "x\n1\n");
        node.write("mixed/b.json", "{}\n");
        std::fs::create_dir(node.directory.path().join("empty.parquet")).unwrap();
        node.write("void.csv", "");
        let pipe = std::process::Command::new("mkfifo")
            .arg(node.directory.path().join("pipe.csv"))
            .status();
        assert!(pipe.unwrap().success());
        let session = node.session();
        for (sql, words) in [
            ("SELECT * FROM 'cut.parquet'", ["cut.parquet", "Parquet"]),
            ("SELECT * FROM 'set/'", ["set/cut.parquet", "Parquet"]),
            ("SELECT * FROM 'none.parquet'", ["none.parquet", "No such file"]),
            ("SELECT * FROM 'none/*.parquet'", ["none/*.parquet", "no file matches"]),
            ("SELECT * FROM 'empty.parquet'", ["empty.parquet", "the directory holds no"]),
            ("SELECT * FROM 'void.csv'", ["void.csv", "empty"]),
            ("SELECT * FROM 'pipe.csv'", ["pipe.csv", "no regular file"]),
            (
                "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'http://x/y.csv'",
                ["y.csv", "http://"],
            ),
            ("SELECT * FROM './notes.txt'", ["notes.txt", "'.txt'"]),
            ("SELECT * FROM 'mixed/'", ["mixed/", ".csv and .json"]),
            ("SELECT * FROM 's3://bucket/x.parquet'", ["s3://bucket", "no reader for s3://"]),
            ("SELECT nothing FROM 'a.parquet'", ["a.parquet", "nothing"]),
            (
                "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'cut.parquet'",
                ["cut.parquet", "Parquet"],
            ),
        ] {
            let error = error(&session, sql).await.to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{sql}: {error}");
        }
        assert_eq!(number(&session, "SELECT count(*) FROM 'a.parquet'").await, 1000);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_damaged_page_is_an_error_that_names_the_file() {
        let node = Node::new(&[]);
        node.numbers("a.parquet", 100_000).await;
        let path = node.directory.path().join("a.parquet");
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[100..middle].fill(0xff);
        std::fs::write(&path, bytes).unwrap();
        let error = error(&node.session(), "SELECT sum(n), max(t) FROM 'a.parquet'").await;
        assert!(error.to_string().contains("a.parquet"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_query_that_is_too_large_spills_or_fails_and_gives_all_back() {
        let node = Node::new(&[("executor.memory", "64m")]);
        node.numbers("a.parquet", 4_000_000).await;
        let session = node.session();
        let sorted = run(&session, "SELECT n, t FROM 'a.parquet' ORDER BY t DESC").await.unwrap();
        assert_eq!(sorted.iter().map(RecordBatch::num_rows).sum::<usize>(), 4_000_000);
        let cross = "SELECT count(*) FROM 'a.parquet' a JOIN 'a.parquet' b ON a.t = b.t || ''";
        let error = error(&session, cross).await.to_string();
        assert!(error.contains("Resources exhausted"), "{error}");
        // The operators of other partitions are dropped on other threads.
        until(|| node.engine.report().memory.reserved == 0).await;
        until(|| node.engine.report().memory.spilled == 0).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn dropping_the_results_ends_the_query() {
        let node = Node::new(&[]);
        let session = node.session();
        let endless =
            "SELECT count(*) FROM generate_series(1, 1000000000000) a, generate_series(1, 1000) b";
        let planned = session.plan(endless, None).await.unwrap();
        let (_, batches) = session.execute(planned).await.unwrap();
        until(|| node.engine.report().queries.len() == 1).await;
        drop(batches);
        until(|| node.engine.report().queries.is_empty()).await;
        assert_eq!(node.engine.report().memory.reserved, 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_cancelled_query_says_why() {
        let node = Node::new(&[]);
        let session = node.session();
        let endless = "SELECT count(*) FROM generate_series(1, 1000000000000)";
        let planned = session.plan(endless, None).await.unwrap();
        let id = planned.query().id().to_owned();
        let (_, batches) = session.execute(planned).await.unwrap();
        until(|| node.engine.report().queries.len() == 1).await;
        assert!(!node.engine.queries().cancel("another", "no"));
        assert!(node.engine.queries().cancel(&id, "the operator wants it"));
        let error = batches.unwrap().try_collect::<Vec<_>>().await.unwrap_err();
        assert!(error.to_string().contains("the operator wants it"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_connection_keeps_has_limits() {
        let node = Node::new(&[]);
        let session = node.session();
        let long = format!("SELECT '{}'", "x".repeat(1 << 20));
        let mut handles = Vec::new();
        for _ in 0..10 {
            handles.push(session.keep(session.plan(&long, None).await.unwrap()));
        }
        assert!(session.take(&handles[0]).is_err(), "the oldest is gone");
        assert!(session.take(&handles[9]).is_ok());
        let prepared = session.prepare(&long).await.unwrap();
        for _ in 0..15 {
            session.keep_prepared(prepared.clone()).unwrap();
        }
        let error = session.keep_prepared(prepared).unwrap_err().to_string();
        assert!(error.contains("close some"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_client_that_does_not_read_keeps_no_cancelled_query() {
        let node = Node::new(&[]);
        let session = node.session();
        let endless = "SELECT * FROM generate_series(1, 1000000000000)";
        let planned = session.plan(endless, None).await.unwrap();
        let id = planned.query().id().to_owned();
        let (_, batches) = session.execute(planned).await.unwrap();
        until(|| node.engine.report().queries.iter().any(|query| query.rows_sent > 0)).await;
        assert!(node.engine.queries().cancel(&id, "enough"));
        until(|| node.engine.report().queries.is_empty()).await;
        drop(batches);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn planning_ends_with_its_client() {
        let node = Node::new(&[]);
        let (session, (sender, receiver)) = (node.session(), tokio::sync::oneshot::channel());
        let query = session.new_query("SELECT 1");
        let engine = Arc::clone(&node.engine);
        // It waits for a file, say, until it is dropped.
        let planning = tokio::spawn(async move {
            let work = async move {
                let _told_when_dropped: tokio::sync::oneshot::Sender<()> = sender;
                std::future::pending::<Result<()>>().await
            };
            query.plan(&engine, work).await
        });
        until(|| node.engine.report().queries.len() == 1).await;
        planning.abort();
        assert!(receiver.await.is_err());
        until(|| node.engine.report().queries.is_empty()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_draining_engine_takes_no_query_and_ends_those_that_run() {
        let node = Node::new(&[]);
        let session = node.session();
        let endless = "SELECT count(*) FROM generate_series(1, 1000000000000)";
        let planned = session.plan(endless, None).await.unwrap();
        let (_, batches) = session.execute(planned).await.unwrap();
        until(|| node.engine.report().queries.len() == 1).await;
        node.engine.queries().drain("maintenance", Duration::from_millis(10)).await;
        let error = batches.unwrap().try_collect::<Vec<_>>().await.unwrap_err();
        assert!(matches!(error, ExecutorError::Ending(_)), "{error}");
        let error = super::tests::error(&session, "SELECT 1").await;
        assert!(error.to_string().contains("maintenance"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn parameters_are_found_and_bound() {
        let node = Node::new(&[]);
        node.numbers("a.parquet", 10).await;
        let session = node.session();
        let sql = "SELECT count(*) FROM 'a.parquet' WHERE n > $1 AND t <> $2";
        let prepared = session.prepare(sql).await.unwrap();
        let types: Vec<_> = prepared.parameters.iter().map(|it| it.data_type().clone()).collect();
        assert_eq!(types[0], DataType::Int64);
        assert_eq!(types.len(), 2);
        let values = ParamValues::from(vec![
            datafusion::common::ScalarValue::from(3_i64),
            datafusion::common::ScalarValue::from("row 5"),
        ]);
        let planned = session.plan(sql, Some(values)).await.unwrap();
        let batches: Vec<_> =
            session.execute(planned).await.unwrap().1.unwrap().try_collect().await.unwrap();
        assert_eq!(batches[0].column(0).as_primitive::<Int64Type>().value(0), 5);
    }

    #[test]
    fn deep_statements_are_refused_and_long_ones_run() {
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        let threads = threads.enable_all().thread_stack_size(crate::process::STACK_BYTES).build();
        let threads = threads.unwrap();
        threads.block_on(threads.spawn(deep_statements())).unwrap();
    }

    async fn deep_statements() {
        let node = Node::new(&[("sql.max_statement_bytes", "1g")]);
        let session = node.session();
        for sql in [
            // As long as any may be.
            format!("SELECT 1{}", "+1".repeat(2_097_000)),
            format!("SELECT true{}", " OR true".repeat(100_000)),
            vec!["SELECT 1"; 50_000].join(" UNION ALL "),
            format!("SELECT 1 FROM {}", vec!["t"; 50_000].join(", ")),
            format!("SELECT 1 FROM t {}", vec!["JOIN t USING (n)"; 50_000].join(" ")),
            format!("EXPLAIN SELECT 1{}", "+1".repeat(500_000)),
        ] {
            let error = error(&session, &sql).await.to_string();
            assert!(error.contains("sql.max_depth"), "{error}");
        }
        let flat = vec!["1"; 300_000].join(",");
        assert_eq!(number(&session, &format!("SELECT count(*) WHERE 1 IN ({flat})")).await, 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_statement_over_the_limit_is_refused() {
        let node = Node::new(&[("sql.max_statement_bytes", "1k")]);
        let sql = format!("SELECT '{}'", "x".repeat(2000));
        let error = error(&node.session(), &sql).await.to_string();
        assert!(error.contains("sql.max_statement_bytes"), "{error}");
    }

    /// Waits until something holds; the test's own time limit ends what never does.
    async fn until(holds: impl Fn() -> bool) {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
