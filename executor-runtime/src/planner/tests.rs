//! Plans of whole statements.

use std::sync::Arc;

use creel_settings::Settings;
use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext, col};

use super::statement;
use crate::engine::NoGpu;
use crate::error::{ExecutorError, Result};

const TABLES: [&str; 2] = [
    "CREATE TABLE lineitem AS
        SELECT value AS l_orderkey,
               arrow_cast(value, 'Decimal128(15, 2)') AS l_quantity,
               arrow_cast(value, 'Decimal128(15, 2)') AS l_extendedprice,
               arrow_cast(0, 'Decimal128(15, 2)') AS l_discount,
               arrow_cast(0, 'Decimal128(15, 2)') AS l_tax,
               CAST('1998-01-01' AS DATE) AS l_shipdate,
               'A' AS l_returnflag,
               'F' AS l_linestatus,
               value * 0.5 AS l_weight,
               [value] AS l_list
        FROM generate_series(1, 1000)",
    "CREATE TABLE orders AS
        SELECT value AS o_orderkey, 'x' AS o_status FROM generate_series(1, 10)",
];

const Q1: &str = "
    SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty,
           sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price,
           avg(l_quantity) AS avg_qty, count(*) AS count_order
    FROM lineitem WHERE l_shipdate <= DATE '1998-09-02'
    GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus";

const Q6: &str = "
    SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem
    WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
          AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24";

/// A session, and what its settings are.
struct Planner {
    context: SessionContext,
    settings: Settings,
    gpu: std::result::Result<(), NoGpu>,
}

impl Planner {
    /// With a GPU that every query is worth.
    async fn new() -> Self {
        let config = SessionConfig::new().with_target_partitions(2);
        let context = SessionContext::new_with_config(config);
        for table in TABLES {
            context.sql(table).await.unwrap().collect().await.unwrap();
        }
        let settings = Settings::default();
        Self { context, settings, gpu: Ok(()) }.with("gpu.min_rows", "0")
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.set(name, value).unwrap();
        self
    }

    fn without_gpu(mut self, why: NoGpu) -> Self {
        self.gpu = Err(why);
        self
    }

    async fn plan(&self, sql: &str) -> Result<Arc<dyn ExecutionPlan>> {
        let state = self.context.state();
        let logical = state.create_logical_plan(sql).await?;
        let gpu = self.gpu.as_ref().copied();
        statement::plan("q1", state, &logical, &self.settings, gpu).await
    }

