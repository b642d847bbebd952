//! A running query.
//!
//! A query is planned on a thread of its own, runs as a task on the query threads, and sends its batches through a short channel to
//! whoever encodes them. It ends when its results are drained, when it fails, when somebody
//! cancels it, and when its reader is dropped: then its task is aborted, DataFusion drops its
//! operators, and they give their memory back.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use creel_wire::QueryReport;
use datafusion::arrow::array::RecordBatch;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::{FutureExt, Stream, StreamExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use super::Engine;
use super::failure;
use super::result::ResultSchema;
use super::traffic::Traffic;
use crate::error::{ExecutorError, Result};
use crate::gpu::GpuQuery;

/// Batches that wait for the network.
const BATCHES_AHEAD: usize = 2;

/// Why a query ended before its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Somebody cancelled it, for that reason.
    Cancelled(String),
    /// The executor ends, for that reason.
    Ended(String),
}

impl From<Outcome> for ExecutorError {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Cancelled(reason) => Self::Cancelled(reason),
            Outcome::Ended(reason) => Self::Ending(reason),
        }
    }
}

/// A running query.
pub struct Query {
    number: u64,
    id: String,
    sql: String,
    started: Instant,
    traffic: Arc<Traffic>,
    plan: OnceLock<Arc<dyn ExecutionPlan>>,
    rows_sent: AtomicU64,
    bytes_sent: AtomicU64,
    outcome: watch::Sender<Option<Outcome>>,
}

impl Query {
    /// A query that is about to run, over that connection.
    pub fn new(number: u64, id: String, sql: &str, traffic: Arc<Traffic>) -> Self {
        Self {
            number,
            id,
            sql: sql.chars().take(QueryReport::SQL_CHARS).collect(),
            started: Instant::now(),
            traffic,
            plan: OnceLock::new(),
            rows_sent: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
            outcome: watch::Sender::new(None),
        }
    }

    /// Its number within the executor.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its id, unique on the node.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The attachment that it came over.
    pub fn attachment(&self) -> u64 {
        self.traffic.attachment()
    }

