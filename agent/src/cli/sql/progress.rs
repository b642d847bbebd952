//! What a long query shows on standard error while it runs, if that is a terminal.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use creel_wire::QueryReport;

use crate::api;
use crate::cli::human::{bytes, count};
use crate::client::Client;

/// Queries that are shorter show nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the line is written anew.
const INTERVAL: Duration = Duration::from_millis(500);

/// Erases the line and goes to its beginning.
const ERASE: &str = "\r\x1b[K";

/// The progress of one query, shown until it is stopped or dropped.
#[derive(Debug)]
pub(super) struct Progress {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    query: Option<String>,
    rows: u64,
    bytes: u64,
    shown: bool,
    stopped: bool,
}

impl Progress {
    /// Starts to watch; the agent is asked how the query stands.
    pub(super) fn start(agent: Client) -> Self {
        let shared = Arc::<Mutex<Shared>>::default();
        if std::io::stderr().is_terminal() {
            tokio::spawn(show(Arc::clone(&shared), agent));
        }
        Self { shared }
    }

    /// Says which query it is.
    pub(super) fn watch(&self, query: Option<String>) {
        lock(&self.shared).query = query;
    }

    /// Says that rows have come.
    pub(super) fn received(&self, rows: usize, bytes: usize) {
        let mut shared = lock(&self.shared);
        shared.rows += rows as u64;
        shared.bytes += bytes as u64;
    }

    /// Erases the line, and shows no more.
    pub(super) fn stop(&self) {
        let mut shared = lock(&self.shared);
        shared.stopped = true;
        if std::mem::take(&mut shared.shown) {
            print(ERASE);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn show(shared: Arc<Mutex<Shared>>, agent: Client) {
    let start = Instant::now();
    tokio::time::sleep(PATIENCE).await;
    loop {
        let query = lock(&shared).query.clone();
        let report = match query {
            Some(id) => report(&agent, &id).await,
            None => None,
        };
        {
            let mut shared = lock(&shared);
            if shared.stopped {
                return;
            }
            shared.shown = true;
            let line = line(start.elapsed(), report.as_ref(), shared.rows, shared.bytes);
            print(&format!("{ERASE}{line}"));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn report(agent: &Client, id: &str) -> Option<QueryReport> {
    let queries: api::Queries = agent.get("/v1/queries").await.ok()?.parse().ok()?;
    queries.queries.into_iter().map(|query| query.report).find(|report| report.id == id)
}

fn line(elapsed: Duration, report: Option<&QueryReport>, rows: u64, received: u64) -> String {
    let mut line = format!("{:.1}s", elapsed.as_secs_f64());
    if let Some(report) = report {
        let (rows, scanned) = (count(report.rows_scanned), bytes(report.bytes_scanned));
        write!(line, "  scanned {rows} rows, {scanned}").expect("a String takes all");
    }
    write!(line, "  received {} rows, {}", count(rows), bytes(received))
        .expect("a String takes all");
    line
}

fn print(text: &str) {
    // Progress that can't be shown is no reason to fail.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_known() {
        let elapsed = Duration::from_millis(12_340);
        assert_eq!(line(elapsed, None, 0, 0), "12.3s  received 0 rows, 0 B");
        let report = QueryReport {
            id: "q".into(),
            attachment: 1,
            sql: String::new(),
            elapsed_ms: 1,
            rows_scanned: 1_500_000,
            bytes_scanned: 5 << 20,
            rows_sent: 0,
            bytes_sent: 0,
        };
        assert_eq!(
            line(elapsed, Some(&report), 10, 2048),
            "12.3s  scanned 1 500 000 rows, 5.0 MiB  received 10 rows, 2.0 KiB"
        );
    }
}
