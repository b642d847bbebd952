//! How a trace is run and timed.

use std::time::Instant;

use crate::trace::{Operation, Trace};

/// Runs of which the fastest counts.
const ROUNDS: usize = 5;

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

/// Nanoseconds per operation of threads that each play a trace at the same time.
pub(crate) fn nanoseconds<T>(
    traces: &[Trace],
    allocate: impl Fn(usize, u64) -> Option<T> + Sync,
) -> f64 {
    let round = || {
        let start = std::sync::Barrier::new(traces.len());
        let times: Vec<f64> = std::thread::scope(|scope| {
            let threads: Vec<_> = traces
                .iter()
                .enumerate()
                .map(|(thread, trace)| {
                    let (start, allocate) = (&start, &allocate);
                    scope.spawn(move || {
                        start.wait();
                        let began = Instant::now();
                        play(trace, |bytes| allocate(thread, bytes));
                        began.elapsed().as_nanos() as f64 / trace.operations.len() as f64
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
        });
        times.into_iter().fold(0.0, f64::max)
    };
    (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// One line of the result.
pub(crate) fn line(name: &str, trace: &str, threads: usize, nanoseconds: f64, rest: &str) {
    println!(
        r#"{{"name":"{name}","trace":"{trace}","threads":{threads},"ns":{nanoseconds:.1}{rest}}}"#
    );
}
