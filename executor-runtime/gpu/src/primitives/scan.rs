//! Prefix sums (`kernels/scan/scan.cu`).

use crate::device::{Arguments, DeviceError, Region, Stream};

use super::THREADS;

/// Elements of a block.
const TILE: u64 = 8 * THREADS as u64;

/// Memory for sums of tiles and their total, in bytes.
pub fn workspace_bytes(count: u64) -> u64 {
    count.div_ceil(TILE) * 8 + 8
}

/// The sum of the numbers of 32 bits. The workspace is then ready for [`offsets`].
pub fn sum(
    stream: &Stream,
    values: Region,
    count: u64,
    workspace: Region,
) -> Result<u64, DeviceError> {
    let tiles = count.div_ceil(TILE);
    let values = values.holds("numbers to add", count, 4)?;
    let (sums, total) = (workspace.part(0, tiles * 8)?, workspace.part(tiles * 8, 8)?);
    Arguments::new().u64(values).u64(count).u64(sums.address()).launch(
        stream,
        "scan_reduce",
        tiles,
        THREADS,
        0,
    )?;
    spine(stream, sums, tiles, total)?;
    stream.download_u64(total)
}

/// Each number becomes the sum of those before it; the sum of all goes to `total`.
pub(super) fn spine(
    stream: &Stream,
    sums: Region,
    count: u64,
    total: Region,
) -> Result<(), DeviceError> {
    let sums = sums.holds("sums of tiles", count, 8)?;
    let total = total.holds("a total", 1u64, 8)?;
    Arguments::new().u64(sums).u64(count).u64(total).launch(stream, "scan_spine", 1, THREADS, 0)
}

/// Arrow's offsets for elements of these lengths: `count + 1` numbers of 32 bits. After [`sum`], which
/// must have been less than 2³¹.
pub fn offsets(
    stream: &Stream,
    values: Region,
    count: u64,
    workspace: Region,
    offsets: Region,
) -> Result<(), DeviceError> {
    let tiles = count.div_ceil(TILE);
    let (sums, total) = (workspace.part(0, tiles * 8)?, workspace.part(tiles * 8, 8)?);
    Arguments::new()
        .u64(values.holds("lengths", count, 4)?)
        .u64(count)
        .u64(sums.address())
        .u64(total.address())
        .u64(offsets.holds("offsets", count + 1, 4)?)
        .launch(stream, "scan_offsets", tiles.max(1), THREADS, 0)
}
