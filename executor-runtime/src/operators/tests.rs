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
use crate::error::{ExecutorError, Result};
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
        let start = Start {
            id: "gpu-1".to_owned(),
            device,
            spill_dir,
            settings,
            gpus: 1,
            holders: Vec::new(),
        };
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
fn on_gpu(settings: &[(&str, &str)], test: &impl AsyncFn(&Node)) {
    named(name_of(test), T4, &[], |_| {
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
    on_gpu(&[], &async |node| {
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
    on_gpu(&[("gpu.memory.pool", "ARENA"), ("gpu.batch_bytes", "64 KiB")], &async |node| {
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
    on_gpu(&settings, &async |node| {
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

/// Columns of all types, with nulls, NaN, both zeros, infinities and the ends of ranges.
const ODD: &str = "
    SELECT value AS n,
           CASE value % 7 WHEN 0 THEN NULL WHEN 1 THEN 9223372036854775807
               WHEN 2 THEN -9223372036854775807 - 1 WHEN 3 THEN 0 ELSE value * 3 - 40 END AS i,
           CAST(CASE WHEN value % 5 = 0 THEN NULL WHEN value % 11 = 0 THEN -2147483648
               ELSE value - 50 END AS INT) AS j,
           arrow_cast(CASE WHEN value % 6 > 0 THEN value % 128 - 64 END, 'Int8') AS i8,
           arrow_cast(value - 30, 'Int16') AS i16,
           CASE value % 9 WHEN 0 THEN NULL WHEN 1 THEN 'NaN'::double WHEN 2 THEN '-0.0'::double
               WHEN 3 THEN 0.0 WHEN 4 THEN 'Infinity'::double WHEN 5 THEN '-Infinity'::double
               ELSE value * 0.37 - 8 END AS f,
           arrow_cast(CASE value % 4 WHEN 0 THEN NULL WHEN 1 THEN '-0.0'::double
               ELSE value * 0.1 END, 'Float32') AS f32,
           arrow_cast(CASE WHEN value % 8 > 0 THEN (value - 50) * 1.37 END,
               'Decimal128(15, 2)') AS d,
           arrow_cast(value * 0.013, 'Decimal128(10, 4)') AS e,
           arrow_cast(value * 0.5, 'Decimal64(9, 3)') AS q,
           arrow_cast(value * 0.5, 'Decimal64(4, 1)') AS q4,
           CASE WHEN value % 10 > 0 THEN 'text ' || (value % 13) END AS s,
           arrow_cast(CASE WHEN value % 10 <> 3 THEN 'key ' || (value % 4) END,
               'Dictionary(Int32, Utf8)') AS k,
           arrow_cast('large ' || (value % 3), 'LargeUtf8') AS ls,
           CASE WHEN value % 3 > 0 THEN value % 2 = 0 END AS p, value % 2 = 1 AS o,
           CAST(CAST(value * 97 - 5000 AS INT) AS DATE) AS t,
           CAST(CAST(CASE WHEN value % 9 > 0 THEN value * 31 END AS INT) AS DATE) AS u,
           arrow_cast(value * 7919000000123 - 40000000000000, 'Timestamp(Nanosecond, None)') AS ns,
           arrow_cast(value * 86399 - 400000, 'Timestamp(Second, None)') AS sec,
           arrow_cast(value * 7919000123, 'Timestamp(Microsecond, Some(\"+02:00\"))') AS tz
    FROM generate_series(1, 300)";

/// What the planner takes, by lines.
const EXPRESSIONS: &str = "
    i + 1; i - j; i * 3; i / 2; i % 5; -i; j + j; j / 3; i8 + i8; i8 * i8; i16 * i16; -i8; -d; -q
    f + 1; f / 2; f % 3; f32 * f32; -f; d + e; d - e; d * e; d / e; d % e; d * 2; d / 3; d + j; d * f
    q + q; q * q; q / 2; q - 0.5; q % 2; t - u; u - t
    i = 0; i <> j; f = 0.0; f < 1.0; f >= 'NaN'::double; f32 > 3; d > e; d = 1.37; q < 5; p = o; p < o
    s = 'text 3'; s < 'text 2'; k = 'key 1'; k >= s; ls = 'large 2'; ls <> s; t > u; sec > ns; tz = tz
    i IS DISTINCT FROM j; p IS NOT DISTINCT FROM o; f IS DISTINCT FROM 0.0; s IS NOT DISTINCT FROM k
    p AND o; p OR o; NOT p; p IS TRUE; p IS NOT FALSE; p IS UNKNOWN; p IS NOT UNKNOWN; k IS NULL
    CASE WHEN n <> 3 THEN 100 / (n - 3) END
    CASE WHEN n = 3 THEN 0 WHEN 100 / (n - 3) > 5 THEN 1 ELSE 2 END; CASE WHEN p THEN s ELSE ls END
    CASE WHEN p THEN s END; CASE WHEN i > 0 THEN d WHEN j > 0 THEN d + d ELSE d - d END
    CASE s WHEN 'text 1' THEN 1 WHEN 'text 2' THEN 2 END; CASE j WHEN 3 THEN 'a' ELSE 'c' END
    CASE WHEN p THEN NULL ELSE j END; CASE p WHEN o THEN 1 ELSE 3 END; CASE WHEN o THEN f ELSE f32 END
    TRY_CAST(i AS INT); TRY_CAST(j AS SMALLINT); CAST(i8 AS BIGINT); CAST(j AS DOUBLE)
    TRY_CAST(f AS INT); TRY_CAST(f AS BIGINT); CAST(f32 AS DOUBLE); CAST(f AS REAL); CAST(p AS INT)
    CAST(j AS BOOLEAN); CAST(f AS BOOLEAN); CAST(d AS DOUBLE); CAST(d AS INT); CAST(q AS DOUBLE)
    CAST(d AS DECIMAL(20, 4)); CAST(d AS DECIMAL(15, 1)); TRY_CAST(d AS DECIMAL(4, 2))
    TRY_CAST(j AS DECIMAL(12, 3)); TRY_CAST(i AS DECIMAL(12, 3)); TRY_CAST(f AS DECIMAL(10, 3))
    arrow_cast(q, 'Decimal128(20, 5)'); arrow_cast(d, 'Decimal64(12, 1)')
    CAST(t AS TIMESTAMP); CAST(ns AS DATE); CAST(sec AS DATE); CAST(ns AS BIGINT); CAST(tz AS BIGINT)
    arrow_cast(sec, 'Timestamp(Millisecond, None)'); arrow_cast(ns, 'Timestamp(Second, None)')
    arrow_cast(tz, 'Timestamp(Second, Some(\"-05:00\"))'); CAST(t AS INT); CAST(j AS DATE)
    arrow_cast(tz, 'Timestamp(Second, None)'); arrow_cast(j, 'Timestamp(Second, Some(\"-05:00\"))')
    arrow_cast(k, 'Utf8'); arrow_cast(ls, 'Utf8View'); arrow_cast(s, 'LargeUtf8')
    i IN (0, 5, 8, 11, 14, 17); j NOT IN (1, 2, 3, 4, NULL, 7); d IN (1.37, 2.74, 4.11, 5.48)
    s IN ('text 1', 'text 2', 'text 3', 'text 9'); k NOT IN ('key 1', 'key 2', 'x', 'y')
    q BETWEEN 1 AND 20; coalesce(i, j, 7); coalesce(s, ls, 'none'); coalesce(k, s); nvl(f, 1.5)
    nullif(j, 3); nullif(s, 'text 4'); nullif(d, e); nullif(p, o)
    date_part('year', t); date_part('quarter', t); date_part('month', ns); date_part('week', ns)
    date_part('isoyear', t); date_part('day', t); date_part('doy', t); date_part('dow', u)
    date_part('isodow', u); date_part('hour', ns); date_part('minute', ns); date_part('second', ns)
    date_part('millisecond', ns); date_part('microsecond', ns); date_part('hour', t)
    date_part('second', sec); date_part('millisecond', sec); extract(minute FROM sec)";

const AGGREGATES: &str = "
    count(*); count(i); count(k); count(s); sum(i); sum(j); sum(i8); sum(d); sum(q); sum(q4)
    sum(n * 0.5); avg(n * 0.5); avg(j); avg(d); avg(e); avg(q); avg(q4); min(i); max(i); min(i8)
    max(i16); min(d); max(d); min(q); max(q); min(s); max(s); min(ls); max(k); min(p); max(p); min(u)
    max(ns); min(tz); min(n * 0.1); sum(j) FILTER (WHERE p); count(*) FILTER (WHERE j > 0)
    avg(d) FILTER (WHERE o); min(s) FILTER (WHERE p); sum(1)";

const KEYS: [&str; 14] = [
    "i",
    "j",
    "i8",
    "f",
    "f32",
    "d",
    "q",
    "s",
    "k",
    "p, o",
    "u, tz",
    "s, k, f",
    "n % 3",
    "coalesce(ls, s)",
];

fn told(answer: Result<String>) -> String {
    answer.unwrap_or_else(|error| error.to_string())
}

fn items(lists: &str) -> Vec<&str> {
    let lines = lists.lines().flat_map(|line| line.split("; "));
    lines.map(str::trim).filter(|item| !item.is_empty()).collect()
}

#[test]
fn all_that_the_planner_takes_gives_the_cpus_answers() {
    on_gpu(&[("gpu.mode", "required")], &async |node| {
        let (gpu, cpu) = (node.session(), node.session());
        cpu.set("gpu.mode", Some("off")).unwrap();
        let frame = SessionContext::new().sql(ODD).await.unwrap();
        let path = node.directory.path().join("odd.parquet");
        let options = DataFrameWriteOptions::new().with_single_file_output(true);
        frame.write_parquet(path.to_str().unwrap(), options, None).await.unwrap();
        // With a filter, so that the scan doesn't compute them.
        let columns = |items: &[&str]| -> String {
            let named = items.iter().enumerate().map(|(at, item)| format!(", {item} AS c{at}"));
            named.collect()
        };
        let mut queries = Vec::new();
        for some in items(EXPRESSIONS).chunks(8) {
            let columns = columns(some);
            queries.push(format!("SELECT n{columns} FROM 'odd.parquet' WHERE n > 0 ORDER BY n"));
        }
        for some in items(AGGREGATES).chunks(14) {
            let columns = columns(some);
            queries.push(format!("SELECT 1 AS one{columns} FROM 'odd.parquet'"));
            queries.push(format!("SELECT 1 AS one{columns} FROM 'odd.parquet' WHERE n < 0"));
            queries.extend(KEYS.map(|key| {
                format!("SELECT {key}{columns} FROM 'odd.parquet' GROUP BY {key} ORDER BY {key}")
            }));
        }
        let mut differ = Vec::new();
        for sql in queries {
            let (expected, found) = (answer(&cpu, &sql).await, answer(&gpu, &sql).await);
            if expected.is_err() {
                differ.push(format!("{expected:?} on the CPU\n{sql}"));
            }
            let (expected, found) = (expected.unwrap_or_default(), told(found));
            let lines = found.lines().zip(expected.lines()).filter(|(found, it)| found != it);
            differ.extend(lines.take(2).map(|(found, it)| format!("{found}\n{it}\n{sql}")));
        }
        assert!(differ.is_empty(), "{}", differ.join("\n"));
        for failing in
            ["CAST(i AS INT)", "CAST(f AS INT)", "CAST(d AS DECIMAL(4, 2))", "7 / (n - 3)"]
        {
            let sql = format!("SELECT {failing} FROM 'odd.parquet' WHERE n > 0");
            for session in [&cpu, &gpu] {
                let error = answer(session, &sql).await.expect_err(&sql);
                assert!(!matches!(error, ExecutorError::Refused { .. }), "{sql}: {error}");
            }
        }
    });
}

/// Far more groups than the device has room for, by two partitions at once.
#[test]
fn groups_that_do_not_fit_are_found_part_by_part() {
    let settings = [
        ("gpu.memory.pool", "DEFAULT"),
        ("gpu.memory.alloc_size", "1 MiB"),
        ("gpu.batch_bytes", "64 KiB"),
    ];
    on_gpu(&settings, &async |node| {
        let (gpu, cpu) = (node.session(), node.session());
        cpu.set("gpu.mode", Some("off")).unwrap();
        gpu.set("sql.target_partitions", Some("1")).unwrap();
        let sql = "SELECT 'a name that takes room ' || (value % 7000) AS name, value AS n \
                   FROM generate_series(1, 12000)";
        let frame = SessionContext::new().sql(sql).await.unwrap();
        let path = node.directory.path().join("names.parquet");
        let options = DataFrameWriteOptions::new().with_single_file_output(true);
        frame.write_parquet(path.to_str().unwrap(), options, None).await.unwrap();
        let sql = "SELECT name, count(*) AS c, sum(n) AS s, max(name) AS m FROM 'names.parquet' \
                   GROUP BY name ORDER BY name";
        assert_eq!(answer(&gpu, sql).await.unwrap(), answer(&cpu, sql).await.unwrap());
        let report = node.gpu().report();
        assert!(report.spill.to_host + report.spill.to_disk > 0, "{report:?}");
    });
}
