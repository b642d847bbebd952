//! What holds for every kind of pool, and what tells them apart.

use std::io::Write;

use creel_settings::PoolSizing;
use proptest::prelude::*;

use super::*;
use crate::memory::double::{Call, Double};

const MIB: u64 = 1 << 20;

fn size(pool: PoolKind, initial: u64, maximum: u64) -> PoolSize {
    PoolSize { sizing: PoolSizing::Classic, pool, initial, maximum, warnings: Vec::new() }
}

fn pool(kind: PoolKind, initial: u64, maximum: u64, driver: &Arc<Double>) -> Arc<DevicePool> {
    DevicePool::new(&size(kind, initial, maximum), driver, None).unwrap()
}

/// A piece as the tests use it: the double hears of its use.
struct Piece(Option<DeviceMemory>, Arc<Double>);

impl Piece {
    fn new(memory: DeviceMemory, driver: &Arc<Double>) -> Self {
        driver.begin_use(memory.address(), memory.bytes().max(1), memory.stream());
        Self(Some(memory), Arc::clone(driver))
    }

    fn free_on(mut self, stream: Stream) {
        let memory = self.0.as_mut().unwrap();
        // Who uses a piece on a second stream orders that after the first.
        self.1.order(memory.stream(), stream);
        memory.used_on(stream);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let memory = self.0.take().unwrap();
        self.1.end_use(memory.address(), memory.stream());
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate { bytes: u64, stream: u64 },
    Free { which: usize, stream: u64 },
    Progress { stream: u64 },
    Retire { stream: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![0_u64..2000, 1000_u64..200_000, 100_000_u64..4_000_000];
    let step = prop_oneof![
        6 => (bytes, 0_u64..4).prop_map(|(bytes, stream)| Step::Allocate { bytes, stream }),
        5 => (any::<usize>(), 0_u64..4).prop_map(|(which, stream)| Step::Free { which, stream }),
        2 => (0_u64..4).prop_map(|stream| Step::Progress { stream }),
        1 => (0_u64..4).prop_map(|stream| Step::Retire { stream }),
    ];
    prop::collection::vec(step, 1..400)
}

fn kinds() -> impl Strategy<Value = PoolKind> {
    prop::sample::select(vec![
        PoolKind::Arena,
        PoolKind::Arena,
        PoolKind::Default,
        PoolKind::Default,
        PoolKind::Async,
        PoolKind::None,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// No overlap, aligned, in the order of streams, all returned; and a whole pool is one piece
    /// again at the end.
    #[test]
    fn pieces_are_apart_in_order_and_come_back(
        kind in kinds(),
        initial in prop::sample::select(vec![0, 4 * MIB, 24 * MIB]),
        steps in steps(),
    ) {
        let driver = Arc::new(Double::new(64 * MIB));
        let device = pool(kind, initial, 24 * MIB, &driver);
        let mut pieces: Vec<Piece> = Vec::new();
        let mut live = 0;
        for step in steps {
            match step {
                Step::Allocate { bytes, stream } => match device.allocate(bytes, Stream(stream)) {
                    Ok(memory) => {
                        prop_assert_eq!(memory.address() % ALIGNMENT, 0);
                        prop_assert_eq!(memory.bytes(), bytes);
                        live += bytes.max(1).next_multiple_of(ALIGNMENT);
                        pieces.push(Piece::new(memory, &driver));
                    }
                    Err(error) => {
                        prop_assert_eq!(error.recovery(), crate::memory::error::Recovery::Split);
                        prop_assert!(bytes > 0, "there is always room for one byte here");
                    }
                },
                Step::Free { which, stream } if !pieces.is_empty() => {
                    let piece = pieces.swap_remove(which % pieces.len());
                    live -= piece.0.as_ref().unwrap().rounded;
                    piece.free_on(Stream(stream));
                }
                Step::Free { .. } => {}
                Step::Progress { stream } => driver.progress(Stream(stream)),
                Step::Retire { stream } => device.retire(Stream(stream)).unwrap(),
            }
            prop_assert_eq!(device.statistics().live, live);
        }
        pieces.clear();
        let statistics = device.statistics();
        prop_assert_eq!(statistics.live, 0);
        prop_assert_eq!(statistics.allocations, statistics.frees);
        if initial == 24 * MIB && matches!(kind, PoolKind::Arena | PoolKind::Default) {
            let whole = device.allocate(24 * MIB, Stream(9)).map(|it| Piece::new(it, &driver));
            prop_assert!(whole.is_ok(), "a pool that is free is not one piece: {:?}", whole.err());
        }
        drop(device);
        prop_assert_eq!(driver.used(), 0);
    }
}

/// Threads, each with its own stream, that also free what others allocated.
#[test]
fn threads_do_not_disturb_each_other() {
    for kind in [PoolKind::Arena, PoolKind::Default] {
        let driver = Arc::new(Double::new(64 * MIB));
        let device = pool(kind, 24 * MIB, 24 * MIB, &driver);
        let shared = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (device, driver, shared) = (&device, &driver, &shared);
                scope.spawn(move || {
                    let mut random = thread * 7919 + 1;
                    for _ in 0..5000 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let bytes = 1 << (random >> 32 & 15) | (random >> 40 & 0xfff);
                        if let Ok(memory) = device.allocate(bytes, Stream(thread)) {
                            shared.lock().push(Piece::new(memory, driver));
                        }
                        let free = {
                            let mut shared = shared.lock();
                            let many = shared.len() > 200;
                            let at = (random >> 20) as usize % shared.len().max(1);
                            (many || random >> 60 > 8 && !shared.is_empty())
                                .then(|| shared.swap_remove(at))
                        };
                        if let Some(piece) = free {
                            piece.free_on(Stream(thread));
                        }
                        if random >> 50 & 7 == 7 {
                            driver.progress(Stream(thread));
                        }
                    }
                });
            }
        });
        shared.lock().clear();
        assert_eq!(device.statistics().live, 0);
        drop(device);
        assert_eq!(driver.used(), 0);
    }
}

