//! What a connection did so far.

use std::sync::atomic::{AtomicU64, Ordering};

use creel_wire::AttachmentReport;

/// Counts of a connection.
pub struct Traffic {
    attachment: u64,
    queries: AtomicU64,
    bytes_sent: AtomicU64,
}

impl Traffic {
    /// Nothing yet.
    pub fn new(attachment: u64) -> Self {
        Self { attachment, queries: AtomicU64::new(0), bytes_sent: AtomicU64::new(0) }
    }

    /// The attachment's number.
    pub fn attachment(&self) -> u64 {
        self.attachment
    }

    /// Counts a statement.
    pub fn count_query(&self) {
        self.queries.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes of results.
    pub fn count_bytes(&self, bytes: u64) {
        self.bytes_sent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// All of it.
    pub fn report(&self) -> AttachmentReport {
        AttachmentReport {
            attachment: self.attachment,
            queries: self.queries.load(Ordering::Relaxed),
            bytes_sent: self.bytes_sent.load(Ordering::Relaxed),
        }
    }
}
