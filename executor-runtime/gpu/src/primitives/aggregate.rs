//! States of groups (`kernels/aggregate/`).
//!
//! An aggregate runs one of three ways, by the number of groups ([`Way`]). AVG is a sum and a count;
//! whether a group has a value at all says the count, whose bitmap ([`validity`]) is that of sums and
//! extremes too. Partial results merge by the same kernels: sums of sums, sums of counts, extremes of
//! extremes.

use crate::device::{Arguments, DeviceError, Region, Stream};
use crate::kernels::column::{Column, Layout, bitmap_bytes};

use super::{THREADS, blocks};

/// Rows with their groups.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// What is aggregated.
    pub column: Column,
    /// 4 bytes for each row: the number of its group. Absent if there is one group.
    pub ids: Option<Region>,
    /// How many rows there are.
    pub rows: u32,
    /// How many groups there are.
    pub groups: u32,
}

impl Input {
    fn arguments(&self) -> Result<Arguments, DeviceError> {
        let ids = self.ids.map(|it| it.holds("groups of rows", self.rows, 4)).transpose()?;
        let mut bytes = [0; 72];
        bytes[..56].copy_from_slice(&self.column.to_bytes());
        bytes[56..64].copy_from_slice(&ids.unwrap_or(0).to_le_bytes());
        bytes[64..68].copy_from_slice(&self.rows.to_le_bytes());
        bytes[68..].copy_from_slice(&self.groups.to_le_bytes());
        Ok(Arguments::new().bytes(&bytes))
    }
}

/// Groups whose states are held in registers.
const FEW: u32 = 8;

/// Where states are while rows are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In registers of each thread: a few groups.
    Few,
    /// In shared memory of each block.
    Shared,
    /// In global memory.
    Global,
}

impl Way {
    /// The fastest for so many groups of states of so many bytes.
    pub fn of(stream: &Stream, groups: u32, state_bytes: u32) -> Self {
        let room = stream.context().device().shared_memory;
        if groups <= FEW {
            Way::Few
        } else if u64::from(groups) * u64::from(state_bytes) <= u64::from(room) {
            Way::Shared
        } else {
            Way::Global
        }
    }
}

/// Blocks by the number of rows alone, never by the device: a sum of floats has the same shape
/// everywhere.
fn grid(rows: u32) -> u64 {
    const ROWS_OF_A_THREAD: u64 = 16;
    const MOST: u64 = 1024;
    u64::from(rows).div_ceil(u64::from(THREADS) * ROWS_OF_A_THREAD).min(MOST)
}

/// What is computed of each group. A state starts as all bits 0, that of [`Function::Min`] as all 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// Rows that aren't null: 8 bytes.
    Count,
    /// The sum of integers, wrapping at 64 bits: 8 bytes.
    SumI64,
    /// The sum of integers or decimals in 128 bits: 16 bytes.
    SumI128,
    /// The least value of 64 bits or less, as a key ([`extremes`]): 8 bytes.
    Min,
    /// The largest.
    Max,
}

impl Function {
    /// Bytes of a group's state.
    pub fn state_bytes(self) -> u32 {
        if self == Function::SumI128 { 16 } else { 8 }
    }

    fn kernel(self, way: Way) -> &'static str {
        match (self, way) {
            (Function::Count, Way::Few) => "count_few",
            (Function::Count, Way::Shared) => "count_shared",
            (Function::Count, Way::Global) => "count_global",
            (Function::SumI64, Way::Few) => "sum_i64_few",
            (Function::SumI64, Way::Shared) => "sum_i64_shared",
            (Function::SumI64, Way::Global) => "sum_i64_global",
            (Function::SumI128, Way::Few) => "sum_i128_few",
            (Function::SumI128, Way::Shared) => "sum_i128_shared",
            (Function::SumI128, Way::Global) => "sum_i128_global",
            (Function::Min, Way::Few) => "min_few",
            (Function::Min, Way::Shared) => "min_shared",
            (Function::Min, Way::Global) => "min_global",
            (Function::Max, Way::Few) => "max_few",
            (Function::Max, Way::Shared) => "max_shared",
            (Function::Max, Way::Global) => "max_global",
        }
    }
}

