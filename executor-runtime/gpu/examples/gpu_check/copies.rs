//! Copies: within the device, and between it and the host.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use creel_gpu::device::{Copier, DeviceUpstream, PinnedMemory, Region};
use creel_gpu::memory::ledger::{Bytes, Ledger, Limits};
use creel_gpu::memory::pinned::{PinnedPool, SLAB};
use creel_gpu::memory::semaphore::Permits;

use crate::bench::Bench;
use crate::report::{Report, Unit, rate};

/// The most that is copied between host and device at once, in bytes.
const HOST: u64 = 256 << 20;

/// Slabs of the copier.
const SLABS: u64 = 8;

/// Copies up to so many bytes. The rate within the device, read and written, in GB/s.
pub(crate) fn run(bench: &Bench, bytes: u64, report: &mut Report) -> Result<f64, Box<dyn Error>> {
    let (from, to) = (bench.room(bytes)?, bench.room(bytes)?);
    let (from, to) = (Region::from(&from), Region::from(&to));
    bench.stream.fill(from, 1)?;
    let copy = rate(2 * bytes, bench.time(|| bench.stream.copy(from, to))?);
    report.add("copy, device to device (read + written)", Unit::Rate, copy, None);

    let bytes = bytes.min(HOST);
    let (from, to) = (from.part(0, bytes)?, to.part(0, bytes)?);
    let mut pinned = Some(PinnedMemory::new(&bench.context, bytes as usize)?);
    let time = bench.time(|| {
        let memory = pinned.take().expect("it comes back");
        pinned = Some(bench.stream.upload_from(memory, bytes as usize, to)?.wait()?);
        Ok(())
    })?;
    report.add("copy, pinned to device", Unit::Rate, rate(bytes, time), None);
    let time = bench.time(|| {
        let memory = pinned.take().expect("it comes back");
        pinned = Some(bench.stream.download_into(from, memory)?.wait()?);
        Ok(())
    })?;
    report.add("copy, device to pinned", Unit::Rate, rate(bytes, time), None);

    let mut pageable = vec![1; bytes as usize];
    let time = bench.time(|| bench.stream.upload(&pageable, to))?;
    report.add("copy, pageable to device", Unit::Rate, rate(bytes, time), None);
    let time = bench.time(|| bench.stream.download(from, &mut pageable))?;
    report.add("copy, device to pageable", Unit::Rate, rate(bytes, time), None);

    through_slabs(bench, from, &mut pageable, report)?;
    Ok(copy)
}

/// As operators copy, on the clock.
fn through_slabs(
    bench: &Bench,
    region: Region,
    host: &mut [u8],
    report: &mut Report,
) -> Result<(), Box<dyn Error>> {
    let upstream = DeviceUpstream::new(&bench.context);
    let slabs = PinnedPool::new(SLABS * SLAB, &upstream);
    let limits = Limits {
        bytes: Bytes::new(0, SLABS * SLAB, 0),
        attachment_quota: 0,
        wait_timeout: Duration::from_mins(1),
    };
    let ledger = Ledger::new(limits, Permits::fixed(1));
    let task = ledger.attach("gpu_check").query("copies").task(0);
    let copier = Copier::new(Arc::clone(&bench.stream), slabs);
    let start = Instant::now();
    copier.upload(&task, [&*host], region)?;
    copier.wait()?;
    report.add("copy, slabs to device", Unit::Rate, rate(region.bytes(), start.elapsed()), None);
    let start = Instant::now();
    copier.download(&task, region, host)?;
    report.add("copy, device to slabs", Unit::Rate, rate(region.bytes(), start.elapsed()), None);
    Ok(())
}
