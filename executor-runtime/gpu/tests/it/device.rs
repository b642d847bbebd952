//! The device layer itself.

use std::sync::Arc;

use creel_gpu::device::{DeviceError, DeviceUpstream, Driver, Event, PinnedMemory, Region, Remedy};
use creel_gpu::memory::error::Recovery;
use creel_gpu::memory::upstream::{Upstream, UpstreamError};
use creel_settings::PoolKind;

use crate::gpu::{Gpu, on, on_late, on_node};
use crate::memory::pool;

#[test]
fn without_a_driver_there_is_an_error() {
    // Where the tests run on a machine with a GPU, there is one.
    if let Err(error) = Driver::start() {
        assert_eq!(error, DeviceError::NoDriver);
        assert_eq!(error.remedy(), Remedy::FallBack);
    }
}

#[test]
fn an_old_driver_is_named() {
    let topology = "driver_version = '470.57.02'\ncuda_version = '11.4'\n[[gpu]]\nmodel = 't4'";
    on_node(topology, &[], |_| {
        let error = Driver::start().expect_err("it is too old");
        assert_eq!(error, DeviceError::OldDriver { version: 11_040 });
        assert!(error.to_string().contains("CUDA 11.4"), "{error}");
    });
}

#[test]
fn devices_are_found_by_uuid() {
    let uuid = "GPU-903720f4-f8d1-11e0-3b2f-4bd740b2f424";
    let topology = format!("[[gpu]]\nmodel = 't4'\n[[gpu]]\nmodel = 'h200'\nuuid = '{uuid}'");
    on_node(&topology, &[], |_| {
        let driver = Driver::start().expect("the simulated driver");
        let device = driver.device("GPU-903720f4-f8d1-11e0-3b2f-4bd740b2f424").expect("it");
        assert_eq!(device.uuid, "903720f4-f8d1-11e0-3b2f-4bd740b2f424");
        assert_eq!(device.capability, (9, 0));
        assert!(device.has_memory_pools);
        let error = driver.device("GPU-00000000-0000-0000-0000-000000000000");
        let error = error.expect_err("there is none").to_string();
        assert!(error.contains("903720f4-f8d1-11e0-3b2f-4bd740b2f424"), "{error}");
    });
}

#[test]
fn copies_go_there_and_back() {
    on("t4", |gpu| {
        let bytes: Vec<u8> = (0..100_000u32).map(|it| (it % 251) as u8).collect();
        let (a, b) = (gpu.put(&bytes), gpu.room(100_000));
        gpu.stream.copy(a, b).expect("a copy");
        assert_eq!(gpu.get::<u8>(b, bytes.len()), bytes);
        gpu.stream.fill(b.part(10, 5).expect("a part"), 0xAB).expect("a fill");
        assert_eq!(gpu.get::<u8>(b, 20)[8..17], [8, 9, 171, 171, 171, 171, 171, 15, 16]);
        let short = Region::new(b.address(), 10);
        assert!(matches!(gpu.stream.copy(a, short), Err(DeviceError::TooSmall { .. })));
        assert!(gpu.stream.upload(&bytes, short).is_err());
        assert!(gpu.stream.download(short, &mut [0; 11]).is_err());
    });
}

#[test]
fn pinned_memory_comes_back_when_its_copy_is_done() {
    on("t4", |gpu| {
        let mut pinned = PinnedMemory::new(&gpu.context, 1 << 20).expect("pinned memory");
        for (place, byte) in pinned.iter_mut().enumerate() {
            *byte = (place % 241) as u8;
        }
        let sent = pinned.to_vec();
        let region = gpu.room(1 << 20);
        let upload = gpu.stream.upload_from(pinned, 1 << 20, region).expect("an upload");
        // Another stream waits for this one's copy, and for nothing else.
        let other = gpu.context.stream().expect("a stream");
        other.wait(&Event::record(&gpu.stream, false).expect("an event")).expect("a wait");
        let back = PinnedMemory::new(&gpu.context, 1 << 20).expect("pinned memory");
        let download = other.download_into(region, back).expect("a download");
        let back = download.wait().expect("the copy");
        assert!(back[..] == sent);
        assert!(upload.is_done().expect("no fault"));
        upload.wait().expect("the memory");
        let small = PinnedMemory::new(&gpu.context, 10).expect("pinned memory");
        assert!(gpu.stream.upload_from(small, 11, region).is_err());
    });
}

