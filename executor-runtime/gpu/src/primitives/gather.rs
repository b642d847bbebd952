//! Rows by their indices (`kernels/gather/gather.cu`).

use crate::device::{Arguments, DeviceError, Region, Stream};
use crate::kernels::column::bitmap_bytes;

use super::{THREADS, blocks};

/// The rows to take, in 32 bits each; [`super::NO_ROW`] for null.
#[derive(Clone, Copy, Debug)]
pub struct Indices {
    /// Where they are.
    pub region: Region,
    /// How many.
    pub count: u32,
}

impl Indices {
    fn address(self) -> Result<u64, DeviceError> {
        self.region.holds("indices", self.count, 4)
    }
}

/// Values of 1, 2, 4, 8 or 16 bytes: `to[i] = from[indices[i]]`, or 0. An index is a row of `from`.
pub fn values(
    stream: &Stream,
    width: usize,
    from: Region,
    indices: Indices,
    to: Region,
) -> Result<(), DeviceError> {
    let kernel = match width {
        1 => "gather_8",
        2 => "gather_16",
        4 => "gather_32",
        8 => "gather_64",
        16 => "gather_128",
        other => {
            return Err(DeviceError::TooMany {
                what: "bytes of a value",
                count: other as u64,
                limit: 16,
            });
        }
    };
    Arguments::new()
        .u64(from.address())
        .u64(indices.address()?)
        .u32(indices.count)
        .u64(to.holds("gathered values", indices.count, width as u64)?)
        .launch(stream, kernel, blocks(indices.count), THREADS, 0)
}

/// Bits of a bitmap whose first row is bit `first`: of a Bool column, or validity. Without one, all
/// are set.
pub fn bits(
    stream: &Stream,
    from: Option<(Region, u32)>,
    indices: Indices,
    to: Region,
) -> Result<(), DeviceError> {
    let (words, first) = from.map_or((0, 0), |(region, first)| (region.address(), first));
    Arguments::new()
        .u64(words)
        .u32(first)
        .u64(indices.address()?)
        .u32(indices.count)
        .u64(to.holds("gathered bits", bitmap_bytes(indices.count as usize), 1)?)
        .launch(stream, "gather_bits", blocks(indices.count), THREADS, 0)
}

/// Where a string column's rows are, 16 bytes each: of the column whose bytes
/// ([`crate::kernels::column::Column::to_bytes`]) lie in `column`.
pub fn texts(
    stream: &Stream,
    column: Region,
    indices: Indices,
    to: Region,
) -> Result<(), DeviceError> {
    Arguments::new()
        .u64(column.holds("a column", 1u32, 56)?)
        .u64(indices.address()?)
        .u32(indices.count)
        .u64(to.holds("texts", indices.count, 16)?)
        .launch(stream, "gather_texts", blocks(indices.count), THREADS, 0)
}

/// Lengths of strings, in 32 bits each: what [`super::scan`] makes offsets of.
pub fn text_lengths(
    stream: &Stream,
    texts: Region,
    count: u32,
    lengths: Region,
) -> Result<(), DeviceError> {
    Arguments::new()
        .u64(texts.holds("texts", count, 16)?)
        .u32(count)
        .u64(lengths.holds("lengths", count, 4)?)
        .launch(stream, "text_lengths", blocks(count), THREADS, 0)
}

/// The strings themselves, one after the other, as the offsets say. `bytes` has room for them all.
pub fn text_bytes(
    stream: &Stream,
    texts: Region,
    count: u32,
    offsets: Region,
    bytes: Region,
) -> Result<(), DeviceError> {
    Arguments::new()
        .u64(texts.holds("texts", count, 16)?)
        .u32(count)
        .u64(offsets.holds("offsets", u64::from(count) + 1, 4)?)
        .u64(bytes.address())
        .launch(stream, "text_bytes", blocks(count), THREADS, 0)
}
