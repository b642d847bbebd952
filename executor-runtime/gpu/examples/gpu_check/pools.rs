//! Pools of every kind, on the device's own memory.

use std::error::Error;
use std::sync::Arc;

use creel_gpu::device::Context;
use creel_settings::PoolKind;

use crate::bench::pool;
use crate::measure;
use crate::report::{Report, Unit};
use crate::trace::Kind;

/// Operations of a trace where each one is a call of the driver.
const CALLS: usize = 20_000;

/// Plays a trace that fits into so many bytes with each kind.
pub(crate) fn run(
    context: &Arc<Context>,
    bytes: u64,
    report: &mut Report,
) -> Result<(), Box<dyn Error>> {
    let stream = context.stream()?;
    for (name, kind) in [
        ("ARENA", PoolKind::Arena),
        ("DEFAULT", PoolKind::Default),
        ("ASYNC", PoolKind::Async),
        ("NONE", PoolKind::None),
    ] {
        for of in Kind::ALL {
            let mut traces = [of.trace(bytes / 2, 0)];
            if matches!(kind, PoolKind::Async | PoolKind::None) {
                traces[0].operations.truncate(CALLS);
            }
            let pool = pool(context, kind, bytes)?;
            let time = measure::time(&traces, |_, bytes| pool.allocate(bytes, stream.id()).ok());
            let instead = if pool.kind() == kind { "" } else { " (ARENA in its place)" };
            let name = format!("pool {name}{instead}, trace {}", of.name());
            report.add(&name, Unit::Time, time.wall, None);
            let failures = pool.statistics().failures;
            if failures > 0 {
                return Err(format!("{name}: {failures} allocations failed").into());
            }
            drop(pool);
            // What went back in the stream's order is there for the next pool.
            stream.synchronize()?;
        }
    }
    Ok(())
}