    /// The plan, an operator on each line.
    async fn text(&self, sql: &str) -> String {
        let plan = self.plan(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        displayable(plan.as_ref()).indent(false).to_string()
    }

    /// The names of the operators, from the root down, each with a blank before it for its depth.
    async fn names(&self, sql: &str) -> String {
        let text = self.text(sql).await;
        let name = |line: &str| {
            let end = line.find(':').unwrap_or(line.len());
            line[..end].replace("  ", " ") + "\n"
        };
        text.lines().map(name).collect()
    }

    async fn refusal(&self, sql: &str) -> String {
        let error = self.plan(sql).await.map(|_| ()).expect_err(sql);
        assert!(matches!(error, ExecutorError::Refused { .. }), "{error}");
        error.to_string()
    }

    /// The rows of EXPLAIN.
    async fn explained(&self, sql: &str) -> Vec<(String, String)> {
        let plan = self.plan(&format!("EXPLAIN {sql}")).await.unwrap();
        let batches = collect(plan, self.context.task_ctx()).await.unwrap();
        let texts = |batch: &RecordBatch, column: usize| -> Vec<String> {
            let column = batch.column(column).as_string::<i32>();
            column.iter().flatten().map(str::to_owned).collect()
        };
        batches.iter().flat_map(|it| texts(it, 0).into_iter().zip(texts(it, 1))).collect()
    }

    /// The row of EXPLAIN that tells of the GPU.
    async fn told(&self, sql: &str) -> Option<String> {
        let rows = self.explained(sql).await;
        rows.into_iter().find(|(kind, _)| kind == "gpu").map(|(_, text)| text)
    }
}

fn lines(text: &str) -> String {
    let line = |line: &str| line.trim_start_matches('|').to_owned() + "\n";
    text.trim().lines().map(str::trim_start).map(line).collect()
}

#[tokio::test]
async fn q1_runs_on_the_gpu_between_scan_and_sort() {
    assert_eq!(
        Planner::new().await.names(Q1).await,
        lines(
            "|SortPreservingMergeExec
             | ProjectionExec
             |  SortExec
             |   GpuDownloadExec
             |    GpuHashAggregateExec
             |     GpuUploadExec
             |      RepartitionExec
             |       GpuDownloadExec
             |        GpuHashAggregateExec
             |         GpuFilterExec
             |          GpuUploadExec
             |           DataSourceExec"
        )
    );
}

#[tokio::test]
async fn q6_runs_on_the_gpu() {
    let planner = Planner::new().await;
    assert_eq!(
        planner.names(Q6).await,
        lines(
            "|GpuDownloadExec
             | GpuProjectExec
             |  GpuHashAggregateExec
             |   GpuUploadExec
             |    CoalescePartitionsExec
             |     GpuDownloadExec
             |      GpuHashAggregateExec
             |       GpuFilterExec
             |        GpuUploadExec
             |         DataSourceExec"
        )
    );
    let text = planner.text(Q6).await;
    assert!(text.contains("GpuFilterExec: l_shipdate@3 >= 1994-01-01 AND"), "{text}");
    assert!(text.contains("projection=[l_extendedprice@1, l_discount@2]"), "{text}");
}

#[tokio::test]
async fn what_has_no_gpu_form_stays_between_what_has() {
    let planner = Planner::new().await;
    let sql = "SELECT o_status, max(l_weight + 1) AS most FROM lineitem
               JOIN orders ON o_orderkey = l_orderkey
               WHERE l_quantity > 2 AND o_status LIKE '%x%' GROUP BY o_status";
    assert_eq!(
        planner.names(sql).await,
        lines(
            "|GpuDownloadExec
             | GpuProjectExec
             |  GpuHashAggregateExec
             |   GpuUploadExec
             |    RepartitionExec
             |     GpuDownloadExec
             |      GpuHashAggregateExec
             |       GpuUploadExec
             |        HashJoinExec
             |         CoalescePartitionsExec
             |          GpuDownloadExec
             |           GpuFilterExec
             |            GpuUploadExec
             |             DataSourceExec
             |         RepartitionExec
             |          FilterExec
             |           DataSourceExec"
        )
    );
    let told = planner.told(sql).await.unwrap();
    assert_eq!(
        told,
        "!HashJoinExec: there is no GPU form of it\n\
         !FilterExec: o_status@1 LIKE %x% can't run on the GPU: there is no GPU form of it"
    );
}

#[tokio::test]
async fn a_column_that_can_not_go_keeps_its_operators() {
    let planner = Planner::new().await;
    let sql = "SELECT l_list FROM lineitem WHERE l_orderkey > 5";
    assert_eq!(planner.names(sql).await, "FilterExec\n DataSourceExec\n");
    let told = planner.told(sql).await.unwrap();
    assert!(told.contains("!FilterExec: its column l_list is List"), "{told}");
}

#[tokio::test]
async fn an_idle_projection_goes_only_with_others() {
    let planner = Planner::new().await;
    let alone = "SELECT a.l_orderkey AS k FROM lineitem a JOIN orders ON o_orderkey = l_orderkey";
    assert!(!planner.text(alone).await.contains("Gpu"));
    let told = planner.told(&format!("SELECT 7 AS seven, o_status FROM ({Q6}), orders")).await;
    assert!(!told.unwrap().contains("Projection"));
    let counted = "SELECT count(*) FROM (SELECT l_orderkey FROM lineitem LIMIT 5)";
    assert!(!planner.text(counted).await.contains("Gpu"));
}

#[tokio::test]
async fn small_inputs_stay_on_the_cpu_both_halves_of_an_aggregate() {
    let planner = Planner::new().await.with("gpu.min_rows", "1001");
    assert!(!planner.text(Q1).await.contains("Gpu"));
    let told = planner.told(Q1).await.unwrap();
    let small = "1000 rows come in, and the GPU is for 1001 or more (gpu.min_rows)";
    assert_eq!(told.matches(small).count(), 3, "{told}");
    let planner = planner.with("gpu.min_rows", "1000");
    assert_eq!(planner.text(Q1).await.matches("GpuHashAggregateExec").count(), 2);
    // What isn't known may be much.
    let planner = planner.with("gpu.min_rows", "1000000");
    let unknown = "SELECT value + 1 AS v FROM generate_series(1, 10) WHERE value > 3";
    assert!(planner.text(unknown).await.contains("GpuFilterExec"), "unknown is many");
}

#[tokio::test]
async fn off_is_off_and_says_nothing() {
    let planner = Planner::new().await.with("gpu.mode", "off").with("gpu.explain", "ALL");
    assert!(!planner.text(Q1).await.contains("Gpu"));
    assert_eq!(planner.told(Q1).await, None);
}

#[tokio::test]
async fn explain_only_tells_what_would_run() {
    let planner = Planner::new().await.with("gpu.mode", "explain_only").without_gpu(NoGpu::Cpu);
    assert!(!planner.text(Q1).await.contains("Gpu"));
    let told = planner.told(Q1).await.unwrap();
    assert!(told.starts_with("gpu.mode is explain_only: nothing runs on the GPU"), "{told}");
    assert!(told.contains("\n*GpuHashAggregateExec: mode=Partial"), "{told}");
    assert!(told.contains("\n!SortExec: there is no GPU form of it"), "{told}");
    assert_eq!(planner.with("gpu.explain", "NONE").told(Q1).await, None);
}

#[tokio::test]
async fn required_refuses_with_all_reasons() {
    let planner = Planner::new().await.with("gpu.mode", "required");
    assert!(planner.plan(Q1).await.is_ok(), "sorts, scans and exchanges aren't insisted on");
    assert!(planner.plan("SELECT l_orderkey FROM lineitem ORDER BY 1").await.is_ok());
    let sql = "SELECT abs(l_orderkey), upper(l_returnflag) FROM lineitem
               WHERE l_linestatus LIKE 'F%'";
    let refusal = planner.refusal(sql).await;
    for words in ["gpu.mode is required", "abs(l_orderkey", "upper(l_returnflag", "LIKE F%"] {
        assert!(refusal.contains(words), "{words}: {refusal}");
    }
    let told = planner.told(sql).await.unwrap();
    assert!(told.contains("!FilterExec"), "EXPLAIN isn't refused: {told}");
    // Who insists doesn't ask whether it is worth it.
    let planner = planner.with("gpu.min_rows", "1000000");
    assert!(planner.text(Q6).await.contains("GpuFilterExec"));
    let planner = planner.without_gpu(NoGpu::Unusable("the driver is too old".to_owned()));
    assert!(planner.refusal("SELECT 1").await.contains("there is no GPU: the driver is too old"));
}

#[tokio::test]
async fn without_a_gpu_all_runs_on_the_cpu() {
    let lost = NoGpu::Unusable("the driver is too old".to_owned());
    let planner = Planner::new().await.without_gpu(lost);
    assert!(!planner.text(Q1).await.contains("Gpu"));
    let told = planner.told(Q1).await;
    let reason = "nothing runs on the GPU: there is no GPU: the driver is too old";
    assert_eq!(told.as_deref(), Some(reason));
    // An executor for the CPU doesn't nag.
    let planner = planner.without_gpu(NoGpu::Cpu);
    assert_eq!(planner.told(Q1).await, None);
    let told = planner.with("gpu.explain", "ALL").told(Q1).await.unwrap();
    assert!(told.contains("the executor is one for the CPU"), "{told}");
}

#[tokio::test]
async fn explain_has_one_more_row_in_each_format() {
    let planner = Planner::new().await;
    let sorted = "SELECT l_orderkey + 1 AS k FROM lineitem ORDER BY k";
    let rows = planner.explained(sorted).await;
    let kinds: Vec<&str> = rows.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["logical_plan", "physical_plan", "gpu"]);
    assert!(rows[1].1.contains("GpuProjectExec: expr=["), "{}", rows[1].1);
    let tree = planner.explained(&format!("FORMAT TREE {sorted}")).await;
    assert!(tree[0].1.contains("GpuProjectExec"), "{}", tree[0].1);
    assert_eq!(tree.last().unwrap().0, "gpu");
    let verbose = planner.explained(&format!("VERBOSE {sorted}")).await;
    assert!(verbose.iter().any(|(kind, _)| kind == "physical_plan after gpu"));
    assert_eq!(verbose.last().unwrap().0, "gpu");
    // All of it runs there: nothing to tell.
    assert_eq!(planner.told(Q6).await, None);
    let told = planner.with("gpu.explain", "ALL").told(Q6).await.unwrap();
    assert_eq!(told.lines().count(), 4, "{told}");
    assert!(told.lines().all(|line| line.starts_with("*Gpu")), "{told}");
}

