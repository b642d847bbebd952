//! The answers of the control API as tables.

use comfy_table::Table;
use creel_wire::{AccountReport, GpuReport};
use serde::de::DeserializeOwned;

use super::human::{bytes, count, one_line, or_unknown, seconds, since, table, user};
use super::stdout;
use crate::api;
use crate::client::Client;
use crate::error::Error;

/// Characters of a statement or an error in a table; `--json` has all of it.
const TEXT_CHARS: usize = 80;
/// The same of a reason that stands in the last column.
const REASON_CHARS: usize = 300;

/// An answer, and where it is asked for.
pub(crate) trait Answer: DeserializeOwned {
    /// Path of the API.
    const PATH: &'static str;

    /// The answer for people; `None`, and what to say instead, where there is nothing.
    fn table(&self) -> Result<Table, &'static str>;

    /// What stands in a table of its own below that one.
    fn more(&self) -> Option<Table> {
        None
    }
}

/// Asks for an answer and prints it: as it came, or as a table.
pub(crate) async fn show<A: Answer>(client: &Client, json: bool) -> Result<(), Error> {
    let answer = client.get(A::PATH).await?;
    if json {
        return stdout::write(&[answer.body.trim_ascii(), b"\n"].concat());
    }
    let answer = answer.parse::<A>()?;
    match answer.table() {
        Ok(table) => stdout::table(&table)?,
        Err(nothing) => stdout::write(format!("{nothing}\n").as_bytes())?,
    }
    let Some(more) = answer.more() else { return Ok(()) };
    stdout::write(b"\n")?;
    stdout::table(&more)
}

/// The rows under their columns, or what to say where there are none.
fn rows<R: IntoIterator<Item = String>>(
    columns: &[&str],
    rows: impl IntoIterator<Item = R>,
    nothing: &'static str,
) -> Result<Table, &'static str> {
    let mut table = table(columns);
    for row in rows {
        table.add_row(row);
    }
    if table.is_empty() { Err(nothing) } else { Ok(table) }
}

impl Answer for api::Status {
    const PATH: &'static str = "/v1/status";

    fn table(&self) -> Result<Table, &'static str> {
        let api::AgentStatus {
            version,
            pid,
            uptime_s,
            ready,
            gpu_error,
            snapshot_error,
            lease_error,
        } = &self.agent;
        let ready = if *ready { "ready" } else { "stopping" };
        let counted = |count: u64, errors: &[&Option<String>]| {
            let errors = errors.iter().filter_map(|error| error.as_ref());
            errors.fold(count.to_string(), |text, error| format!("{text} ({error})"))
        };
        let mut table = Table::new();
        table.load_preset(comfy_table::presets::NOTHING);
        for (name, value) in [
            ("agent", format!("{version}, {ready}, pid {pid}, up {}", seconds(*uptime_s))),
            ("gpus", counted(self.gpus, &[gpu_error, snapshot_error])),
            ("executors", self.executors.to_string()),
            ("attachments", self.attachments.to_string()),
            ("leases", counted(self.leases, &[lease_error])),
            ("queries", self.queries.to_string()),
        ] {
            table.add_row([name.to_owned(), value]);
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        Ok(table)
    }
}

impl Answer for api::Gpus {
    const PATH: &'static str = "/v1/gpus";

    fn table(&self) -> Result<Table, &'static str> {
        let columns = [
            "INDEX", "NAME", ">USED", ">MEMORY", ">POOL", "MIG", "HEALTH", "LEASE", "DRIVER",
            "CUDA", "PCI BUS", "UUID",
        ];
        rows(
            &columns,
            self.gpus.iter().flat_map(gpu_rows),
            "no NVIDIA GPU; `creel doctor` says more",
        )
    }
}