/// The states of all groups; what was in them is forgotten.
pub fn aggregate(
    stream: &Stream,
    function: Function,
    way: Way,
    input: &Input,
    states: Region,
) -> Result<(), DeviceError> {
    let bytes = u64::from(function.state_bytes()) * u64::from(input.groups);
    let states = states.part(0, bytes)?;
    stream.fill(states, if function == Function::Min { 0xFF } else { 0 })?;
    let shared = if way == Way::Shared { bytes } else { 0 };
    input.arguments()?.u64(states.address()).launch(
        stream,
        function.kernel(way),
        grid(input.rows),
        THREADS,
        shared as u32,
    )
}

/// Bytes of work that [`sum_floats`] takes.
pub fn float_workspace_bytes(way: Way, rows: u32, groups: u32) -> u64 {
    match way {
        Way::Few => grid(rows) * u64::from(groups) * 8,
        Way::Shared | Way::Global => u64::from(groups) * (16 + 4),
    }
}

/// Sums of floats, as doubles of 8 bytes: the same in every run, whatever the order of threads.
pub fn sum_floats(
    stream: &Stream,
    way: Way,
    input: &Input,
    workspace: Region,
    sums: Region,
) -> Result<(), DeviceError> {
    let groups = u64::from(input.groups);
    let sums = sums.part(0, groups * 8)?;
    let workspace = workspace.part(0, float_workspace_bytes(way, input.rows, input.groups))?;
    let launched = |arguments: Arguments, kernel, shared: u64| {
        arguments.launch(stream, kernel, grid(input.rows), THREADS, shared as u32)
    };
    if way == Way::Few {
        let partials = workspace.address();
        launched(input.arguments()?.u64(partials), "sum_f64_few", 0)?;
        return Arguments::new()
            .u64(partials)
            .u32(grid(input.rows) as u32)
            .u64(sums.address())
            .launch(stream, "sum_f64_total", groups, THREADS, 0);
    }
    stream.fill(workspace, 0)?;
    let (fixed, largest) = (workspace.address(), workspace.address() + groups * 16);
    let exponents = input.arguments()?.u64(largest);
    let fixed_sums = input.arguments()?.u64(largest).u64(fixed);
    if way == Way::Shared {
        launched(exponents, "exponents_shared", groups * 4)?;
        launched(fixed_sums, "sum_f64_shared", groups * 16)?;
    } else {
        launched(exponents, "exponents_global", 0)?;
        launched(fixed_sums, "sum_f64_global", 0)?;
    }
    Arguments::new().u64(fixed).u64(largest).u32(input.groups).u64(sums.address()).launch(
        stream,
        "sum_f64_finish",
        blocks(input.groups),
        THREADS,
        0,
    )
}

/// The rows of the least, or largest, decimals of 128 bits or strings, 4 bytes for each group;
/// [`super::NO_ROW`] for a group without a value. Among equals it is the first.
pub fn extreme_rows(
    stream: &Stream,
    largest: bool,
    input: &Input,
    rows: Region,
) -> Result<(), DeviceError> {
    let rows = rows.part(0, u64::from(input.groups) * 4)?;
    stream.fill(rows, 0xFF)?;
    input.arguments()?.u32(u32::from(largest)).u64(rows.address()).launch(
        stream,
        "extreme_rows",
        grid(input.rows),
        THREADS,
        0,
    )
}

/// The values of [`Function::Min`] or [`Function::Max`], in the column's layout.
pub fn extremes(
    stream: &Stream,
    states: Region,
    groups: u32,
    layout: Layout,
    values: Region,
) -> Result<(), DeviceError> {
    let bytes = match layout.width() {
        Some(width) => width as u64 * u64::from(groups),
        None => bitmap_bytes(groups as usize) as u64,
    };
    Arguments::new()
        .u64(states.holds("states", groups, 8)?)
        .u32(groups)
        .u32(layout as u32)
        .u64(values.holds("extremes", bytes, 1)?)
        .launch(stream, "extremes_finish", blocks(groups), THREADS, 0)
}

/// A bitmap of the groups whose count isn't 0.
pub fn validity(
    stream: &Stream,
    counts: Region,
    groups: u32,
    bitmap: Region,
) -> Result<(), DeviceError> {
    Arguments::new()
        .u64(counts.holds("counts", groups, 8)?)
        .u32(groups)
        .u64(bitmap.holds("a validity", bitmap_bytes(groups as usize), 1)?)
        .launch(stream, "counts_finish", blocks(groups), THREADS, 0)
}
