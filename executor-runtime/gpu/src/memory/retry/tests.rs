//! The same answers, whichever allocation fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use creel_settings::PoolKind;

use super::*;
use crate::memory::error::Recovery;
use crate::memory::ledger::{Bytes, Injection, Ledger, Limits, Task};
use crate::memory::semaphore::Permits;
use crate::memory::spill::disk::SpillDirectory;
use crate::memory::spill::tests::{Buffer, Device, stream};
use crate::memory::spill::{Priority, SpillStore, Spillable};

/// Rows of an input: a key and a value each, as bytes of a batch at rest.
struct Rows {
    batch: Arc<Spillable<Device>>,
    range: std::ops::Range<usize>,
}

impl Split for Rows {
    fn indivisible(&self) -> Option<&'static str> {
        (self.range.len() < 2).then_some("it has one row")
    }

    fn split(self) -> [Self; 2] {
        let middle = self.range.start.midpoint(self.range.end);
        let part = |range| Self { batch: Arc::clone(&self.batch), range };
        [part(self.range.start..middle), part(middle..self.range.end)]
    }
}

/// Sums by key, in buffers of the device that grow.
struct Sums {
    sums: BTreeMap<u8, u64>,
    /// What it needs on the device.
    table: Vec<Buffer>,
}

impl Restore for Sums {
    type Saved = (BTreeMap<u8, u64>, usize);

    fn save(&self) -> Self::Saved {
        (self.sums.clone(), self.table.len())
    }

    fn restore(&mut self, (sums, buffers): &Self::Saved) {
        self.sums.clone_from(sums);
        self.table.truncate(*buffers);
    }
}

struct Query<'a> {
    task: &'a Task,
    store: &'a SpillStore<Device>,
    device: &'a Device,
    attempts: &'a Attempts,
}

/// Filter, kept for later; then aggregate.
impl Query<'_> {
    fn run(&self, batches: u8, rows: usize) -> Result<BTreeMap<u8, u64>, MemoryError> {
        let inputs = (0..batches)
            .map(|batch| {
                let content: Vec<u8> =
                    (0..rows * 2).map(|i| (i * 31 + usize::from(batch) * 17) as u8).collect();
                let buffer = with_retry_no_split(self.task, self.attempts, || {
                    self.device.buffer(self.task, content.clone())
                })?;
                Ok(self.keep(buffer))
            })
            .collect::<Result<Vec<_>, MemoryError>>()?;

        let mut filtered = Vec::new();
        for batch in inputs {
            let range = 0..rows;
            let kept = with_retry(self.task, self.attempts, Rows { batch, range }, |rows| {
                let held = rows.batch.get(self.task, &stream())?;
                let selected: Vec<u8> = held[0].content[rows.range.start * 2..rows.range.end * 2]
                    .chunks(2)
                    .filter(|row| row[1] % 3 != 0)
                    .flatten()
                    .copied()
                    .collect();
                // Scratch, then the output.
                let _scratch = self.device.buffer(self.task, vec![0; rows.range.len() * 4])?;
                self.device.buffer(self.task, selected)
            })?;
            filtered.extend(kept.into_iter().map(|buffer| self.keep(buffer)));
        }

        let mut sums = Sums { sums: BTreeMap::new(), table: Vec::new() };
        for batch in filtered {
            let length = with_retry_no_split(self.task, self.attempts, || {
                Ok::<_, MemoryError>(batch.get(self.task, &stream())?[0].content.len())
            })?;
            if length == 0 {
                continue;
            }
            let range = 0..length / 2;
            with_retry(self.task, self.attempts, Rows { batch, range }, |rows| {
                with_restore(&mut sums, |sums| {
                    let held = rows.batch.get(self.task, &stream())?;
                    for row in held[0].content[rows.range.start * 2..rows.range.end * 2].chunks(2) {
                        let key = row[0] % 16;
                        if !sums.sums.contains_key(&key) {
                            sums.table.push(self.device.buffer(self.task, vec![0; 256])?);
                        }
                        *sums.sums.entry(key).or_default() += u64::from(row[1]);
                    }
                    let _scratch = self.device.buffer(self.task, vec![0; rows.range.len()])?;
                    Ok::<_, MemoryError>(())
                })
            })?;
        }
        assert_eq!(sums.table.len(), sums.sums.len());
        Ok(sums.sums)
    }

    fn keep(&self, buffer: Buffer) -> Arc<Spillable<Device>> {
        let priority = Priority::of(self.task.query());
        Arc::new(self.store.insert(self.task.query(), vec![buffer], priority))
    }
}

/// Pieces of one allocation, and an allocation for each piece.
const KINDS: [PoolKind; 2] = [PoolKind::Arena, PoolKind::None];

struct Node {
    ledger: Ledger,
    store: SpillStore<Device>,
    device: Device,
    _at: tempfile::TempDir,
}

fn node(kind: PoolKind, device: u64, host: u64) -> Node {
    let at = tempfile::tempdir().unwrap();
    let limits = Limits {
        bytes: Bytes::new(device, 0, host),
        attachment_quota: device,
        wait_timeout: Duration::from_mins(10),
    };
    let ledger = Ledger::new(limits, Permits::fixed(4));
    let pool = Device::new(kind, 8 << 20);
    let directory = SpillDirectory::new(at.path(), 1 << 30);
    let store = SpillStore::new(pool.share(), host, directory);
    ledger.set_spiller(Arc::new(store.clone()));
    Node { ledger, store, device: pool, _at: at }
}