/// A GPU, and below it its slices.
fn gpu_rows(gpu: &api::Gpu) -> Vec<[String; 12]> {
    let unknown = || or_unknown(None::<&str>);
    let mut mig = match (gpu.mig.enabled, gpu.mig.slices.len()) {
        (Some(true), slices) => format!("{slices} slices"),
        (Some(false), _) => "off".to_owned(),
        (None, _) => unknown(),
    };
    if let Some(waiting) = &gpu.mig.waiting {
        mig = format!("{mig} ({waiting})");
    }
    let mut rows = vec![[
        gpu.index.to_string(),
        or_unknown(gpu.name.as_ref()),
        or_unknown(gpu.memory.used.map(bytes)),
        or_unknown(gpu.memory.total.map(bytes)),
        pool(gpu.pool.as_ref()),
        mig,
        health(&gpu.health),
        or_unknown(gpu.lease.as_ref()),
        or_unknown(gpu.driver.as_ref()),
        or_unknown(gpu.cuda.as_ref()),
        or_unknown(gpu.pci_bus_id.as_ref()),
        or_unknown(gpu.uuid.as_ref()),
    ]];
    rows.extend(gpu.mig.slices.iter().map(|slice| {
        let mut row = [const { String::new() }; 12];
        row[0] = format!("{}:{}", gpu.index, slice.index);
        row[1] = format!("  {}", or_unknown(slice.profile.as_ref()));
        row[3] = or_unknown(slice.memory_total.map(bytes));
        row[4] = pool(slice.pool.as_ref());
        row[6] = health(&slice.health);
        row[7] = or_unknown(slice.lease.as_ref());
        row[11] = or_unknown(slice.uuid.as_ref());
        row
    }));
    rows
}

fn health(health: &api::Health) -> String {
    match health.state {
        api::HealthState::Healthy => "healthy".to_owned(),
        api::HealthState::Unhealthy => format!("unhealthy: {}", health.reasons.join(", ")),
    }
}

/// What is in use of a pool.
fn pool(pool: Option<&api::Pool>) -> String {
    or_unknown(pool.map(|pool| match pool.limit {
        Some(limit) => of(pool.live, limit),
        None => bytes(pool.live),
    }))
}

/// Bytes of a limit.
fn of(used: u64, limit: u64) -> String {
    format!("{} of {}", bytes(used), bytes(limit))
}

impl Answer for api::Executors {
    const PATH: &'static str = "/v1/executors";

    fn table(&self) -> Result<Table, &'static str> {
        let columns = [
            "ID",
            "DEVICE",
            "USER",
            "PID",
            "STATE",
            "FOR",
            ">RESTARTS",
            ">RESERVED",
            ">LIMIT",
            ">SPILLED",
            "LAST ERROR",
        ];
        let row = |executor: &api::Executor| {
            let memory = executor.memory.as_ref();
            [
                executor.id.clone(),
                executor.device.clone(),
                user(executor.uid),
                or_unknown(executor.pid),
                state(executor.state).to_owned(),
                since(executor.since),
                executor.restarts.to_string(),
                or_unknown(memory.map(|memory| bytes(memory.reserved))),
                or_unknown(memory.map(|memory| bytes(memory.limit))),
                or_unknown(memory.map(|memory| bytes(memory.spilled))),
                or_unknown(executor.last_error.as_ref().map(|error| one_line(error, TEXT_CHARS))),
            ]
        };
        rows(
            &columns,
            self.executors.iter().map(row),
            "no executor runs; the next connection starts one",
        )
    }

    fn more(&self) -> Option<Table> {
        let on_gpus = self.executors.iter().map(|executor| match &executor.gpu {
            Some(gpu) => gpu_lines(&executor.id, gpu).to_vec(),
            None => executor.gpu_unusable.iter().map(|why| unusable(&executor.id, why)).collect(),
        });
        rows(&["EXECUTOR", "GPU", "HOW IT STANDS"], on_gpus.flatten(), "").ok()
    }
}

