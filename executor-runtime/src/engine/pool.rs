//! The memory that queries share.
//!
//! ```text
//!   limit ├──────────────── spillable ────────────────┼── headroom ──┼── unspillable ──┤
//!          sorts, aggregates: equal shares, then spill   a quarter of    merges, joins
//!                                                       what is left
//! ```
//!
//! DataFusion's `FairSpillPool` lets the operators that can spill take all that is left. Then the
//! merge of what they spilled, which can't spill, finds nothing, and a sort that only needed
//! its turn at the disk fails. Here a part is kept free of them.

use std::fmt::{self, Display, Formatter};

use datafusion::common::resources_datafusion_err;
use datafusion::error::Result;
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation, human_readable_size,
};
use parking_lot::Mutex;

/// Of what the unspillable leave, the part that the spillable may not take.
const HEADROOM_DIVISOR: usize = 4;

/// A pool that operators which can spill share in equal parts, and never fill.
#[derive(Debug)]
pub(super) struct QueryPool {
    limit: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Consumers that can spill.
    spillers: usize,
    /// Bytes of theirs.
    spillable: usize,
    /// Bytes of the others.
    unspillable: usize,
}

impl QueryPool {
    /// A pool of that many bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, held: Mutex::default() }
    }
}

impl Held {
    fn of(&mut self, reservation: &MemoryReservation) -> &mut usize {
        if reservation.consumer().can_spill() { &mut self.spillable } else { &mut self.unspillable }
    }

    /// Bytes that the reservation may have altogether.
    fn allowed(&self, reservation: &MemoryReservation, limit: usize) -> usize {
        let others = limit.saturating_sub(self.unspillable);
        if reservation.consumer().can_spill() {
            // Though another has taken more than its share before this one came: it spills when
            // it wants more, while this one, which has nothing to spill yet, would fail.
            (others - others / HEADROOM_DIVISOR) / self.spillers.max(1)
        } else {
            reservation.size() + others.saturating_sub(self.spillable)
        }
    }
}

impl MemoryPool for QueryPool {
    fn name(&self) -> &'static str {
        "query"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.held.lock().spillers += usize::from(consumer.can_spill());
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.held.lock().spillers -= usize::from(consumer.can_spill());
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        *self.held.lock().of(reservation) += additional;
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        *self.held.lock().of(reservation) -= shrink;
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let mut held = self.held.lock();
        let allowed = held.allowed(reservation, self.limit);
        if reservation.size().saturating_add(additional) > allowed {
            return Err(resources_datafusion_err!(
                "Failed to allocate additional {} for {} with {} already allocated for this \
                 reservation - {} remain available for the total memory pool: {}",
                human_readable_size(additional),
                reservation.consumer().name(),
                human_readable_size(reservation.size()),
                human_readable_size(allowed.saturating_sub(reservation.size())),
                self
            ));
        }
        *held.of(reservation) += additional;
        Ok(())
    }

    fn reserved(&self) -> usize {
        let held = self.held.lock();
        held.spillable + held.unspillable
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.limit)
    }
}

impl Display for QueryPool {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}(pool_size: {})", self.name(), human_readable_size(self.limit))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn pool() -> Arc<dyn MemoryPool> {
        Arc::new(QueryPool::new(1000))
    }

    fn spiller(pool: &Arc<dyn MemoryPool>) -> MemoryReservation {
        MemoryConsumer::new("sort").with_can_spill(true).register(pool)
    }

    fn other(pool: &Arc<dyn MemoryPool>) -> MemoryReservation {
        MemoryConsumer::new("merge").register(pool)
    }

    #[test]
    fn spillers_leave_headroom_and_share_the_rest() {
        let pool = pool();
        let one = spiller(&pool);
        one.try_grow(751).unwrap_err();
        one.try_grow(750).unwrap();
        other(&pool).try_grow(250).unwrap();
        one.shrink(750);
        let two = spiller(&pool);
        one.try_grow(376).unwrap_err();
        one.try_grow(375).unwrap();
        two.try_grow(375).unwrap();
        assert_eq!(pool.reserved(), 750);
    }

    #[test]
    fn what_cannot_spill_takes_all_that_is_free_and_no_more() {
        let pool = pool();
        let one = spiller(&pool);
        one.try_grow(600).unwrap();
        let merge = other(&pool);
        merge.try_grow(401).unwrap_err();
        merge.try_grow(400).unwrap();
        one.try_grow(1).unwrap_err();
        drop(merge);
        one.try_grow(1).unwrap();
        drop(one);
        assert_eq!(pool.reserved(), 0);
    }

    #[test]
    fn who_comes_later_has_a_share_at_once() {
        let pool = pool();
        let one = spiller(&pool);
        one.try_grow(750).unwrap();
        let two = spiller(&pool);
        two.try_grow(376).unwrap_err();
        two.try_grow(375).unwrap();
        one.try_grow(1).unwrap_err();
        let error = other(&pool).try_grow(1).unwrap_err().to_string();
        assert!(error.contains("0.0 B remain available"), "{error}");
    }
}
