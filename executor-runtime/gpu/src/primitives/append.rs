//! Batches put together (`kernels/gather/gather.cu`): their values are copies; bitmaps, which begin
//! and end within words, are not.

use crate::device::{Arguments, DeviceError, Region, Stream};
use crate::kernels::column::bitmap_bytes;

use super::THREADS;

/// Bits of a word.
const WORD: u32 = 32;

/// Copies `count` bits, from bit `first` of a bitmap, to bit `to_first` of another, whose other bits
/// stay as they are. Without a bitmap, the bits are set. The two have no word in common.
pub fn bits(
    stream: &Stream,
    from: Option<(Region, u32)>,
    count: u32,
    to: Region,
    to_first: u32,
) -> Result<(), DeviceError> {
    let word_of = |what, region: Region, first: u32| {
        let bits = first as usize + count as usize;
        let address = region.holds(what, bitmap_bytes(bits), 1)?;
        Ok(address + u64::from(first / WORD * 4))
    };
    let words = from.map(|(region, first)| word_of("a bitmap", region, first)).transpose()?;
    let first = from.map_or(0, |(_, first)| first % WORD);
    let to = word_of("appended bits", to, to_first)?;
    let to_first = to_first % WORD;
    let touched = (u64::from(to_first) + u64::from(count)).div_ceil(WORD.into());
    let blocks = if count == 0 { 0 } else { touched.div_ceil(THREADS.into()) };
    Arguments::new().u64(words.unwrap_or(0)).u32(first).u32(count).u64(to).u32(to_first).launch(
        stream,
        "append_bits",
        blocks,
        THREADS,
        0,
    )
}