/// Why the GPU of an executor can't be used.
fn unusable(executor: &str, why: &str) -> [String; 3] {
    [executor.to_owned(), "unusable".to_owned(), one_line(why, REASON_CHARS)]
}

/// How the GPU of an executor stands: a line for each part of it.
fn gpu_lines(executor: &str, gpu: &GpuReport) -> [[String; 3]; 4] {
    let GpuReport { pool, ledger, semaphore, spill } = gpu;
    let in_use = pool.limit.map_or_else(|| bytes(pool.live), |limit| of(pool.live, limit));
    let account = |account: &AccountReport| of(account.used, account.limit);
    let tasks = match semaphore.tasks {
        0 => semaphore.holding.to_string(),
        tasks => format!("{} of {tasks}", semaphore.holding),
    };
    let line = |executor: &str, part: &str, text| [executor.to_owned(), part.to_owned(), text];
    [
        line(
            executor,
            "pool",
            format!("{}: {in_use} in use, {} at the most", pool.kind, bytes(pool.peak)),
        ),
        line(
            "",
            "ledger",
            format!(
                "device {}, pinned {}, host {}; {} waits, {} retries, {} splits",
                account(&ledger.device),
                account(&ledger.pinned),
                account(&ledger.host),
                count(ledger.waits),
                count(ledger.retries),
                count(ledger.splits)
            ),
        ),
        line("", "tasks", format!("{tasks} use it, {} wait", semaphore.waiting)),
        line(
            "",
            "spill",
            format!(
                "{} on the host, {} on disk; so far {} to the host, {} to disk",
                bytes(spill.host),
                bytes(spill.disk),
                bytes(spill.to_host),
                bytes(spill.to_disk)
            ),
        ),
    ]
}

fn state(state: api::ExecutorState) -> &'static str {
    match state {
        api::ExecutorState::Starting => "starting",
        api::ExecutorState::Running => "running",
        api::ExecutorState::Draining => "draining",
        api::ExecutorState::BackingOff => "backing off",
        api::ExecutorState::Failed => "failed",
    }
}

impl Answer for api::Attachments {
    const PATH: &'static str = "/v1/attachments";

    fn table(&self) -> Result<Table, &'static str> {
        let columns = [">ID", "USER", ">PID", "CONTAINER", "EXECUTOR", "FOR", ">QUERIES", ">SENT"];
        let row = |attachment: &api::Attachment| {
            [
                attachment.id.to_string(),
                user(attachment.uid),
                attachment.pid.to_string(),
                or_unknown(attachment.container.as_ref()),
                attachment.executor.clone(),
                since(attachment.since),
                attachment.queries.to_string(),
                bytes(attachment.bytes_sent),
            ]
        };
        rows(&columns, self.attachments.iter().map(row), "nobody is connected")
    }
}

impl Answer for api::Leases {
    const PATH: &'static str = "/v1/leases";

    fn table(&self) -> Result<Table, &'static str> {
        rows(&LEASE_COLUMNS, self.leases.iter().map(lease_row), "no GPU is leased")
    }
}

const LEASE_COLUMNS: [&str; 8] =
    ["ID", "CONTAINER", "USER", ">PID", "FOR", "SOURCE", ">ADDRESSES", "DEVICES"];

fn lease_row(lease: &api::Lease) -> [String; 8] {
    let list = |items: &[String]| or_unknown(Some(items.join(" ")).filter(|text| !text.is_empty()));
    [
        lease.id.clone(),
        or_unknown(lease.container.as_ref()),
        user(lease.uid),
        or_unknown(lease.pid),
        since(lease.since),
        lease.source.clone(),
        list(&lease.addresses),
        list(&lease.devices),
    ]
}

/// One lease, as a table.
pub(crate) fn lease(lease: &api::Lease) -> Table {
    let mut table = table(&LEASE_COLUMNS);
    table.add_row(lease_row(lease));
    table
}

