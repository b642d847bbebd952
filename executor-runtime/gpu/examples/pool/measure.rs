//! How a trace is run and timed.

use std::time::Instant;

use crate::trace::{Operation, Trace};

/// Runs of which the fastest counts.
const ROUNDS: usize = 3;

/// Plays a trace; `allocate` gives `None` where there is no room. The number of those.
pub(crate) fn play<T>(trace: &Trace, mut allocate: impl FnMut(u64) -> Option<T>) -> usize {
    let mut slots: Vec<Option<T>> = (0..trace.slots).map(|_| None).collect();
    let mut failures = 0;
    for operation in &trace.operations {
        match *operation {
            Operation::Allocate { slot, bytes } => {
                slots[slot] = allocate(bytes);
                failures += usize::from(slots[slot].is_none());
            }
            Operation::Free { slot } => slots[slot] = None,
        }
    }
    failures
}

/// Nanoseconds per operation.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    /// On the clock: what others do on the machine counts too.
    pub(crate) wall: f64,
    /// On a core, of each thread.
    pub(crate) cpu: f64,
}

/// The time of threads that each play a trace at the same time; the fastest of some rounds.
pub(crate) fn time<T>(traces: &[Trace], allocate: impl Fn(usize, u64) -> Option<T> + Sync) -> Time {
    let round = || {
        let start = std::sync::Barrier::new(traces.len());
        std::thread::scope(|scope| {
            let threads: Vec<_> = traces
                .iter()
                .enumerate()
                .map(|(thread, trace)| {
                    let (start, allocate) = (&start, &allocate);
                    scope.spawn(move || {
                        start.wait();
                        let (began, cpu) = (Instant::now(), on_core());
                        play(trace, |bytes| allocate(thread, bytes));
                        let operations = trace.operations.len() as f64;
                        let wall = began.elapsed().as_nanos() as f64 / operations;
                        Time { wall, cpu: (on_core() - cpu) as f64 / operations }
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no thread panics")).fold(
                Time { wall: 0.0, cpu: 0.0 },
                |one, other| Time { wall: one.wall.max(other.wall), cpu: one.cpu.max(other.cpu) },
            )
        })
    };
    (0..ROUNDS).map(|_| round()).fold(Time { wall: f64::MAX, cpu: f64::MAX }, |one, other| Time {
        wall: one.wall.min(other.wall),
        cpu: one.cpu.min(other.cpu),
    })
}

/// Nanoseconds that this thread was on a core (proc_pid_schedstat).
fn on_core() -> u64 {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat");
    let first = |text: String| text.split(' ').next()?.parse().ok();
    statistics.ok().and_then(first).expect("the kernel counts the time of threads")
}

/// One line of the result.
pub(crate) fn line(name: &str, trace: &str, threads: usize, time: Time, rest: &str) {
    let Time { wall, cpu } = time;
    println!(
        r#"{{"name":"{name}","trace":"{trace}","threads":{threads},"ns":{wall:.1},"cpu_ns":{cpu:.1}{rest}}}"#
    );
}