#[test]
fn kinds_are_told_apart_by_the_calls_that_reach_the_driver() {
    let (one, other) = (Stream(1), Stream(2));
    let work = |device: &Arc<DevicePool>| {
        let a = device.allocate(1000, one).unwrap();
        let b = device.allocate(2 * MIB, other).unwrap();
        drop((a, b));
    };
    let initial = 8 * MIB;
    for (kind, calls) in [
        (
            PoolKind::Arena,
            vec![
                Call::Alloc(initial),
                Call::Record(one),
                Call::Synchronize(one),
                Call::Record(other),
                Call::Synchronize(other),
                Call::Free,
            ],
        ),
        (
            PoolKind::Default,
            vec![
                Call::Alloc(initial),
                Call::Record(one),
                Call::Synchronize(one),
                Call::Record(other),
                Call::Synchronize(other),
                Call::Free,
            ],
        ),
        (
            PoolKind::Async,
            vec![
                Call::CreatePool(32 * MIB),
                Call::AllocAsync(initial, Stream(0)),
                Call::FreeAsync(Stream(0)),
                Call::AllocAsync(1024, one),
                Call::AllocAsync(2 * MIB, other),
                Call::FreeAsync(one),
                Call::FreeAsync(other),
                Call::DestroyPool,
            ],
        ),
        (
            PoolKind::None,
            vec![
                Call::Alloc(1024),
                Call::Alloc(2 * MIB),
                Call::Record(one),
                Call::Synchronize(one),
                Call::Free,
                Call::Record(other),
                Call::Synchronize(other),
                Call::Free,
            ],
        ),
    ] {
        let driver = Arc::new(Double::new(64 * MIB));
        let device = pool(kind, initial, 32 * MIB, &driver);
        assert_eq!(device.kind(), kind);
        work(&device);
        drop(device);
        assert_eq!(driver.calls(), calls, "{kind:?}");
    }
}

#[test]
fn arena_and_default_are_told_apart_by_how_they_grow() {
    let grown = |kind| {
        let driver = Arc::new(Double::new(1 << 30));
        let device = pool(kind, 8 * MIB, 520 * MIB, &driver);
        let held: Vec<_> = (0..12).map(|_| device.allocate(20 * MIB, Stream(0)).unwrap()).collect();
        let calls = driver.calls();
        drop(held);
        calls
    };
    // Half of what is left: (520 - 8) / 2; then it is enough.
    assert_eq!(grown(PoolKind::Default), [Call::Alloc(8 * MIB), Call::Alloc(256 * MIB)]);
    // Steps of 64 MiB, of which each holds three.
    let steps = [[Call::Alloc(8 * MIB)].as_slice(), &[Call::Alloc(64 * MIB); 4]].concat();
    assert_eq!(grown(PoolKind::Arena), steps);
}

