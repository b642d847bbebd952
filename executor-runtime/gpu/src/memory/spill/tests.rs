//! Batches on their way down and up again.

use std::time::Duration;

use creel_settings::{PoolKind, PoolSizing};

use super::*;
use crate::memory::double::Double;
use crate::memory::error::Recovery;
use crate::memory::ledger::{Bytes, DeviceBuffer, Ledger, Limits};
use crate::memory::pool::DevicePool;
use crate::memory::semaphore::Permits;
use crate::memory::sizing::PoolSize;
use crate::memory::upstream::{Stream, Upstream};

/// A device whose memory is beside the addresses that it hands out.
pub(crate) struct Device {
    pub(crate) pool: Arc<DevicePool>,
    driver: Arc<Double>,
}

/// A buffer of it, with what is in it.
pub(crate) struct Buffer {
    memory: DeviceBuffer,
    pub(crate) content: Vec<u8>,
}

impl Device {
    pub(crate) fn new(kind: PoolKind, bytes: u64) -> Self {
        let size = PoolSize {
            sizing: PoolSizing::Current,
            pool: kind,
            initial: bytes,
            maximum: bytes,
            warnings: Vec::new(),
        };
        let driver = Arc::new(Double::new(bytes));
        Self { pool: DevicePool::new(&size, &driver, None).unwrap(), driver }
    }

    /// The same device.
    pub(crate) fn share(&self) -> Self {
        Self { pool: Arc::clone(&self.pool), driver: Arc::clone(&self.driver) }
    }

    pub(crate) fn buffer(&self, task: &Task, content: Vec<u8>) -> Result<Buffer, MemoryError> {
        let bytes = content.len() as u64;
        Ok(Buffer { memory: task.allocate(&self.pool, bytes, Stream(1), "a batch")?, content })
    }
}

impl Mover for Device {
    type Buffer = Buffer;
    type Stream = Stream;

    fn reserved(&self, buffer: &Buffer) -> u64 {
        buffer.memory.reserved()
    }

    fn download(&self, buffer: &Buffer) -> Result<Vec<u8>, MemoryError> {
        Ok(buffer.content.clone())
    }

    fn upload(&self, task: &Task, bytes: &[u8]) -> Result<Buffer, MemoryError> {
        self.buffer(task, bytes.to_vec())
    }

    fn begin_use(&self, buffers: &[Buffer], stream: &Stream) -> Result<(), MemoryError> {
        buffers.iter().try_for_each(|buffer| self.order(buffer.memory.stream(), *stream))
    }

    fn end_use(&self, buffers: &[Buffer], stream: &Stream) -> Result<(), MemoryError> {
        buffers.iter().try_for_each(|buffer| self.order(*stream, buffer.memory.stream()))
    }
}

impl Device {
    fn order(&self, before: Stream, after: Stream) -> Result<(), MemoryError> {
        let event = self.driver.record(before)?;
        Ok(self.driver.wait(after, &event)?)
    }
}

/// The stream of a task.
pub(crate) fn stream() -> Arc<Stream> {
    Arc::new(Stream(2))
}

const KIB: u64 = 1024;

struct Bench {
    ledger: Ledger,
    store: SpillStore<Device>,
    at: tempfile::TempDir,
}

/// So many KiB on each tier.
fn bench(device: u64, host: u64, disk: u64) -> Bench {
    let at = tempfile::tempdir().unwrap();
    let limits = Limits {
        bytes: Bytes::new(device * KIB, 0, 1 << 30),
        attachment_quota: device * KIB,
        wait_timeout: Duration::from_mins(10),
    };
    let ledger = Ledger::new(limits, Permits::fixed(4));
    let directory = SpillDirectory::new(at.path(), disk * KIB);
    // The pool has room for more than the ledger gives, so that fragments are no matter here.
    let store = SpillStore::new(Device::new(PoolKind::Arena, 4 << 20), host * KIB, directory);
    ledger.set_spiller(Arc::new(store.clone()));
    Bench { ledger, store, at }
}

