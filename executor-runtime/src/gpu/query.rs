//! What attachments and queries have of the GPU.

use std::sync::Arc;

use creel_gpu::memory::ledger::{self, Task};
use tracing::error;

use super::Gpu;

/// A connection's account.
#[derive(Clone)]
pub struct GpuAttachment {
    gpu: Arc<Gpu>,
    account: ledger::Attachment,
}

impl GpuAttachment {
    /// Opens it; the name is for messages.
    pub fn new(gpu: &Arc<Gpu>, name: String) -> Self {
        Self { gpu: Arc::clone(gpu), account: gpu.ledger().attach(name) }
    }

    /// Begins a query.
    pub fn query(&self, id: &str) -> GpuQuery {
        GpuQuery { gpu: Arc::clone(&self.gpu), account: self.account.query(id) }
    }
}

/// A query's account. GPU operators find it among the extensions of their session's configuration.
/// When the last of them is gone, ledger and pool must agree that nothing of it is left.
pub struct GpuQuery {
    gpu: Arc<Gpu>,
    account: ledger::Query,
}

impl GpuQuery {
    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Begins a thread of its work; `stage` is the same for work that needs about the same memory.
    pub fn task(&self, stage: u64) -> Task {
        self.account.task(stage)
    }

    /// Ends all waiting for memory and turns: nobody wants the result any more.
    pub fn cancel(&self) {
        self.account.cancel();
    }
}

impl Drop for GpuQuery {
    fn drop(&mut self) {
        // Without a driver nothing can be given back, and the process ends.
        if self.gpu.has_failed() {
            return;
        }
        if let Err(leak) = self.account.clone().finish() {
            self.gpu.count_leak();
            error!("{leak}");
        }
    }
}
