//! All running queries of an executor.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use creel_wire::QueryReport;
use tokio::sync::watch;

use super::query::{Outcome, Query};
use crate::error::{ExecutorError, Result};

/// The queries that are planned or run now, and whether new ones may come.
pub struct Queries {
    executor: String,
    next: AtomicU64,
    running: Mutex<BTreeMap<u64, Arc<Query>>>,
    ending: watch::Sender<Option<String>>,
    count: watch::Sender<usize>,
}

/// A query's place among the running ones: it leaves them when this is dropped.
pub struct Running<'a> {
    queries: &'a Queries,
    number: u64,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut running = self.queries.running.lock().unwrap();
        running.remove(&self.number);
        self.queries.count.send_replace(running.len());
    }
}

impl Queries {
    /// No queries, for the executor of that id.
    pub fn new(executor: &str) -> Self {
        Self {
            executor: executor.to_owned(),
            next: AtomicU64::new(1),
            running: Mutex::default(),
            ending: watch::Sender::new(None),
            count: watch::Sender::new(0),
        }
    }

    /// A number for a new query, and the id that goes with it, which is unique on the node as
    /// long as the executor lives.
    pub fn next_id(&self) -> (u64, String) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number, format!("{}-{}-{number}", self.executor, std::process::id()))
    }

    /// Whether new queries may come.
    pub fn admit(&self) -> Result<()> {
        match &*self.ending.borrow() {
            Some(reason) => Err(ExecutorError::Ending(reason.clone())),
            None => Ok(()),
        }
    }

    /// Puts a query among the running ones.
    pub fn enter(&self, query: &Arc<Query>) -> Result<Running<'_>> {
        let mut running = self.running.lock().unwrap();
        // Under the lock, so that nothing comes in once `drain` has counted.
        self.admit()?;
        running.insert(query.number(), Arc::clone(query));
        self.count.send_replace(running.len());
        Ok(Running { queries: self, number: query.number() })
    }

    /// Ends a query; false if it doesn't run.
    pub fn cancel(&self, id: &str, reason: &str) -> bool {
        self.cancel_where(reason, |query| query.id() == id)
    }

    /// Ends a query if it is that attachment's; false if it isn't, or doesn't run.
    pub fn cancel_own(&self, id: &str, attachment: u64, reason: &str) -> bool {
        self.cancel_where(reason, |query| query.id() == id && query.attachment() == attachment)
    }

    fn cancel_where(&self, reason: &str, wanted: impl Fn(&Query) -> bool) -> bool {
        let running = self.running.lock().unwrap();
        let query = running.values().find(|query| wanted(query));
        query.inspect(|query| query.end(Outcome::Cancelled(reason.to_owned()))).is_some()
    }

    /// Takes no new queries, waits for the running ones, and ends those that run at the deadline.
    pub async fn drain(&self, reason: &str, deadline: Duration) {
        {
            let _running = self.running.lock().unwrap();
            self.ending.send_replace(Some(reason.to_owned()));
        }
        let mut count = self.count.subscribe();
        if tokio::time::timeout(deadline, count.wait_for(|count| *count == 0)).await.is_err() {
            for query in self.running.lock().unwrap().values() {
                query.end(Outcome::Ended(reason.to_owned()));
            }
        }
    }

    /// Changes to `Some` when the executor begins to end.
    pub fn ending(&self) -> watch::Receiver<Option<String>> {
        self.ending.subscribe()
    }

    /// How each stands, by start.
    pub fn report(&self) -> Vec<QueryReport> {
        self.running.lock().unwrap().values().map(|query| query.report()).collect()
    }
}