impl Bench {
    fn batch(
        &self,
        task: &Task,
        fill: u8,
        priority: u64,
    ) -> Result<Spillable<Device>, MemoryError> {
        let buffer = self.store.inner.mover.buffer(task, vec![fill; 4 * KIB as usize])?;
        Ok(self.store.insert(task.query(), vec![buffer], Priority(priority)))
    }
}

fn tiers(batches: &[Spillable<Device>]) -> Vec<Tier> {
    batches.iter().map(Spillable::tier).collect()
}

#[test]
fn the_lowest_priority_goes_first_and_down_to_disk() {
    let bench = bench(8, 8, 100);
    let query = bench.ledger.attach("a").query("q");
    let task = query.task(0);
    let (device, host, disk) = (Tier::Device, Tier::Host, Tier::Disk);
    let mut batches = Vec::new();
    let mut next = |fill, priority| {
        batches.push(bench.batch(&task, fill, priority).unwrap());
        tiers(&batches)
    };
    assert_eq!(next(1, 50), [device]);
    assert_eq!(next(2, 40), [device, device]);
    assert_eq!(next(3, 45), [device, host, device]);
    assert_eq!(next(4, 60), [device, host, host, device]);
    // The host is full: the lowest there makes room.
    assert_eq!(next(5, 55), [host, disk, host, device, device]);
    // What goes is the lowest on the device, and straight to disk where all on the host are
    // higher.
    assert_eq!(next(6, 30), [host, disk, disk, device, host, device]);
    assert_eq!(next(7, 70), [host, disk, disk, device, host, disk, device]);

    for (batch, fill) in batches.iter().zip(1_u8..) {
        assert_eq!(batch.get(&task, &stream()).unwrap()[0].content, vec![fill; 4096]);
        assert_eq!(batch.tier(), device);
    }
    let statistics = bench.store.statistics();
    assert_eq!(statistics.batches, 7);
    assert!(statistics.from_disk >= 12 * KIB && statistics.from_host > 0, "{statistics:?}");
    assert_eq!(statistics.failures, 0);
    batches.clear();
    drop(task);
    query.finish().unwrap();
    let SpillStatistics { batches, host, disk, .. } = bench.store.statistics();
    assert_eq!((batches, host, disk), (0, 0, 0));
    assert_eq!(bench.ledger.report().used, Bytes::default());
}

#[test]
fn what_is_held_stays() {
    let bench = bench(8, 8, 100);
    let query = bench.ledger.attach("a").query("q");
    let task = query.task(0);
    let low = bench.batch(&task, 1, 1).unwrap();
    let high = bench.batch(&task, 2, 2).unwrap();
    let held = low.get(&task, &stream()).unwrap();
    let third = bench.batch(&task, 3, 3).unwrap();
    assert_eq!(held[0].content[0], 1);
    assert_eq!(tiers(&[high]), [Tier::Host]);
    drop((held, third));
    assert_eq!(low.tier(), Tier::Device);
}

#[test]
fn several_tasks_hold_a_batch_at_one_time() {
    let bench = bench(8, 8, 100);
    let query = bench.ledger.attach("a").query("q");
    let (task, other) = (query.task(0), query.task(0));
    let batch = bench.batch(&task, 1, 1).unwrap();
    drop(task.reserve(Kind::Device, 8 * KIB, "x").unwrap());
    assert_eq!(batch.tier(), Tier::Host);
    let one = batch.get(&task, &stream()).unwrap();
    let two = batch.get(&other, &stream()).unwrap();
    assert_eq!(one[0].content, two[0].content);
}

