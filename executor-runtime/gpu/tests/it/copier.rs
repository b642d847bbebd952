//! Copies through slabs.

use std::sync::Arc;

use creel_gpu::device::{Copier, DeviceError, Region, Stream};
use creel_gpu::memory::error::{MemoryError, Recovery};
use creel_gpu::memory::ledger::{Bytes, DeviceBuffer, Task};
use creel_gpu::memory::pinned::{SLAB, Slab};
use creel_settings::PoolKind;
use simulated_nvml::{Action, CudaCode, Fault};

use crate::gpu::{Gpu, HELD, Random, T4, on_late, on_node};
use crate::memory::{KINDS, Memory};

/// Around what is copied without a slab, and around slabs.
const SIZES: [u64; 11] = [
    0,
    1,
    65_535,
    65_536,
    65_537,
    SLAB - 1,
    SLAB,
    SLAB + 1,
    2 * SLAB,
    2 * SLAB + 70_001,
    9 * SLAB + 13,
];

fn some_bytes(random: &mut Random, count: u64) -> Vec<u8> {
    (0..count.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(count as usize).collect()
}

struct Copies {
    memory: Memory,
    stream: Arc<Stream>,
    copier: Copier,
}

impl Copies {
    fn new(gpu: &Gpu, kind: PoolKind, slabs: u64) -> Self {
        let memory = Memory::new(&gpu.context, kind, slabs);
        let stream = Arc::new(gpu.context.stream().expect("a stream"));
        let copier = Copier::new(Arc::clone(&stream), Arc::clone(&memory.slabs));
        Copies { memory, stream, copier }
    }

    fn room(&self, task: &Task, bytes: u64) -> DeviceBuffer {
        task.allocate(&self.memory.pool, bytes, self.stream.id(), "a test").expect("memory")
    }

    /// There, to another place on the device, and back.
    fn there_and_back(&self, task: &Task, random: &mut Random, size: u64) {
        let sent = some_bytes(random, size);
        let (a, b) = (self.room(task, size), self.room(task, size));
        let mut source = sent.clone();
        let (first, rest) = source.split_at(source.len() / 3);
        let (second, third) = rest.split_at(rest.len().min(70_000));
        let pieces = [first, &[], second, third];
        self.copier.upload(task, pieces, Region::from(&a)).expect("an upload");
        // It needs its source no more.
        source.fill(0);
        self.stream.copy(Region::from(&a), Region::from(&b)).expect("a copy");
        let mut back = vec![0; sent.len()];
        self.copier.download(task, Region::from(&b), &mut back).expect("a download");
        assert!(back == sent, "{size} bytes");
    }
}

#[test]
fn bytes_of_any_length_go_there_and_back() {
    on_late(|gpu| {
        let mut random = Random::new(8);
        for kind in KINDS {
            for slabs in [0, 1, 3, 8] {
                let copies = Copies::new(gpu, kind, slabs);
                let query = copies.memory.ledger.attach("a").query("q");
                let task = query.task(0);
                for size in SIZES.into_iter().filter(|&size| slabs == 3 || size < 3 * SLAB) {
                    copies.there_and_back(&task, &mut random, size);
                }
                copies.copier.wait().expect("no fault");
                let statistics = copies.memory.slabs.statistics();
                assert_eq!(statistics.free, slabs);
                assert_eq!(statistics.pageable > 0, slabs == 0);
                drop(task);
                query.finish().expect("nothing is left");
                assert_eq!(copies.memory.ledger.report().used, Bytes::default());
            }
        }
    });
}

#[test]
fn an_upload_has_a_few_slabs_and_gives_them_back() {
    on_late(|gpu| {
        let all = Copies::new(gpu, PoolKind::Arena, 8);
        let query = all.memory.ledger.attach("a").query("q");
        let task = query.task(0);
        let bytes = vec![7; 6 * SLAB as usize];
        let buffer = all.room(&task, bytes.len() as u64);
        let free = || all.memory.slabs.statistics().free;
        all.copier.upload(&task, [&bytes[..]], Region::from(&buffer)).expect("an upload");
        // Its last copies are under way, for nobody has waited.
        assert_eq!(free(), 4);
        all.copier.wait().expect("no fault");
        assert_eq!(free(), 8);
        all.copier.upload(&task, [&bytes[..]], Region::from(&buffer)).expect("an upload");
        let Copies { memory, copier, .. } = all;
        drop(copier);
        assert_eq!(memory.slabs.statistics().free, 8);
        // What others have is no error.
        let taken: Vec<_> = (0..8).map(|_| memory.slabs.take(&task).expect("a slab")).collect();
        let other = Copier::new(Arc::new(gpu.context.stream().expect("one")), memory.slabs);
        other.upload(&task, [&bytes[..]], Region::from(&buffer)).expect("an upload");
        let mut back = vec![0; bytes.len()];
        other.download(&task, Region::from(&buffer), &mut back).expect("a download");
        assert!(back == bytes);
        drop(taken);
    });
}

#[test]
fn what_has_no_room_is_refused() {
    on_late(|gpu| {
        let copies = Copies::new(gpu, PoolKind::Arena, 2);
        let task = copies.memory.ledger.attach("a").query("q").task(0);
        for size in [100, 3 * SLAB] {
            let buffer = copies.room(&task, size);
            let bytes = vec![7; size as usize + 1];
            let refused = copies.copier.upload(&task, [&bytes[..]], Region::from(&buffer));
            let error = refused.expect_err("a byte too many");
            assert_eq!(error.recovery(), Recovery::Fail, "{error}");
            let mut back = vec![0; size as usize + 1];
            let refused = copies.copier.download(&task, Region::from(&buffer), &mut back);
            assert!(matches!(refused, Err(MemoryError::Copy { sticky: false, .. })));
        }
    });
}

#[test]
fn slabs_of_any_memory_can_be_copied_from_and_to() {
    on_late(|gpu| {
        for pinned in [0, 2] {
            let copies = Copies::new(gpu, PoolKind::None, pinned);
            let task = copies.memory.ledger.attach("a").query("q").task(0);
            let take = || copies.memory.slabs.take(&task).expect("a slab");
            let (mut source, target) = (take(), take());
            assert!([&source, &target].map(Slab::is_pinned) == [pinned == 2; 2]);
            let sent = some_bytes(&mut Random::new(9), SLAB);
            source.copy_from_slice(&sent);
            let buffer = copies.room(&task, SLAB);
            let region = Region::from(&buffer);
            let upload = copies.stream.upload_from(source, SLAB as usize, region).expect("one");
            let download = copies.stream.download_into(region, target).expect("a download");
            assert!(download.wait().expect("the copy")[..] == sent[..]);
            let source = upload.wait().expect("the slab");
            let refused = copies.stream.upload_from(source, SLAB as usize + 1, region);
            assert!(matches!(refused, Err(DeviceError::TooSmall { .. })));
        }
    });
}

#[test]
fn whichever_copy_fails_slabs_come_back() {
    let functions = ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuEventRecord"];
    on_node(T4, HELD, |node| {
        let gpu = Gpu::open();
        let copies = Copies::new(&gpu, PoolKind::None, 3);
        for function in functions {
            for call in 1..=6 {
                let query = copies.memory.ledger.attach("a").query("q");
                let task = query.task(0);
                let size = 6 * SLAB + 1;
                let sent = some_bytes(&mut Random::new(call), size);
                let buffer = copies.room(&task, size);
                let fault = Fault::new(None, Action::FailCuda(CudaCode::INVALID_VALUE));
                node.set_faults(&[fault.of(function).at(call)]).expect("a fault");
                let mut back = vec![0; sent.len()];
                let mut copy = || {
                    copies.copier.upload(&task, [&sent[..]], Region::from(&buffer))?;
                    copies.copier.download(&task, Region::from(&buffer), &mut back)
                };
                let error = copy().expect_err("a call fails");
                assert!(matches!(error, MemoryError::Copy { sticky: false, .. }), "{error}");
                node.set_faults(&[]).expect("no fault");
                copy().expect("it goes well");
                assert!(back == sent, "call {call} of {function}");
                copies.copier.wait().expect("no fault");
                assert_eq!(copies.memory.slabs.statistics().free, 3);
                drop((buffer, task));
                query.finish().expect("nothing is left");
            }
        }
    });
}

#[test]
fn a_lost_gpu_is_for_good() {
    on_node(T4, HELD, |node| {
        let gpu = Gpu::open();
        let copies = Copies::new(&gpu, PoolKind::Arena, 3);
        let task = copies.memory.ledger.attach("a").query("q").task(0);
        let buffer = copies.room(&task, 6 * SLAB);
        let bytes = vec![1; 6 * SLAB as usize];
        let fault = Fault::new(None, Action::FailCuda(CudaCode::LAUNCH_FAILED));
        node.set_faults(&[fault.of("cuMemcpyHtoDAsync_v2").at(5)]).expect("a fault");
        for _ in 0..2 {
            let failed = copies.copier.upload(&task, [&bytes[..]], Region::from(&buffer));
            let error = failed.expect_err("the GPU is lost");
            assert_eq!(error.recovery(), Recovery::Restart, "{error}");
        }
    });
}