    /// Ends it; the first word counts.
    pub fn end(&self, outcome: Outcome) {
        self.outcome.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert(outcome);
            first
        });
    }

    /// Counts what was sent to the client.
    pub fn count_sent(&self, bytes: u64) {
        self.bytes_sent.fetch_add(bytes, Ordering::Relaxed);
        self.traffic.count_bytes(bytes);
    }

    /// How it stands.
    pub fn report(&self) -> QueryReport {
        let scanned = self.plan.get().map(|plan| scanned(plan.as_ref())).unwrap_or_default();
        QueryReport {
            id: self.id.clone(),
            attachment: self.attachment(),
            sql: self.sql.clone(),
            elapsed_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            rows_scanned: scanned.rows,
            bytes_scanned: scanned.bytes,
            rows_sent: self.rows_sent.load(Ordering::Relaxed),
            bytes_sent: self.bytes_sent.load(Ordering::Relaxed),
        }
    }

    /// Runs the planning of this query, until it is done or the query is ended.
    ///
    /// Planning may compute for long without a pause, so it has a thread of its own: queries that
    /// run are not held up, and neither is the news that nobody wants this one any more. Those
    /// threads are few ([`Engine::planning`]), since reading files needs some of their pool too.
    pub async fn plan<T: Send + 'static>(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let turn = tokio::select! {
            ended = self.ended() => return Err(ended.into()),
            turn = Arc::clone(engine.planning()).acquire_owned() => turn,
        };
        // Dropped with this future: then the work ends where it next waits for something.
        let (_wanted, unwanted) = oneshot::channel::<()>();
        let (query, planning) = (Arc::clone(self), Arc::clone(engine));
        let task = engine.threads().spawn_blocking(move || {
            let _turn = turn;
            let _running = planning.queries().enter(&query)?;
            planning.threads().block_on(async {
                tokio::select! {
                    biased;
                    ended = query.ended() => Err(ended.into()),
                    _ = unwanted => Err(ExecutorError::Cancelled("its client is gone".into())),
                    done = unwound(work) => done,
                }
            })
        });
        tokio::select! {
            ended = self.ended() => Err(ended.into()),
            result = task => result.unwrap_or_else(|error| Err(ExecutorError::Broken(error.to_string()))),
        }
    }

    /// Starts a plan; its batches come in the given schema.
    pub fn start(
        self: Arc<Self>,
        engine: Arc<Engine>,
        plan: Arc<dyn ExecutionPlan>,
        context: Arc<TaskContext>,
        schema: ResultSchema,
    ) -> Batches {
        self.traffic.count_query();
        let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
        let query = Arc::clone(&self);
        let threads = engine.threads().clone();
        let task = threads.spawn(async move {
            let last = sender.clone();
            let pumped = unwound(query.pump(&engine, plan, context, &schema, sender)).await;
            if let Err(error) = pumped {
                let _ = last.send(Err(error)).await;
            }
        });
        Batches { query: self, receiver, _task: AbortOnDrop(task.abort_handle()) }
    }

    async fn pump(
        self: &Arc<Self>,
        engine: &Engine,
        plan: Arc<dyn ExecutionPlan>,
        context: Arc<TaskContext>,
        schema: &ResultSchema,
        sender: mpsc::Sender<Result<RecordBatch>>,
    ) -> Result<()> {
        let _running = engine.queries().enter(self)?;
        let _account = context.session_config().get_extension::<GpuQuery>().map(CancelOnDrop);
        let plan = self.plan.get_or_init(|| plan);
        let mut batches = execute_stream(Arc::clone(plan), context)?;
        loop {
            let batch = tokio::select! {
                biased;
                ended = self.ended() => return Err(ended.into()),
                batch = batches.next() => batch,
            };
            let Some(batch) = batch else { return Ok(()) };
            let batch = batch.map_err(|error| failure::of_query(error, plan.as_ref(), engine))?;
            for batch in schema.shape(&batch)? {
                self.rows_sent.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
                // A client that doesn't read must not keep a query that somebody ends.
                tokio::select! {
                    biased;
                    ended = self.ended() => return Err(ended.into()),
                    sent = sender.send(Ok(batch)) => if sent.is_err() { return Ok(()) },
                }
            }
        }
    }

    /// Waits until somebody ends the query.
    async fn ended(&self) -> Outcome {
        let mut outcome = self.outcome.subscribe();
        let ended = outcome.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        ended.unwrap_or_else(|| Outcome::Cancelled("nobody waits for it".into()))
    }
}

/// Ends a query's waiting for the GPU together with the query.
struct CancelOnDrop(Arc<GpuQuery>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Makes a panic an error, so that a bug ends a query and says so, and nothing else ends.
async fn unwound<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|panic| {
        let text = failure::of_panic(&*panic).to_owned();
        tracing::error!("a query panicked: {text}");
        Err(ExecutorError::Broken(text))
    })
}

/// The batches of a query; dropping them ends it.
pub struct Batches {
    query: Arc<Query>,
    receiver: mpsc::Receiver<Result<RecordBatch>>,
    _task: AbortOnDrop,
}

impl Batches {
    /// The query that they are of.
    pub fn query(&self) -> &Arc<Query> {
        &self.query
    }
}

impl Stream for Batches {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv(context)
    }
}

/// Aborts a task when dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Default)]
struct Scanned {
    rows: u64,
    bytes: u64,
}

/// What the leaves of a plan have read so far.
fn scanned(plan: &dyn ExecutionPlan) -> Scanned {
    let children = plan.children();
    if children.is_empty() {
        let Some(metrics) = plan.metrics() else { return Scanned::default() };
        let bytes = metrics.sum_by_name("bytes_scanned").map_or(0, |value| value.as_usize() as u64);
        return Scanned { rows: metrics.output_rows().unwrap_or(0) as u64, bytes };
    }
    children.into_iter().map(|child| scanned(child.as_ref())).fold(
        Scanned::default(),
        |sum, child| Scanned { rows: sum.rows + child.rows, bytes: sum.bytes + child.bytes },
    )
}
