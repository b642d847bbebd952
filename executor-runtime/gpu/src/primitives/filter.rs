//! From a predicate's bitmap to the rows it selects (`kernels/filter/filter.cu`).

use crate::device::{Arguments, DeviceError, Region, Stream};
use crate::kernels::column::bitmap_bytes;

use super::{THREADS, scan};

/// Rows of a block.
const TILE: u32 = 32 * THREADS;

/// A predicate's result for every row: bitmaps that begin with the first row, of whole words.
#[derive(Clone, Copy, Debug)]
pub struct Predicate {
    /// Whether it is true.
    pub truth: Region,
    /// Whether it is not null; absent if it never is.
    pub validity: Option<Region>,
    /// How many rows there are.
    pub rows: u32,
}

impl Predicate {
    fn arguments(&self) -> Result<Arguments, DeviceError> {
        let bytes = bitmap_bytes(self.rows as usize);
        let validity = self.validity.map(|it| it.holds("a predicate's validity", bytes, 1));
        Ok(Arguments::new()
            .u64(self.truth.holds("a predicate", bytes, 1)?)
            .u64(validity.transpose()?.unwrap_or(0))
            .u32(self.rows))
    }

    fn tiles(&self) -> u64 {
        u64::from(self.rows.div_ceil(TILE))
    }

    /// Memory for counts of tiles and their total, in bytes.
    pub fn workspace_bytes(&self) -> u64 {
        self.tiles() * 8 + 8
    }
}

/// How many rows are selected: those where the predicate is true and not null. The workspace is
/// then ready for [`rows`].
pub fn count(
    stream: &Stream,
    predicate: &Predicate,
    workspace: Region,
) -> Result<u32, DeviceError> {
    let tiles = predicate.tiles();
    let (counts, total) = (workspace.part(0, tiles * 8)?, workspace.part(tiles * 8, 8)?);
    predicate.arguments()?.u64(counts.address()).launch(
        stream,
        "filter_count",
        tiles,
        THREADS,
        0,
    )?;
    scan::spine(stream, counts, tiles, total)?;
    stream.download_u64(total).map(|count| count as u32)
}

/// The selected rows' numbers, in order, in 32 bits each. After [`count`], which says how many.
pub fn rows(
    stream: &Stream,
    predicate: &Predicate,
    workspace: Region,
    selected: u32,
    selection: Region,
) -> Result<(), DeviceError> {
    let tiles = predicate.tiles();
    predicate
        .arguments()?
        .u64(workspace.holds("counts of tiles", tiles, 8)?)
        .u64(selection.holds("a selection", selected, 4)?)
        .launch(stream, "filter_rows", tiles, THREADS, 0)
}
