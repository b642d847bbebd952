//! The same traces with the process's own allocator. The memory is never touched.

use crate::measure;
use crate::trace::Kind;

/// Prints the times of the global allocator.
pub(crate) fn run(name: &str, load: u64) {
    for kind in Kind::ALL {
        for threads in [1, 2_usize] {
            let traces: Vec<_> = (0..threads)
                .map(|thread| kind.trace(load / threads as u64, thread as u64))
                .collect();
            let time =
                measure::time(&traces, |_, bytes| Some(Vec::<u8>::with_capacity(bytes as usize)));
            measure::line(name, kind.name(), threads, time, "");
        }
    }
}