#[test]
fn the_hosts_limit_is_kept_by_going_to_disk() {
    let bench = bench(8, 64, 100);
    let attachment = bench.ledger.attach("a");
    let (query, other) = (attachment.query("q"), attachment.query("other"));
    let task = query.task(0);
    let all = other.try_reserve(Kind::Host, 1 << 30, "something else").unwrap();
    let batches: Vec<_> = (1..4).map(|fill| bench.batch(&task, fill, 1).unwrap()).collect();
    assert_eq!(tiers(&batches), [Tier::Disk, Tier::Device, Tier::Device]);
    drop(all);
    // Memory of the host that somebody else needs is had of the batches there.
    let more = bench.batch(&task, 4, 1).unwrap();
    assert_eq!(bench.store.statistics().host, 4 * KIB);
    let needs = other.task(0);
    drop(needs.reserve(Kind::Host, 1 << 30, "something else").unwrap());
    assert_eq!(bench.store.statistics().host, 0);
    drop(more);
}

#[test]
fn a_full_disk_leaves_batches_where_they_are() {
    let bench = bench(8, 0, 4);
    let query = bench.ledger.attach("a").query("q");
    let task = query.task(0);
    let mut batches: Vec<_> = (1..4).map(|fill| bench.batch(&task, fill, 1).unwrap()).collect();
    let error = bench.batch(&task, 4, 1).err().unwrap();
    assert_eq!(error.recovery(), Recovery::Retry, "{error}");
    assert_eq!(tiers(&batches), [Tier::Disk, Tier::Device, Tier::Device]);
    let failure = bench.store.take_failure().unwrap();
    assert!(matches!(failure, MemoryError::SpillLimit { .. }), "{failure}");
    assert!(bench.store.statistics().failures > 0);
    // What is on disk can't come up while nothing can go down, and is not lost.
    assert!(batches[0].get(&task, &stream()).is_err());
    batches.pop();
    assert_eq!(batches[0].get(&task, &stream()).unwrap()[0].content[0], 1);
}

#[test]
fn a_damaged_file_fails_its_query_and_no_other() {
    let bench = bench(4, 0, 100);
    let query = bench.ledger.attach("a").query("q");
    let task = query.task(0);
    let batches: Vec<_> = (1..4).map(|fill| bench.batch(&task, fill, 1).unwrap()).collect();
    for entry in std::fs::read_dir(bench.at.path()).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if bytes[0] == 1 {
            bytes[100] ^= 0x80;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let error = batches[0].get(&task, &stream()).err().unwrap();
    assert_eq!(error.recovery(), Recovery::Fail);
    assert!(matches!(error, MemoryError::SpillDamaged { .. }), "{error}");
    assert_eq!(batches[1].get(&task, &stream()).unwrap()[0].content[0], 2);
}

#[test]
fn threads_get_back_what_they_kept() {
    let bench = bench(32, 16, 1 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let query = bench.ledger.attach(format!("a{thread}")).query("q");
            let bench = &bench;
            scope.spawn(move || {
                let task = query.task(0);
                let mut batches: Vec<(u8, Spillable<Device>)> = Vec::new();
                for round in 0..60_u8 {
                    let fill = thread * 60 + round;
                    loop {
                        match bench.batch(&task, fill, u64::from(round)) {
                            Ok(batch) => break batches.push((fill, batch)),
                            Err(error) => assert_ne!(error.recovery(), Recovery::Fail, "{error}"),
                        }
                    }
                    let at = usize::from(round) * 7 % batches.len();
                    let (fill, batch) = &batches[at];
                    loop {
                        match batch.get(&task, &stream()) {
                            Ok(held) => break assert_eq!(held[0].content, vec![*fill; 4096]),
                            Err(error) => assert_ne!(error.recovery(), Recovery::Fail, "{error}"),
                        }
                    }
                }
                drop((batches, task));
                query.finish().unwrap();
            });
        }
    });
    assert_eq!(bench.ledger.report().used, Bytes::default());
    assert_eq!(bench.store.statistics().disk, 0);
}
