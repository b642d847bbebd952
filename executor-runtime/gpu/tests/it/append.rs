//! Bitmaps put together.

use creel_gpu::device::DeviceError;
use creel_gpu::kernels::column::bitmap_bytes;
use creel_gpu::primitives::append;

use crate::gpu::{Gpu, Random, on};

const COUNTS: [u32; 8] = [0, 1, 31, 32, 33, 1023, 1025, 100_003];

/// Bit `place` of a bitmap of words.
fn bit(words: &[u32], place: u32) -> bool {
    words[place as usize / 32] >> (place % 32) & 1 == 1
}

/// The words that have so many bits.
fn some_words(random: &mut Random, bits: u32) -> Vec<u32> {
    (0..bits.div_ceil(32)).map(|_| random.next() as u32).collect()
}

fn check(gpu: &Gpu, random: &mut Random, from: Option<u32>, count: u32, to_first: u32) {
    let source = from.map(|first| (some_words(random, first + count), first));
    let before = some_words(random, to_first + count + 70);
    let to = gpu.put(&before);
    let region = source.as_ref().map(|(words, first)| (gpu.put(words), *first));
    append::bits(&gpu.stream, region, count, to, to_first).expect("bits");
    let expected: Vec<bool> = (0..before.len() as u32 * 32)
        .map(|place| match (place.checked_sub(to_first), &source) {
            (Some(row), Some((words, first))) if row < count => bit(words, first + row),
            (Some(row), None) if row < count => true,
            _ => bit(&before, place),
        })
        .collect();
    let got = gpu.get_bits(to, expected.len());
    assert!(got == expected, "{count} bits from {from:?} to {to_first}");
}

#[test]
fn bits_from_any_place_to_any_other() {
    on("t4", |gpu| {
        let mut random = Random::new(6);
        for to_first in 0..=33 {
            for count in COUNTS {
                check(gpu, &mut random, None, count, to_first);
            }
            for first in 0..=33 {
                // The longest at a few places alone: what differs is in the first and last words.
                for count in COUNTS.into_iter().filter(|&it| it < 100_000 || first == to_first) {
                    check(gpu, &mut random, Some(first), count, to_first);
                }
            }
        }
        check(gpu, &mut random, Some(31), 100_003, 1);
        check(gpu, &mut random, Some(1), 100_003, 31);
    });
}

#[test]
fn pieces_that_share_words_follow_each_other() {
    on("t4", |gpu| {
        let mut random = Random::new(7);
        let pieces: Vec<u32> = (0..200).map(|_| random.below(90) as u32).collect();
        let rows: u32 = pieces.iter().sum();
        let to = gpu.room(bitmap_bytes(rows as usize) as u64);
        let mut expected = vec![];
        for (place, &count) in pieces.iter().enumerate() {
            let first = random.below(40) as u32;
            let words = some_words(&mut random, first + count);
            let source = (place % 3 != 0).then(|| (gpu.put(&words), first));
            append::bits(&gpu.stream, source, count, to, expected.len() as u32).expect("bits");
            expected.extend((0..count).map(|row| source.is_none() || bit(&words, first + row)));
        }
        assert!(gpu.get_bits(to, rows as usize) == expected);
    });
}

#[test]
fn bits_beyond_a_bitmap_are_refused() {
    on("t4", |gpu| {
        let (from, to) = (gpu.put(&[0u32; 2]), gpu.put(&[0u32; 2]));
        let append = |first, count, to_first| {
            append::bits(&gpu.stream, Some((from, first)), count, to, to_first)
        };
        append(10, 54, 10).expect("the last bits");
        for (first, count, to_first) in [(11, 54, 0), (0, 54, 11), (u32::MAX, u32::MAX, 0)] {
            let refused = append(first, count, to_first);
            assert!(matches!(refused, Err(DeviceError::TooSmall { .. })), "{refused:?}");
        }
    });
}