#[test]
fn events_have_times() {
    on("t4", |gpu| {
        let first = Event::record(&gpu.stream, true).expect("an event");
        let region = gpu.room(1 << 20);
        gpu.stream.fill(region, 1).expect("a fill");
        let second = Event::record(&gpu.stream, true).expect("an event");
        second.wait().expect("the fill");
        assert!(first.is_past().expect("no fault"));
        second.since(&first).expect("a time");
    });
}

#[test]
fn a_fault_is_for_good() {
    on("t4", |gpu| {
        // A selection far beyond its memory leads anywhere.
        let wild = Region::new(0xDEAD_0000, 400);
        let predicate =
            creel_gpu::primitives::filter::Predicate { truth: wild, validity: None, rows: 3200 };
        let workspace = gpu.room(predicate.workspace_bytes());
        let error = creel_gpu::primitives::filter::count(&gpu.stream, &predicate, workspace)
            .expect_err("an illegal address");
        assert_eq!(error.remedy(), Remedy::Restart, "{error}");
        let later = gpu.stream.synchronize().expect_err("sticky");
        assert_eq!(later.remedy(), Remedy::Restart, "{later}");
    });
}

#[test]
fn every_kind_of_pool_stands_on_the_driver() {
    on("t4", |gpu| {
        let upstream = Arc::new(DeviceUpstream::new(&gpu.context));
        for kind in [PoolKind::Arena, PoolKind::Default, PoolKind::Async, PoolKind::None] {
            let pool = pool(&upstream, kind, 128 << 20);
            assert_eq!(pool.kind(), kind);
            // A piece goes from one stream to another, and back to the pool in its order.
            let other = gpu.context.stream().expect("a stream");
            for round in 0..20u8 {
                let memory = pool.allocate(1 << 20, gpu.stream.id()).expect("memory");
                gpu.stream.fill(Region::from(&memory), round).expect("a fill");
                drop(memory);
                let memory = pool.allocate(1 << 20, other.id()).expect("memory");
                other.fill(Region::from(&memory), round + 100).expect("a fill");
                let mut bytes = vec![0; 1 << 20];
                other.download(Region::from(&memory), &mut bytes).expect("a download");
                assert!(bytes.iter().all(|&it| it == round + 100), "{kind:?} {round}");
            }
            assert_eq!(pool.statistics().live, 0);
            if kind != PoolKind::None {
                let error = pool.allocate(1 << 30, other.id()).expect_err("too much");
                assert_eq!(error.recovery(), Recovery::Split, "{error}");
            }
            pool.retire(other.id()).expect("no fault");
        }
        let error = upstream.alloc(1 << 40).expect_err("more than there is");
        assert_eq!(error, UpstreamError::OutOfMemory { bytes: 1 << 40 });
    });
}

#[test]
fn memory_may_outlive_its_stream() {
    on_late(|gpu| {
        let upstream = Arc::new(DeviceUpstream::new(&gpu.context));
        for kind in [PoolKind::Arena, PoolKind::Default, PoolKind::Async, PoolKind::None] {
            let pool = pool(&upstream, kind, 128 << 20);
            let stream = gpu.context.stream().expect("a stream");
            let memory = pool.allocate(100 << 20, stream.id()).expect("memory");
            stream.fill(Region::from(&memory), 1).expect("a fill");
            drop(stream);
            drop(memory);
            // What another stream does there comes after.
            let memory = pool.allocate(100 << 20, gpu.stream.id()).expect("memory");
            gpu.stream.fill(Region::from(&memory), 2).expect("a fill");
            let end = Region::from(&memory).part((100 << 20) - 1, 1).expect("a byte");
            let next = gpu.context.stream().expect("a stream");
            next.synchronize().expect("no fault");
            assert_eq!(gpu.get::<u8>(end, 1), [2], "{kind:?}");
        }
    });
}

#[test]
fn a_context_can_be_opened_again() {
    on("t4", |gpu| {
        let device = gpu.context.device().clone();
        for _ in 0..3 {
            let gpu = Gpu::open();
            let region = gpu.put(&[1u32, 2, 3]);
            assert_eq!(gpu.get::<u32>(region, 3), [1, 2, 3]);
        }
        assert_eq!(Gpu::open().context.device(), &device);
    });
}