#[test]
fn default_takes_less_where_the_driver_has_less() {
    let driver = Arc::new(Double::new(100 * MIB));
    let device = pool(PoolKind::Default, 0, 400 * MIB, &driver);
    let held = device.allocate(30 * MIB, Stream(0)).unwrap();
    assert_eq!(driver.calls(), [200, 100].map(|mib| Call::Alloc(mib * MIB)));
    let error = device.allocate(80 * MIB, Stream(0)).unwrap_err();
    // It tried 150, then just what is needed.
    assert_eq!(driver.calls(), [150, 80].map(|mib| Call::Alloc(mib * MIB)));
    let said = error.to_string();
    for part in ["83886080 bytes", "31457280 of 419430400 bytes are in use", "has 73400320"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    drop(held);
}

#[test]
fn async_keeps_to_its_limit_and_becomes_arena_where_there_is_no_pool() {
    let driver = Arc::new(Double::new(64 * MIB));
    let device = pool(PoolKind::Async, 0, 8 * MIB, &driver);
    let held = device.allocate(6 * MIB, Stream(0)).unwrap();
    let error = device.allocate(3 * MIB, Stream(0)).unwrap_err();
    assert!(matches!(error, MemoryError::PoolExhausted { .. }), "{error}");
    drop(held);
    device.allocate(8 * MIB, Stream(0)).unwrap();
    // The device is full before the limit is reached.
    driver.occupy(60 * MIB);
    let error = device.allocate(6 * MIB, Stream(0)).unwrap_err();
    assert!(matches!(error, MemoryError::PoolExhausted { .. }), "{error}");
    assert_eq!(device.statistics().failures, 2);

    let driver = Arc::new(Double::without_pools(64 * MIB));
    let device = pool(PoolKind::Async, 8 * MIB, 8 * MIB, &driver);
    assert_eq!(device.kind(), PoolKind::Arena);
    assert_eq!(driver.calls(), [Call::Alloc(8 * MIB)]);
}

#[test]
fn async_waits_for_frees_under_way_where_the_driver_has_no_room() {
    let driver = Arc::new(Double::new(8 * MIB));
    let device = pool(PoolKind::Async, 0, 8 * MIB, &driver);
    let (one, other) = (Stream(1), Stream(2));
    drop(Piece::new(device.allocate(6 * MIB, one).unwrap(), &driver));
    drop(driver.calls());
    let held = Piece::new(device.allocate(6 * MIB, other).unwrap(), &driver);
    let asked = Call::AllocAsync(6 * MIB, other);
    assert_eq!(driver.calls(), [asked, Call::Record(one), Call::Synchronize(one), asked]);
    assert_eq!(device.statistics().events, 1);
    // Nothing was freed since: another process has the memory.
    driver.occupy(MIB);
    assert!(device.allocate(2 * MIB, one).is_err());
    assert_eq!(driver.calls(), [Call::AllocAsync(2 * MIB, one)]);
    // A stream that ends is waited for then.
    drop(held);
    device.retire(other).unwrap();
    device.retire(one).unwrap();
    let waited = [Call::FreeAsync(other), Call::Record(other), Call::Synchronize(other)];
    assert_eq!(driver.calls(), waited);
    drop(device.allocate(7 * MIB, one).unwrap());
    assert_eq!(driver.calls(), [Call::AllocAsync(7 * MIB, one), Call::FreeAsync(one)]);
}

#[test]
fn threads_of_a_full_driver_all_wait_for_frees() {
    let driver = Arc::new(Double::new(8 * MIB));
    let device = pool(PoolKind::Async, 0, 8 * MIB, &driver);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (device, driver) = (&device, &driver);
            scope.spawn(move || {
                for round in 0..1000 {
                    let stream = Stream(thread * 4 + round % 4);
                    drop(Piece::new(device.allocate(MIB, stream).unwrap(), driver));
                }
            });
        }
    });
}

#[test]
fn a_small_piece_of_a_small_arena_leaves_room_for_a_large_one() {
    for maximum in [256, 4096, MIB, 5 * MIB / 4, 3 * MIB] {
        let driver = Arc::new(Double::new(maximum));
        let device = pool(PoolKind::Arena, maximum, maximum, &driver);
        let small = device.allocate(1, Stream(1)).unwrap();
        let large = (maximum * 3 / 4).next_multiple_of(ALIGNMENT);
        if maximum > ALIGNMENT {
            drop(device.allocate(large, Stream(2)).unwrap());
        }
        drop(small);
        drop(device.allocate(maximum, Stream(1)).unwrap());
    }
}

#[test]
fn a_lonely_stream_costs_no_events_and_several_cost_few() {
    for kind in [PoolKind::Arena, PoolKind::Default] {
        let driver = Arc::new(Double::new(64 * MIB));
        let device = pool(kind, 32 * MIB, 32 * MIB, &driver);
        for round in 0..1000 {
            let held: Vec<_> = (0..8)
                .map(|i| device.allocate(1000 * (1 + (round + i) % 9), Stream(1)).unwrap())
                .collect();
            drop(held);
        }
        assert_eq!(driver.calls(), [Call::Alloc(32 * MIB)], "{kind:?}");

        // 16 MiB of 24 are in use at most; three streams take turns.
        for round in 0..1000 {
            let stream = Stream(1 + round % 3);
            let held: Vec<_> = (0..4)
                .map(|i| device.allocate(MIB * (1 + (round + i) % 4), stream).unwrap())
                .collect();
            drop(held);
            driver.progress(stream);
        }
        let Statistics { events, frees, .. } = device.statistics();
        assert_eq!(frees, 12_000);
        assert!(events * 4 < 4000, "{events} events for 4000 frees: {kind:?}");
    }
}