#[tokio::test]
async fn an_ordered_aggregate_stays_on_the_cpu() {
    let planner = Planner::new().await;
    let frame = planner.context.table("lineitem").await.unwrap();
    let (schema, rows) = (frame.schema().as_arrow().clone(), frame.collect().await.unwrap());
    let sorted = MemTable::try_new(Arc::new(schema), vec![rows]).unwrap();
    let sorted = sorted.with_sort_order(vec![vec![col("l_orderkey").sort(true, true)]]);
    planner.context.register_table("sorted", Arc::new(sorted)).unwrap();
    let sql = "SELECT l_orderkey, sum(l_quantity) FROM sorted GROUP BY l_orderkey";
    assert!(!planner.text(sql).await.contains("Gpu"));
    let told = planner.told(sql).await.unwrap();
    assert!(told.contains("keeps the order of its input"), "{told}");
}

#[tokio::test]
async fn aggregates_without_a_gpu_form_say_so() {
    let planner = Planner::new().await;
    for (aggregates, why) in [
        ("count(DISTINCT l_orderkey), count(DISTINCT l_tax)", "DISTINCT has no GPU form"),
        ("stddev(l_weight)", "there is no GPU form of stddev"),
        ("count(l_orderkey, l_tax)", "it has 2 arguments"),
        ("sum(arrow_cast(l_orderkey, 'UInt64'))", "it works on UInt64"),
        ("avg(arrow_cast(l_tax, 'Decimal128(30, 2)'))", "it works on Decimal256"),
        ("max(l_list)", "its column l_list is List"),
    ] {
        let sql = format!("SELECT l_returnflag, {aggregates} FROM lineitem GROUP BY l_returnflag");
        assert!(!planner.text(&sql).await.contains("GpuHash"), "{sql}");
        let told = planner.told(&sql).await.unwrap();
        assert!(told.contains(why), "{aggregates}: {told}");
    }
    let rollup = "SELECT l_returnflag, count(*) FROM lineitem GROUP BY ROLLUP (l_returnflag)";
    let told = planner.told(rollup).await.unwrap();
    assert!(told.contains("grouping sets have no GPU form"), "{told}");
}

