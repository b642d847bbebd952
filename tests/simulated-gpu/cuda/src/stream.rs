//! Streams: work in order, done by a thread of the stream, when it likes.
//!
//! Nothing is done before somebody waits for it, unless chance or time has it so: what relies on
//! work being done, or not yet done, without waiting for it, goes wrong here as on a device under
//! load. Waiting for a piece of work is asking for it and for all before it, on other streams too
//! where it waits for them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use simulated_nvml::CudaCode;

use crate::context::Context;
use crate::driver::{Driver, Result};
use crate::table::{Handle, new_handle};

/// How long a piece of work waits for somebody to ask for it, in milliseconds; with the variable,
/// each piece does.
const HOLD_VARIABLE: &str = "SIMULATED_GPU_HOLD_MS";

/// When work begins that nobody asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hold {
    /// Half of it, by chance, at once; the rest after this time.
    Sometimes(Duration),
    /// After this time.
    Always(Duration),
}

impl Hold {
    pub(crate) fn from_environment() -> Self {
        let time = std::env::var(HOLD_VARIABLE).ok().and_then(|time| time.parse().ok());
        match time {
            Some(milliseconds) => Self::Always(Duration::from_millis(milliseconds)),
            None => Self::Sometimes(Duration::from_millis(2)),
        }
    }

    fn time(self, random: u64) -> Duration {
        match self {
            Self::Always(time) => time,
            Self::Sometimes(time) if random.is_multiple_of(2) => time,
            Self::Sometimes(_) => Duration::ZERO,
        }
    }
}

/// A piece of work.
type Work = Box<dyn FnOnce() + Send>;

/// A stream.
pub(crate) struct Stream {
    pub(crate) handle: Handle,
    pub(crate) context: Handle,
    /// `CUstream_flags`.
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    queue: Arc<Queue>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("handle", &self.handle).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

/// Work is numbered from 1, in the order in which it is handed in.
#[derive(Default)]
struct State {
    work: VecDeque<Work>,
    submitted: u64,
    done: u64,
    /// Somebody waits for the work up to this.
    wanted: u64,
    worker: bool,
    closed: bool,
}

/// A piece of work on a stream, to wait for.
#[derive(Clone)]
pub(crate) struct Ticket {
    queue: Arc<Queue>,
    number: u64,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({})", self.number)
    }
}

impl Stream {
    /// Makes a stream with `CU_STREAM_NON_BLOCKING` (1) or without (0).
    pub(crate) fn create(driver: &Driver, context: &Context, flags: u32, priority: i32) -> Handle {
        let handle = new_handle();
        let stream =
            Self { handle, context: context.handle, flags, priority, queue: Arc::default() };
        driver.streams.insert(handle, Arc::new(stream));
        handle
    }

    /// The default stream of a context.
    pub(crate) fn legacy(context: Handle) -> Self {
        Self { handle: 0, context, flags: 0, priority: 0, queue: Arc::default() }
    }

    /// Hands work in. The legacy default stream and the blocking streams of its context wait for
    /// each other's earlier work. (CUDA Driver API, "Stream synchronization behavior".)
    pub(crate) fn submit(
        &self,
        driver: &'static Driver,
        context: &Context,
        work: impl FnOnce() + Send + 'static,
    ) -> Ticket {
        if self.handle == 0 {
            for other in driver.streams.all() {
                if other.context == self.context && other.flags & 1 == 0 {
                    self.wait_for(driver, &other.last());
                }
            }
        } else if self.flags & 1 == 0 {
            self.wait_for(driver, &context.legacy.last());
        }
        self.push(driver, work)
    }

    /// Later work of this stream begins after a piece of another's.
    pub(crate) fn wait_for(&self, driver: &'static Driver, ticket: &Ticket) {
        if !ticket.is_done() && !Arc::ptr_eq(&ticket.queue, &self.queue) {
            let ticket = ticket.clone();
            self.push(driver, move || ticket.wait());
        }
    }

    fn push(&self, driver: &'static Driver, work: impl FnOnce() + Send + 'static) -> Ticket {
        let mut state = self.queue.lock();
        state.submitted += 1;
        state.work.push_back(Box::new(work));
        if !state.worker {
            state.worker = true;
            let queue = Arc::clone(&self.queue);
            std::thread::Builder::new()
                .name(format!("stream-{:x}", self.handle))
                .spawn(move || queue.run(driver))
                .expect("a thread for a stream");
        }
        self.queue.changed.notify_all();
        Ticket { queue: Arc::clone(&self.queue), number: state.submitted }
    }

    /// The last piece of work that was handed in.
    pub(crate) fn last(&self) -> Ticket {
        let number = self.queue.lock().submitted;
        Ticket { queue: Arc::clone(&self.queue), number }
    }

    /// Waits for all of its work.
    pub(crate) fn finish(&self) {
        self.last().wait();
    }

    /// Ends it, when its work is done.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.queue.changed.notify_all();
    }

    /// Whether a piece of work is one of this stream.
    pub(crate) fn is_of(&self, ticket: &Ticket) -> bool {
        Arc::ptr_eq(&self.queue, &ticket.queue)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close();
    }
}

impl Ticket {
    /// Waits until the work is done.
    pub(crate) fn wait(&self) {
        let mut state = self.queue.lock();
        if state.wanted < self.number {
            state.wanted = self.number;
            self.queue.changed.notify_all();
        }
        while state.done < self.number {
            state = self.queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether the work is done; does not ask for it.
    pub(crate) fn is_done(&self) -> bool {
        self.queue.lock().done >= self.number
    }

    /// Whether the work is done, and if not, asks for it: who polls gets there.
    pub(crate) fn poll(&self) -> Result<()> {
        let mut state = self.queue.lock();
        if state.done >= self.number {
            return Ok(());
        }
        state.wanted = state.wanted.max(self.number);
        self.queue.changed.notify_all();
        Err(CudaCode::NOT_READY)
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the work, until the stream is closed.
    fn run(&self, driver: &Driver) {
        loop {
            let mut state = self.lock();
            while state.work.is_empty() {
                if state.closed {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let begin = Instant::now() + driver.hold.time(driver.chance(state.done));
            while state.wanted <= state.done {
                let left = begin.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                let waited = self.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            let work = state.work.pop_front().expect("checked above");
            drop(state);
            // After a sticky error nothing is done any more, but what waits is let go.
            if driver.check().is_ok() {
                work();
            }
            self.lock().done += 1;
            self.changed.notify_all();
        }
    }
}