#[test]
fn another_streams_memory_is_had_after_its_event_alone() {
    for kind in [PoolKind::Arena, PoolKind::Default] {
        let driver = Arc::new(Double::new(64 * MIB));
        let device = pool(kind, 16 * MIB, 16 * MIB, &driver);
        let (one, other) = (Stream(1), Stream(2));
        drop(Piece::new(device.allocate(16 * MIB, one).unwrap(), &driver));
        drop(driver.calls());
        // Not done: the other stream waits on the device, the host does not.
        let piece = Piece::new(device.allocate(10 * MIB, other).unwrap(), &driver);
        assert_eq!(driver.calls(), [Call::Record(one), Call::Wait(other, one)], "{kind:?}");
        drop(piece);
        driver.progress(one);
        driver.progress(other);
    }
}

#[test]
fn empty_superblocks_return_before_a_request_fails() {
    let driver = Arc::new(Double::new(64 * MIB));
    let device = pool(PoolKind::Arena, 16 * MIB, 16 * MIB, &driver);
    // Each stream keeps one empty superblock of 1 MiB.
    for stream in 1..=8 {
        drop(Piece::new(device.allocate(1000, Stream(stream)).unwrap(), &driver));
    }
    assert!(device.statistics().largest_free < 16 * MIB);
    let whole = Piece::new(device.allocate(16 * MIB, Stream(0)).unwrap(), &driver);
    assert!(device.allocate(1, Stream(3)).is_err());
    drop(whole);
    // No superblock fits, a small piece does.
    let most = Piece::new(device.allocate(16 * MIB - 4096, Stream(0)).unwrap(), &driver);
    let small = Piece::new(device.allocate(1000, Stream(3)).unwrap(), &driver);
    drop((most, small));
    // None in the whole, but room in another stream's superblock.
    let small = Piece::new(device.allocate(1000, Stream(3)).unwrap(), &driver);
    let most = Piece::new(device.allocate(15 * MIB, Stream(0)).unwrap(), &driver);
    let other = Piece::new(device.allocate(1000, Stream(5)).unwrap(), &driver);
    drop((small, most, other));
}

#[test]
fn a_free_that_fails_is_told_with_the_next_allocation() {
    let driver = Arc::new(Double::new(64 * MIB));
    let device = pool(PoolKind::Async, 0, 8 * MIB, &driver);
    let held = device.allocate(MIB, Stream(0)).unwrap();
    driver.break_down();
    drop(held);
    let error = device.allocate(MIB, Stream(0)).unwrap_err();
    assert_eq!(error.recovery(), crate::memory::error::Recovery::Restart, "{error}");
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The sequence that was observed with `spark.rapids.memory.gpu.debug = STDOUT`.
#[test]
fn the_log_is_that_of_rmm() {
    let driver = Arc::new(Double::new(2048 * MIB));
    let written = Written::default();
    let log = AllocationLog::new(written.clone());
    let size = size(PoolKind::Arena, 1024 * MIB, 1024 * MIB);
    let device = DevicePool::new(&size, &driver, Some(log)).unwrap();
    let sizes = [
        18480,
        50_686_648,
        14_174_424,
        13_951_936,
        13_936_328,
        13_929_272,
        26432,
        139_910_792,
        13216,
        6608,
    ];
    let mut held: Vec<_> =
        sizes.iter().map(|bytes| Some(device.allocate(*bytes, Stream(0)).unwrap())).collect();
    let freed = [9, 8, 1, 2, 3];
    for which in freed {
        held[which] = None;
    }
    device.allocate(1 << 40, Stream(7)).unwrap_err();

    let text = String::from_utf8(written.0.lock().clone()).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("Thread,Time,Action,Pointer,Size,Stream"));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), sizes.len() + freed.len() + 1);
    for row in &rows {
        assert_eq!(row.len(), 6, "{row:?}");
        row[0].parse::<u32>().unwrap();
        let shape: String =
            row[1].chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "00:00:00.000000");
        assert!(row[3].starts_with("0x"));
    }
    for (row, bytes) in rows.iter().zip(sizes) {
        assert_eq!((row[2], row[4], row[5]), ("allocate", bytes.to_string().as_str(), "0x0"));
    }
    for (row, which) in rows[sizes.len()..].iter().zip(freed) {
        assert_eq!((row[2], row[3], row[4]), ("free", rows[which][3], rows[which][4]));
    }
    let last = rows.last().unwrap();
    assert_eq!(last[2..], ["allocate failure", "0x0", "1099511627776", "0x7"]);
}
