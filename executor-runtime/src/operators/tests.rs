//! Whole queries on a simulated GPU.

use std::sync::Arc;

use creel_gpu::device::Driver;
use creel_gpu::memory::error::Recovery;
use creel_gpu::memory::ledger::Injection;
use creel_settings::Settings;
use creel_wire::{Attach, Start};
use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use simulated_cuda::harness::{name_of, named};
use tempfile::TempDir;
use tokio::runtime::{Builder, Handle};

use crate::engine::Engine;
use crate::engine::session::Session;
use crate::error::Result;
use crate::gpu::Gpu;

const T4: &str = "[[gpu]]\nmodel = 't4'";

/// Queries that have all operators, keys of few and of many values, strings, decimals and floats.
const QUERIES: [&str; 5] = [
    "SELECT sum(price * (1 - discount)) AS r FROM 'orders.parquet' \
     WHERE discount BETWEEN 0.02 AND 0.05 AND quantity < 24 AND day >= DATE '1970-02-01'",
    "SELECT status, flag, sum(quantity) AS q, sum(price) AS p, avg(price) AS a, avg(rate) AS f, \
     count(*) AS n FROM 'orders.parquet' WHERE day <= DATE '1970-12-01' \
     GROUP BY status, flag ORDER BY status, flag",
    "SELECT customer, min(note) AS low, max(price) AS high, count(note) AS notes \
     FROM 'orders.parquet' GROUP BY customer ORDER BY customer",
    "SELECT n, note, CASE WHEN quantity > 25 THEN note ELSE status END AS what \
     FROM 'orders.parquet' WHERE n % 7 = 3 AND note IS NOT NULL ORDER BY n",
    "SELECT customer % 10 AS k, sum(total) AS t FROM (SELECT customer, sum(quantity) AS total \
     FROM 'orders.parquet' GROUP BY customer HAVING count(*) > 2) GROUP BY 1 ORDER BY 1",
];

const ROWS: usize = 3000;

/// An engine on the device of a simulated T4, and the directory that its client works in.
struct Node {
    engine: Arc<Engine>,
    directory: TempDir,
}

impl Node {
    async fn new(settings: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let spill_dir = directory.path().join("spill");
        std::fs::create_dir(&spill_dir).unwrap();
        let given = [("gpu.min_rows", "0"), ("gpu.memory.host_limit", "2g")];
        let settings = given.iter().chain(settings);
        let settings = settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let settings = settings.collect();
        let device = Driver::start().unwrap().devices().unwrap().remove(0).uuid;
        let start = Start { id: "gpu-1".to_owned(), device, spill_dir, settings };
        let settings = Settings::from_map(&start.settings).unwrap();
        let engine = Engine::new(&start, settings, 2, Handle::current()).unwrap();
        let node = Self { engine: Arc::new(engine), directory };
        node.write_orders().await;
        node
    }

    fn gpu(&self) -> &Arc<Gpu> {
        self.engine.gpu().expect("the simulated GPU")
    }

    fn session(&self) -> Session {
        self.engine.open_session(Attach {
            attachment: 1,
            pid: 1,
            uid: 1,
            cwd: Some(self.directory.path().to_owned()),
            container: None,
        })
    }

    async fn write_orders(&self) {
        let sql = format!(
            "SELECT value AS n, value * 7 % 331 AS customer, \
             arrow_cast(value % 50 + 0.5, 'Decimal128(15, 2)') AS quantity, \
             arrow_cast(value * 13 % 9973, 'Decimal128(15, 2)') AS price, \
             arrow_cast(value % 11 / 100.0, 'Decimal128(15, 2)') AS discount, \
             CASE WHEN value % 5 > 0 THEN value / 4.0 END AS rate, \
             CASE value % 3 WHEN 0 THEN 'open' WHEN 1 THEN 'filled' ELSE 'partial' END AS status, \
             value % 2 = 0 AS flag, CAST(CAST(value % 400 AS INT) AS DATE) AS day, \
             CASE WHEN value % 4 > 0 THEN 'note ' || (value % 100) END AS note \
             FROM generate_series(0, {})",
            ROWS - 1
        );
        let frame = SessionContext::new().sql(&sql).await.unwrap();
        let path = self.directory.path().join("orders.parquet");
        let options = DataFrameWriteOptions::new().with_single_file_output(true);
        frame.write_parquet(path.to_str().unwrap(), options, None).await.unwrap();
    }
}