#[tokio::test]
async fn filters_stay_in_the_plan_and_dynamic_ones_reach_the_scan() {
    let planner = Planner::new().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lineitem.parquet");
    let frame = planner.context.sql("SELECT l_orderkey, l_weight FROM lineitem").await.unwrap();
    let options = DataFrameWriteOptions::new().with_single_file_output(true);
    frame.write_parquet(path.to_str().unwrap(), options, None).await.unwrap();
    let options = ParquetReadOptions::default();
    planner.context.register_parquet("file", path.to_str().unwrap(), options).await.unwrap();

    let sql =
        "SELECT l_orderkey, l_weight FROM file WHERE l_weight > 7 ORDER BY l_orderkey LIMIT 3";
    let text = planner.text(sql).await;
    assert!(text.contains("GpuFilterExec: l_weight@1 > 7"), "{text}");
    let scan = text.lines().last().unwrap();
    assert!(scan.contains("predicate=l_weight@1 > 7"), "it prunes by the filter: {scan}");
    assert!(scan.contains("DynamicFilter"), "and by that of the sort: {scan}");

    let as_written = "SET datafusion.optimizer.join_reordering = false";
    planner.context.sql(as_written).await.unwrap().collect().await.unwrap();
    let sql = "SELECT o_status, l_weight * 2 AS w FROM orders
               JOIN file ON o_orderkey = l_orderkey WHERE l_weight > 1";
    let text = planner.text(sql).await;
    assert!(text.contains("GpuFilterExec"), "{text}");
    assert!(
        text.lines().any(|it| it.contains("parquet") && it.contains("DynamicFilter")),
        "{text}"
    );
}

#[tokio::test]
async fn a_limit_stays_above_an_aggregate() {
    let planner = Planner::new().await;
    let names = planner.text("SELECT DISTINCT l_returnflag FROM lineitem LIMIT 1").await;
    assert!(names.contains("GpuHashAggregateExec"), "{names}");
    assert!(names.contains("fetch=1") || names.contains("LimitExec"), "{names}");
    let sql = "SELECT l_orderkey, max(l_tax) AS m FROM lineitem GROUP BY 1 ORDER BY m DESC LIMIT 2";
    let top = planner.text(sql).await;
    assert!(top.contains("SortExec: TopK(fetch=2)"), "{top}");
    assert_eq!(top.matches("GpuHashAggregateExec").count(), 2, "{top}");
}

#[tokio::test]
async fn rows_are_counted_without_columns_between_operators() {
    let counted = "SELECT count(*) FROM lineitem WHERE l_quantity > 3";
    let text = Planner::new().await.text(counted).await;
    assert!(text.contains("GpuFilterExec: l_quantity@0 > 3.00, projection=[]"), "{text}");
}

#[tokio::test]
async fn a_recursive_query_stays_on_the_cpu() {
    let sql = "WITH RECURSIVE r AS (
                   SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 5)
               SELECT n * 2 FROM r";
    let planner = Planner::new().await;
    let text = planner.text(sql).await;
    assert!(text.starts_with("GpuDownloadExec\n  GpuProjectExec"), "{text}");
    assert_eq!(text.matches("Gpu").count(), 3, "{text}");
    let refusal = planner.with("gpu.mode", "required").refusal(sql).await;
    assert!(refusal.contains("RecursiveQueryExec: there is no GPU form of it"), "{refusal}");
}
