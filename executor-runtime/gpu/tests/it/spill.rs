//! Batches at rest, on a device.

use std::sync::Arc;

use creel_gpu::device::{DeviceMover, Region, Stream};
use creel_gpu::memory::error::MemoryError;
use creel_gpu::memory::ledger::{DeviceBuffer, Kind, Spiller, Task, Whose};
use creel_gpu::memory::spill::disk::SpillDirectory;
use creel_gpu::memory::spill::{Priority, SpillStore, Spillable, Tier};
use creel_settings::PoolKind;
use simulated_nvml::{Action, CudaCode, Fault};

use crate::gpu::{Gpu, HELD, T4, on_late, on_node};
use crate::memory::{DEVICE, KINDS, Memory};

/// More than a slab, and no whole number of them.
const BATCH: u64 = 5_000_001;

struct Bench {
    memory: Memory,
    store: SpillStore<DeviceMover>,
    _at: tempfile::TempDir,
}

impl Bench {
    fn new(gpu: &Gpu, kind: PoolKind, host_limit: u64) -> Self {
        let at = tempfile::tempdir().expect("a directory");
        let memory = Memory::new(&gpu.context, kind, 2);
        let (pool, slabs) = (Arc::clone(&memory.pool), Arc::clone(&memory.slabs));
        let mover = DeviceMover::new(&gpu.context, pool, slabs).expect("a mover");
        let store = SpillStore::new(mover, host_limit, SpillDirectory::new(at.path(), 1 << 30));
        memory.ledger.set_spiller(Arc::new(store.clone()));
        Bench { memory, store, _at: at }
    }

    fn buffer(&self, task: &Task, stream: &Stream) -> DeviceBuffer {
        task.allocate(&self.memory.pool, BATCH, stream.id(), "a batch").expect("memory")
    }

    /// A batch of two buffers, whose bytes are not written before somebody waits.
    fn batch(&self, task: &Task, stream: &Stream, byte: u8) -> Spillable<DeviceMover> {
        let buffers = [0, 1].map(|number| {
            let buffer = self.buffer(task, stream);
            stream.fill(Region::from(&buffer), byte + number).expect("a fill");
            buffer
        });
        self.store.insert(task.query(), buffers.into(), Priority(u64::from(byte)))
    }
}

/// Takes all of the device, and gives it back.
fn squeeze(task: &Task) {
    drop(task.reserve(Kind::Device, DEVICE, "all").expect("all of it"));
}

fn stream(gpu: &Gpu) -> Arc<Stream> {
    Arc::new(gpu.context.stream().expect("a stream"))
}

/// What a batch has, as another stream sees it.
fn check(batch: &Spillable<DeviceMover>, task: &Task, stream: &Arc<Stream>, byte: u8) {
    let held = batch.get(task, stream).expect("the batch");
    for (buffer, byte) in held.iter().zip(byte..) {
        let mut bytes = vec![0; BATCH as usize];
        stream.download(Region::from(buffer), &mut bytes).expect("a download");
        assert!(bytes.iter().all(|&it| it == byte), "{byte}");
    }
}

#[test]
fn a_batch_goes_down_as_its_stream_left_it_and_comes_back() {
    on_late(|gpu| {
        for (kind, host_limit, tier) in [
            (KINDS[0], 1 << 30, Tier::Host),
            (KINDS[1], 1 << 30, Tier::Host),
            (KINDS[0], 0, Tier::Disk),
        ] {
            let bench = Bench::new(gpu, kind, host_limit);
            let query = bench.memory.ledger.attach("a").query("q");
            let task = query.task(0);
            let (own, other) = (stream(gpu), stream(gpu));
            let batch = bench.batch(&task, &own, 3);
            for _ in 0..2 {
                squeeze(&task);
                assert_eq!(batch.tier(), tier);
                check(&batch, &task, &other, 3);
                assert_eq!(batch.tier(), Tier::Device);
            }
            assert_eq!(bench.store.statistics().failures, 0);
            drop((batch, task));
            query.finish().expect("nothing is left");
            assert_eq!(bench.memory.slabs.statistics().free, 2);
            assert_eq!(bench.memory.pool.statistics().live, 0);
        }
    });
}

#[test]
fn who_gets_a_batch_comes_after_the_work_that_made_it() {
    on_late(|gpu| {
        for kind in KINDS {
            let bench = Bench::new(gpu, kind, 1 << 30);
            let task = bench.memory.ledger.attach("a").query("q").task(0);
            let (own, other) = (stream(gpu), stream(gpu));
            let batch = bench.batch(&task, &own, 5);
            check(&batch, &task, &other, 5);
        }
    });
}

#[test]
fn memory_goes_back_after_the_work_of_all_who_had_the_batch() {
    on_late(|gpu| {
        for kind in KINDS {
            let bench = Bench::new(gpu, kind, 1 << 30);
            let task = bench.memory.ledger.attach("a").query("q").task(0);
            let own = stream(gpu);
            let batch = bench.batch(&task, &own, 7);
            let others = [stream(gpu), stream(gpu)];
            let copies = others.each_ref().map(|other| {
                let copy = bench.buffer(&task, other);
                let held = batch.get(&task, other).expect("the batch");
                other.copy(Region::from(&held[0]), Region::from(&copy)).expect("a copy");
                copy
            });
            // Whoever has its memory next, writes there.
            drop(batch);
            let next = [0; 4].map(|_| bench.buffer(&task, &own));
            for buffer in &next {
                own.fill(Region::from(buffer), 99).expect("a fill");
            }
            own.synchronize().expect("no fault");
            for (other, copy) in others.iter().zip(&copies) {
                let mut bytes = vec![0; BATCH as usize];
                other.download(Region::from(copy), &mut bytes).expect("a download");
                assert!(bytes.iter().all(|&it| it == 7), "{kind:?}");
            }
        }
    });
}

#[test]
fn a_batch_that_can_not_be_copied_stays() {
    on_node(T4, HELD, |node| {
        let gpu = Gpu::open();
        let bench = Bench::new(&gpu, PoolKind::None, 1 << 30);
        let query = bench.memory.ledger.attach("a").query("q");
        let task = query.task(0);
        let own = stream(&gpu);
        let fault = Fault::new(None, Action::FailCuda(CudaCode::INVALID_VALUE));
        for (function, calls) in [("cuMemcpyDtoHAsync_v2", 4), ("cuEventRecord", 6)] {
            for call in 1..=calls {
                let batch = bench.batch(&task, &own, 9);
                node.set_faults(&[fault.clone().of(function).at(call)]).expect("a fault");
                assert_eq!(bench.store.spill(Kind::Device, 1, Whose::All), 0);
                assert_eq!(batch.tier(), Tier::Device, "call {call} of {function}");
                let failure = bench.store.take_failure().expect("a failure");
                assert!(
                    matches!(failure, MemoryError::Copy { .. } | MemoryError::Upstream(_)),
                    "{failure}"
                );
                node.set_faults(&[]).expect("no fault");
                check(&batch, &task, &own, 9);
            }
        }
        for call in 1..=4 {
            let batch = bench.batch(&task, &own, 9);
            squeeze(&task);
            let fault = fault.clone().of("cuMemcpyHtoDAsync_v2").at(call);
            node.set_faults(&[fault]).expect("a fault");
            assert!(batch.get(&task, &own).is_err());
            assert_eq!(batch.tier(), Tier::Host, "call {call}");
            node.set_faults(&[]).expect("no fault");
            check(&batch, &task, &own, 9);
        }
        drop(task);
        query.finish().expect("nothing is left");
    });
}
