//! How many looks at peers may be under way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Looks at peers of one user at one time. A look that hangs keeps its thread, of which there are
/// few, so further ones of that user wait.
const OF_ONE: usize = 8;

/// Counts the looks under way; clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    of_user: Arc<Mutex<HashMap<u32, Arc<Semaphore>>>>,
}

impl Looks {
    /// Waits until one more look at a peer of that user may begin; it is under way until what is
    /// returned is dropped.
    pub(super) async fn begin(&self, uid: u32) -> Option<OwnedSemaphorePermit> {
        let free = {
            let mut of_user = self.of_user.lock().unwrap_or_else(PoisonError::into_inner);
            // Each look under way, and each that waits, holds one more.
            of_user.retain(|_, free| Arc::strong_count(free) > 1);
            Arc::clone(of_user.entry(uid).or_insert_with(|| Arc::new(Semaphore::new(OF_ONE))))
        };
        free.acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn one_user_waits_and_another_does_not() {
        let looks = Looks::default();
        let mut under_way = Vec::new();
        for _ in 0..OF_ONE {
            under_way.push(looks.begin(1).await.unwrap());
        }
        assert!(timeout(Duration::from_millis(20), looks.begin(1)).await.is_err());
        let _other = looks.begin(2).await.unwrap();
        under_way.pop();
        let _next = looks.begin(1).await.unwrap();
    }

    #[tokio::test]
    async fn a_user_at_whom_nobody_looks_is_forgotten() {
        let looks = Looks::default();
        for uid in 0..100 {
            drop(looks.begin(uid).await);
        }
        assert_eq!(looks.of_user.lock().unwrap().len(), 1, "the last one");
    }
}
