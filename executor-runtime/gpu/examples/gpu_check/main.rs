//! What a GPU does with the crate's copies, pools and kernels: a table in Markdown on standard error,
//! one JSON object on standard output. For `scripts/gpu-check`; what it needs is a driver.
//!
//! ```text
//! gpu_check [ROWS]
//! ```

mod bench;
mod copies;
mod kernels;
#[path = "../pool/measure.rs"]
#[allow(dead_code, reason = "the result is written in another way")]
mod measure;
mod pools;
mod report;
#[path = "../pool/trace.rs"]
mod trace;

use std::error::Error;

use creel_gpu::device::Driver;

use self::bench::Bench;
use self::report::Report;

/// Rows of the inputs of kernels, if the memory is large enough.
const ROWS: u32 = 1 << 26;

/// The most that the inputs and outputs of a kernel take, in bytes for each row.
const ROW_BYTES: u64 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let wanted = std::env::args().nth(1).map(|rows| rows.parse()).transpose()?.unwrap_or(ROWS);
    let driver = Driver::start()?;
    let device = driver.devices()?.into_iter().next().ok_or("the driver shows no device")?;
    let context = device.open()?;
    let (free, _) = context.memory()?;
    let rows = wanted.min(u32::try_from(free / 2 / ROW_BYTES)?);
    let bench = Bench::new(&context)?;
    let mut report = Report::new(driver, &device, rows);
    // A copy of as many bytes as a column of 16 has.
    let copy = copies::run(&bench, u64::from(rows) * 16, &mut report)?;
    kernels::run(&bench, rows, copy, &mut report)?;
    drop(bench);
    pools::run(&context, (free / 2).min(8 << 30), &mut report)?;
    eprint!("{}", report.table());
    println!("{}", report.json());
    Ok(())
}