impl Answer for api::Queries {
    const PATH: &'static str = "/v1/queries";

    fn table(&self) -> Result<Table, &'static str> {
        let columns = [
            "ID",
            "EXECUTOR",
            "USER",
            ">ELAPSED",
            ">ROWS SCANNED",
            ">SCANNED",
            ">ROWS SENT",
            ">SENT",
            "SQL",
        ];
        let row = |query: &api::Query| {
            let report = &query.report;
            [
                report.id.clone(),
                query.executor.clone(),
                user(query.uid),
                format!("{:.1}s", report.elapsed_ms as f64 / 1000.0),
                count(report.rows_scanned),
                bytes(report.bytes_scanned),
                count(report.rows_sent),
                bytes(report.bytes_sent),
                one_line(&report.sql, TEXT_CHARS),
            ]
        };
        rows(&columns, self.queries.iter().map(row), "no query runs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(answer: &impl Answer) -> Vec<String> {
        let table = answer.table().unwrap();
        table.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    fn gpu() -> api::Gpu {
        api::Gpu {
            index: 0,
            uuid: Some("GPU-1".into()),
            minor: None,
            pci_bus_id: None,
            name: Some("NVIDIA H200".into()),
            memory: api::GpuMemory { total: Some(141 << 30), used: None, free: None },
            pool: None,
            driver: Some("570.1".into()),
            cuda: None,
            mig: api::Mig {
                enabled: Some(true),
                slices: vec![api::MigSlice {
                    index: 1,
                    uuid: Some("MIG-2".into()),
                    profile: Some("3g.20gb".into()),
                    memory_total: Some(20 << 30),
                    pool: Some(api::Pool {
                        kind: "ARENA".into(),
                        limit: Some(18 << 30),
                        live: 1 << 30,
                        ..api::Pool::default()
                    }),
                    health: api::Health::unhealthy("lost".into()),
                    lease: Some("lease-7".into()),
                }],
                waiting: None,
            },
            health: api::Health {
                state: api::HealthState::Unhealthy,
                reasons: vec!["Xid 79".into(), "lost".into()],
            },
            lease: None,
        }
    }

    #[test]
    fn a_gpu_has_its_slices_below_it_and_unknown_is_a_dash() {
        let lines = lines(&api::Gpus { schema: 1, gpus: vec![gpu()] });
        assert_eq!(lines.len(), 3);
        let words: Vec<_> = lines[1].split_whitespace().collect();
        assert_eq!(words[..6], ["0", "NVIDIA", "H200", "-", "141.0", "GiB"]);
        assert!(
            lines[1].contains("1 slices") && lines[1].contains("unhealthy: Xid 79, lost"),
            "{lines:?}"
        );
        let words: Vec<_> = lines[2].split_whitespace().collect();
        assert_eq!(words[..4], ["0:1", "3g.20gb", "20.0", "GiB"]);
        assert_eq!(words[4..9], ["1.0", "GiB", "of", "18.0", "GiB"]);
        assert_eq!(words[9..], ["unhealthy:", "lost", "lease-7", "MIG-2"]);
    }

    #[test]
    fn executors_on_gpus_have_a_table_of_their_own() {
        let account = |used, limit| AccountReport { limit, used, peak: used };
        let gpu = GpuReport {
            pool: creel_wire::PoolReport {
                kind: "ARENA".into(),
                limit: Some(20 << 30),
                live: 1 << 30,
                peak: 3 << 30,
                ..Default::default()
            },
            ledger: creel_wire::LedgerReport {
                device: account(1 << 30, 20 << 30),
                pinned: account(0, 8 << 30),
                host: account(512, 4 << 30),
                waits: 1234,
                retries: 2,
                splits: 1,
                ..Default::default()
            },
            semaphore: creel_wire::SemaphoreReport { tasks: 2, holding: 1, waiting: 3 },
            spill: creel_wire::SpillReport { host: 2048, to_host: 4096, ..Default::default() },
        };
        let on = |device: &str, gpu| api::Executor {
            id: format!("{device}-7"),
            device: device.into(),
            uid: 7,
            pid: Some(1),
            state: api::ExecutorState::Running,
            since: 0,
            restarts: 0,
            last_error: None,
            memory: None,
            gpu,
            gpu_unusable: None,
        };
        let executors = |executors| api::Executors { schema: 1, executors };
        assert!(executors(vec![on("cpu", None)]).more().is_none());
        let both = executors(vec![on("cpu", None), on("GPU-1", Some(gpu.clone()))]);
        assert_eq!(lines(&both).len(), 3);
        let more = both.more().unwrap();
        let more: Vec<_> = more.lines().map(|line| line.trim_end().to_owned()).collect();
        assert_eq!(
            more[1..],
            [
                "GPU-1-7   pool    ARENA: 1.0 GiB of 20.0 GiB in use, 3.0 GiB at the most",
                "          ledger  device 1.0 GiB of 20.0 GiB, pinned 0 B of 8.0 GiB, \
                 host 512 B of 4.0 GiB; 1 234 waits, 2 retries, 1 splits",
                "          tasks   1 of 2 use it, 3 wait",
                "          spill   2.0 KiB on the host, 0 B on disk; so far 4.0 KiB to the host, \
                 0 B to disk",
            ]
        );
        let mut without = on("GPU-2", None);
        without.gpu_unusable = Some("no room for a pool".into());
        let more = executors(vec![without]).more().unwrap().to_string();
        assert!(more.contains("GPU-2-7   unusable  no room for a pool"), "{more}");
        let mut automatic = gpu;
        (automatic.semaphore.tasks, automatic.pool.limit) = (0, None);
        let more = executors(vec![on("GPU-1", Some(automatic))]).more().unwrap().to_string();
        assert!(more.contains("ARENA: 1.0 GiB in use") && more.contains(" 1 use it"), "{more}");
    }

    #[test]
    fn nothing_is_said_in_words() {
        assert!(
            api::Gpus { schema: 1, gpus: vec![] }.table().unwrap_err().contains("no NVIDIA GPU")
        );
        assert!(api::Queries { schema: 1, queries: vec![] }.table().is_err());
    }

    #[test]
    fn a_status_says_why_gpus_are_unknown() {
        let agent = api::AgentStatus {
            version: "1.2".into(),
            pid: 7,
            uptime_s: 61,
            ready: true,
            gpu_error: Some("driver/library version mismatch".into()),
            snapshot_error: Some("no space left".into()),
            lease_error: Some("the lease store is damaged".into()),
        };
        let status = api::Status {
            schema: 1,
            agent,
            gpus: 0,
            executors: 1,
            attachments: 2,
            leases: 0,
            queries: 3,
        };
        let lines = lines(&status);
        assert_eq!(lines[0], "agent        1.2, ready, pid 7, up 1m 1s");
        assert_eq!(lines[1], "gpus         0 (driver/library version mismatch) (no space left)");
        assert_eq!(lines[4], "leases       0 (the lease store is damaged)");
        assert_eq!(lines[5], "queries      3");
    }

    #[test]
    fn a_query_is_on_one_line() {
        let report = creel_wire::QueryReport {
            id: "q1".into(),
            attachment: 1,
            sql: "SELECT\n*".into(),
            elapsed_ms: 1234,
            rows_scanned: 5_000_000,
            bytes_scanned: 2048,
            rows_sent: 1,
            bytes_sent: 1,
        };
        let query = api::Query { executor: "cpu-0".into(), uid: 0, report };
        let lines = lines(&api::Queries { schema: 1, queries: vec![query] });
        assert!(lines[1].contains("1.2s") && lines[1].contains("5 000 000"), "{lines:?}");
        assert!(lines[1].ends_with("SELECT *"), "{lines:?}");
    }
}