impl Node {
    fn query(&self, attempts: &Attempts) -> BTreeMap<u8, u64> {
        let query = self.ledger.attach("a").query("q");
        let task = query.task(0);
        let run = Query { task: &task, store: &self.store, device: &self.device, attempts };
        let sums = run.run(4, 1000).unwrap();
        drop(task);
        query.finish().unwrap();
        sums
    }
}

#[test]
fn whichever_allocation_fails_the_answer_is_the_same() {
    for kind in KINDS {
        fail_each_allocation(&node(kind, 1 << 20, 1 << 20));
    }
}

fn fail_each_allocation(node: &Node) {
    let attempts = Attempts::default();
    let expected = node.query(&attempts);
    assert_eq!((attempts.retries(), attempts.splits()), (0, 0));
    let allocations = node.ledger.report().events.grants;
    assert!(allocations > 20, "{allocations}");

    for k in 1..=allocations {
        let attempts = Attempts::default();
        node.ledger.inject(Some(Injection::at(k, Recovery::Retry)));
        assert_eq!(node.query(&attempts), expected, "allocation {k} fails");
        assert_eq!(attempts.retries(), 1);
    }
    // A step of the aggregation takes up to 17: with fewer between two failures it has no end.
    for k in 18..=allocations {
        let attempts = Attempts::default();
        node.ledger.inject(Some(Injection::every(k, Recovery::Retry)));
        assert_eq!(node.query(&attempts), expected, "every {k}th allocation fails");
        assert!(attempts.retries() > 0);
    }
    // The first four are those of the inputs, which have no smaller form.
    for k in 5..=allocations {
        let attempts = Attempts::default();
        node.ledger.inject(Some(Injection::at(k, Recovery::Split)));
        assert_eq!(node.query(&attempts), expected, "allocation {k} is to be smaller");
        assert_eq!(attempts.splits(), 1);
    }
    assert_eq!(node.ledger.report().used, Bytes::default());
    assert_eq!(node.store.statistics().batches, 0);
    assert_eq!(node.device.pool.statistics().live, 0);
}

#[test]
fn memory_far_too_small_gives_the_same_answer() {
    let expected = node(PoolKind::Arena, 1 << 20, 1 << 20).query(&Attempts::default());
    let sizes = [(10 << 10, 1 << 20), (9 << 10, 4 << 10), (8 << 10, 0), (6 << 10, 0)];
    for (kind, (device, host)) in KINDS.into_iter().flat_map(|kind| sizes.map(|it| (kind, it))) {
        let node = node(kind, device, host);
        let attempts = Attempts::default();
        assert_eq!(node.query(&attempts), expected, "{device} bytes");
        let statistics = node.store.statistics();
        assert!(statistics.to_host + statistics.to_disk > 0, "{statistics:?}");
        if device < 7 << 10 {
            assert!(attempts.splits() > 0);
        }
    }
}

#[test]
fn queries_that_share_too_little_give_the_same_answer() {
    let expected = node(PoolKind::Arena, 1 << 20, 1 << 20).query(&Attempts::default());
    // The tables of four, of 4 KiB each, and 2 KiB for the smallest step: a batch of up to
    // 1.5 KiB, a new group, scratch space.
    let node = node(PoolKind::Arena, 18 << 10, 8 << 10);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    assert_eq!(node.query(&Attempts::default()), expected);
                }
            });
        }
    });
    assert_eq!(node.ledger.report().used, Bytes::default());
    assert_eq!(node.store.statistics().disk, 0);
}

struct Halves(u32);

impl Split for Halves {
    fn indivisible(&self) -> Option<&'static str> {
        (self.0 < 2).then_some("it is one")
    }

    fn split(self) -> [Self; 2] {
        [Self(self.0 / 2), Self(self.0 - self.0 / 2)]
    }
}

#[test]
fn outputs_are_in_the_order_of_the_input_and_errors_end_it() {
    let node = node(PoolKind::Arena, 1 << 20, 0);
    let task = node.ledger.attach("a").query("q").task(0);
    let attempts = Attempts::default();
    let mut seen = Vec::new();
    let outputs = with_retry(&task, &attempts, Halves(13), |part| {
        seen.push(part.0);
        if part.0 > 4 { Err(split_error()) } else { Ok(part.0) }
    });
    assert_eq!(outputs.unwrap(), [3, 3, 3, 4]);
    assert_eq!(seen, [13, 6, 3, 3, 7, 3, 4]);
    assert_eq!(attempts.splits(), 3);

    let error =
        with_retry(&task, &attempts, Halves(4), |_| Err::<(), _>(split_error())).unwrap_err();
    assert!(error.to_string().contains("can't be split further: it is one"), "{error}");
    assert_eq!(error.recovery(), Recovery::Fail);
    // Once more may do.
    let mut failures = 1;
    let output = with_retry_no_split(&task, &attempts, || {
        failures -= 1;
        if failures < 0 { Ok(7) } else { Err(split_error()) }
    });
    assert_eq!(output.unwrap(), 7);
    let error =
        with_retry_no_split(&task, &attempts, || Err::<(), _>(MemoryError::Retry)).unwrap_err();
    assert!(matches!(error, MemoryError::TooManyRetries(ATTEMPTS, _)), "{error}");
    let error =
        with_retry_no_split(&task, &attempts, || Err::<(), _>(MemoryError::Cancelled)).unwrap_err();
    assert!(matches!(error, MemoryError::Cancelled), "{error}");
}

fn split_error() -> MemoryError {
    MemoryError::PoolExhausted { bytes: 1, live: 1, limit: 1, largest: 0 }
}
