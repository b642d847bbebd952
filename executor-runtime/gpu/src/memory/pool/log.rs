//! What is allocated and freed, as CSV.
//!
//! ```text
//! Thread,Time,Action,Pointer,Size,Stream
//! 15129,11:04:56.292725,allocate,0x7f7192600000,18480,0x0
//! 15129,11:04:56.370310,free,0x7f719260e600,6608,0x0
//! 15129,11:04:56.380114,allocate failure,0x0,1099511627776,0x0
//! ```
//!
//! Threads by their kernel ids, times of day in UTC to the microsecond, sizes in bytes as they
//! were asked for. Tools that replay such logs read it.
//!
//! Source: `logging_resource_adaptor` of RMM.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::memory::upstream::{DevicePtr, Stream};

/// A log of a pool. What can't be written is lost: no query fails for its log.
pub struct AllocationLog {
    to: Mutex<Box<dyn Write + Send>>,
}

impl AllocationLog {
    /// Begins a log with its header.
    pub fn new(to: impl Write + Send + 'static) -> Self {
        let mut to: Box<dyn Write + Send> = Box::new(to);
        let _ = writeln!(to, "Thread,Time,Action,Pointer,Size,Stream");
        Self { to: Mutex::new(to) }
    }

    pub(super) fn allocate(&self, address: DevicePtr, bytes: u64, stream: Stream) {
        self.line("allocate", address, bytes, stream);
    }

    pub(super) fn failure(&self, bytes: u64, stream: Stream) {
        self.line("allocate failure", 0, bytes, stream);
    }

    pub(super) fn free(&self, address: DevicePtr, bytes: u64, stream: Stream) {
        self.line("free", address, bytes, stream);
    }

    fn line(&self, action: &str, address: DevicePtr, bytes: u64, stream: Stream) {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = time_of_day(since.as_secs(), since.subsec_micros());
        let line = format!("{thread},{time},{action},{address:#x},{bytes},{stream:#x}\n");
        let _ = self.to.lock().write_all(line.as_bytes());
    }
}

fn time_of_day(seconds: u64, micros: u32) -> String {
    let (minutes, second) = (seconds / 60, seconds % 60);
    let (hours, minute) = (minutes / 60, minutes % 60);
    format!("{:02}:{minute:02}:{second:02}.{micros:06}", hours % 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day() {
        assert_eq!(time_of_day(0, 0), "00:00:00.000000");
        // 2021-03-10 11:04:56 UTC
        assert_eq!(time_of_day(1_615_374_296, 292_725), "11:04:56.292725");
    }
}
