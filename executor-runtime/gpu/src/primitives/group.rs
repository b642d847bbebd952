//! Rows by their keys (`kernels/hash/hash.cu`, `kernels/aggregate/group.cu`).
//!
//! Keys are columns, described one after the other in device memory
//! ([`crate::kernels::column::Column::to_bytes`]); null is a key like others.

use crate::device::{Arguments, DeviceError, Region, Stream};
use crate::kernels::column::bitmap_bytes;

use super::filter::{self, Predicate};
use super::{THREADS, blocks};

/// The columns by which rows belong together.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// Their descriptions.
    pub columns: Region,
    /// How many they are.
    pub count: u32,
    /// Rows of each.
    pub rows: u32,
}

impl Keys {
    fn arguments(&self) -> Result<Arguments, DeviceError> {
        Ok(Arguments::new()
            .u64(self.columns.holds("keys", self.count, 56)?)
            .u32(self.count)
            .u32(self.rows))
    }
}

/// A hash of 32 bits for each row.
pub fn hash(stream: &Stream, keys: &Keys, hashes: Region) -> Result<(), DeviceError> {
    let hashes = hashes.holds("hashes", keys.rows, 4)?;
    keys.arguments()?.u64(hashes).launch(stream, "hash_rows", blocks(keys.rows), THREADS, 0)
}

/// The memory of a grouping. All but the table has a size by rows.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// [`hash`]'s result.
    pub hashes: Region,
    /// 8 bytes for each slot; their number is a power of two.
    pub table: Region,
    /// 4 bytes for each row: at the end, the number of its group.
    pub ids: Region,
    /// A bitmap of rows.
    pub leaders: Region,
    /// What [`filter::count`] takes for so many rows, and at least 8 bytes.
    pub workspace: Region,
}

/// How a grouping ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// There are so many groups.
    Groups(u32),
    /// The table was too small; how many slots to try with.
    TableFull(u64),
}

/// Slots for so many groups: at most half of them are taken.
pub fn slots(groups: u32) -> u64 {
    (u64::from(groups) * 2).next_power_of_two().max(64)
}

/// Finds the groups. Then [`number`] names them.
pub fn find(
    stream: &Stream,
    keys: &Keys,
    slots: u64,
    memory: &Memory,
) -> Result<Grouping, DeviceError> {
    if !slots.is_power_of_two() || slots > 1 << 31 {
        return Err(DeviceError::TooMany {
            what: "slots of a table",
            count: slots,
            limit: 1 << 31,
        });
    }
    let rows = keys.rows;
    let table = memory.table.part(0, slots * 8)?;
    stream.fill(table, 0xFF)?;
    let counter = memory.workspace.part(0, 8)?;
    stream.fill(counter, 0)?;
    let limit = (slots / 2) as u32;
    keys.arguments()?
        .u64(memory.hashes.holds("hashes", rows, 4)?)
        .u64(table.address())
        .u32(slots as u32)
        .u32(limit)
        .u64(counter.address())
        .u64(memory.ids.holds("places", rows, 4)?)
        .launch(stream, "group_insert", blocks(rows), THREADS, 0)?;
    if stream.download_u64(counter)? > u64::from(limit) {
        return Ok(Grouping::TableFull(slots * 8));
    }
    Arguments::new()
        .u64(table.address())
        .u64(memory.ids.address())
        .u32(rows)
        .u64(memory.leaders.holds("leaders", bitmap_bytes(rows as usize), 1)?)
        .launch(stream, "group_leaders", blocks(rows), THREADS, 0)?;
    filter::count(stream, &leading(rows, memory), memory.workspace).map(Grouping::Groups)
}

fn leading(rows: u32, memory: &Memory) -> Predicate {
    Predicate { truth: memory.leaders, validity: None, rows }
}

/// The first row of each group, in order: groups are numbered as they first appear. Its keys are the
/// group's. Then each row's group is in [`Memory::ids`].
pub fn number(
    stream: &Stream,
    keys: &Keys,
    groups: u32,
    memory: &Memory,
    leaders: Region,
) -> Result<(), DeviceError> {
    let rows = keys.rows;
    filter::rows(stream, &leading(rows, memory), memory.workspace, groups, leaders)?;
    let (table, ids) = (memory.table.address(), memory.ids.address());
    Arguments::new().u64(leaders.address()).u32(groups).u64(ids).u64(table).launch(
        stream,
        "group_number",
        blocks(groups),
        THREADS,
        0,
    )?;
    Arguments::new().u64(table).u64(ids).u32(rows).u64(ids).launch(
        stream,
        "group_ids",
        blocks(rows),
        THREADS,
        0,
    )
}