async fn run(session: &Session, sql: &str) -> Result<Vec<RecordBatch>> {
    let planned = session.plan(sql, None).await?;
    match session.execute(planned).await?.1 {
        Some(batches) => batches.try_collect().await,
        None => Ok(Vec::new()),
    }
}

async fn answer(session: &Session, sql: &str) -> Result<String> {
    let batches = run(session, sql).await?;
    Ok(pretty_format_batches(&batches)?.to_string())
}

/// Runs a test on a simulated node, on threads as an executor has them.
fn on_gpu(settings: &[(&str, &str)], test: impl AsyncFn(&Node)) {
    named(name_of(&test), T4, &[], |_| {
        let threads = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .thread_stack_size(crate::process::STACK_BYTES)
            .build()
            .unwrap();
        threads.block_on(async {
            let node = Node::new(settings).await;
            test(&node).await;
            assert_eq!(node.gpu().leaks(), 0);
        });
    });
}

async fn operators(session: &Session, sql: &str) -> String {
    let batches = run(session, &format!("EXPLAIN {sql}")).await.unwrap();
    let plans = batches[0].column(1).as_string::<i32>();
    plans.iter().flatten().collect::<Vec<_>>().join("\n")
}

#[test]
fn answers_are_those_of_the_cpu() {
    on_gpu(&[], async |node| {
        let (gpu, cpu) = (node.session(), node.session());
        cpu.set("gpu.mode", Some("off")).unwrap();
        for sql in QUERIES {
            let plan = operators(&gpu, sql).await;
            assert!(plan.contains("GpuDownloadExec"), "{plan}");
            assert!(!plan.contains(" FilterExec") && !plan.contains(" AggregateExec"), "{plan}");
            let expected = answer(&cpu, sql).await.unwrap();
            assert_eq!(answer(&gpu, sql).await.unwrap(), expected, "{sql}\n{plan}");
        }
    });
}

/// Memory that can't be had, once, at each reservation of each query in turn.
#[test]
fn every_failure_to_reserve_gives_the_same_answer() {
    on_gpu(&[("gpu.memory.pool", "ARENA"), ("gpu.batch_bytes", "64 KiB")], async |node| {
        let session = node.session();
        for sql in QUERIES {
            let ledger = node.gpu().ledger();
            let before = ledger.report().events.grants;
            let expected = answer(&session, sql).await.unwrap();
            let reservations = ledger.report().events.grants - before;
            assert!(reservations > 10, "{reservations}");
            for recovery in [Recovery::Retry, Recovery::Split] {
                for k in 1..=reservations {
                    ledger.inject(Some(Injection::at(k, recovery)));
                    let found = answer(&session, sql).await;
                    let found =
                        found.unwrap_or_else(|error| panic!("{recovery:?} at {k}: {error}"));
                    assert_eq!(found, expected, "{recovery:?} at {k}: {sql}");
                }
            }
            ledger.inject(None);
        }
    });
}

#[test]
fn a_device_that_is_too_small_spills_and_splits() {
    let settings = [
        ("gpu.memory.pool", "ARENA"),
        ("gpu.memory.sizing", "current"),
        ("gpu.memory.alloc_size", "192 KiB"),
        ("gpu.batch_bytes", "32 KiB"),
    ];
    on_gpu(&settings, async |node| {
        let (gpu, cpu) = (node.session(), node.session());
        cpu.set("gpu.mode", Some("off")).unwrap();
        for sql in QUERIES {
            let expected = answer(&cpu, sql).await.unwrap();
            assert_eq!(answer(&gpu, sql).await.unwrap(), expected, "{sql}");
        }
        let report = node.gpu().report();
        assert!(report.ledger.splits + report.spill.to_host > 0, "{report:?}");
    });
}
