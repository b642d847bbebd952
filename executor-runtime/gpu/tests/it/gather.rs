//! Rows by index.

use creel_gpu::kernels::column::{Layout, bitmap_bytes};
use creel_gpu::primitives::gather::{self, Indices};
use creel_gpu::primitives::{NO_ROW, scan};

use crate::gpu::{Gpu, Number, Random, SIZES, on};
use crate::rows::{Rows, Value};

fn some_indices(random: &mut Random, count: usize, rows: u64) -> Vec<u32> {
    (0..count).map(|_| if random.one_in(5) { NO_ROW } else { random.below(rows) as u32 }).collect()
}

fn check_width<T: Number + Default + PartialEq>(gpu: &Gpu, of: impl Fn(u64) -> T) {
    let mut random = Random::new(3);
    let values: Vec<T> = (0..777).map(|_| of(random.next())).collect();
    let from = gpu.put(&values);
    for size in SIZES {
        let indices = some_indices(&mut random, size, 777);
        let region = Indices { region: gpu.put(&indices), count: size as u32 };
        let to = gpu.room((size * size_of::<T>()) as u64);
        gather::values(&gpu.stream, size_of::<T>(), from, region, to).expect("a gather");
        let expected: Vec<T> = indices
            .iter()
            .map(|&it| values.get(it as usize).copied().unwrap_or_default())
            .collect();
        assert!(gpu.get::<T>(to, size) == expected, "{size} of {}", size_of::<T>());
    }
}

#[test]
fn values_of_every_width() {
    on("t4", |gpu| {
        check_width(gpu, |it| it as u8);
        check_width(gpu, |it| it as u16);
        check_width(gpu, |it| it as u32);
        check_width(gpu, |it| it);
        check_width(gpu, |it| u128::from(it) << 40 | u128::from(it));
    });
}

#[test]
fn bits_at_any_place() {
    on("t4", |gpu| {
        let mut random = Random::new(4);
        for first in [0, 1, 31, 32, 45] {
            let bits: Vec<bool> = (0..300).map(|_| random.one_in(2)).collect();
            let from = gpu.put_bits(first, bits.iter().copied());
            for size in SIZES {
                let indices = some_indices(&mut random, size, 300);
                let region = Indices { region: gpu.put(&indices), count: size as u32 };
                let to = gpu.room(bitmap_bytes(size) as u64);
                gather::bits(&gpu.stream, Some((from, first)), region, to).expect("a gather");
                let expected: Vec<bool> =
                    indices.iter().map(|&it| bits.get(it as usize) == Some(&true)).collect();
                assert!(gpu.get_bits(to, size) == expected, "{size} from {first}");
                gather::bits(&gpu.stream, None, region, to).expect("a gather");
                let there: Vec<bool> = indices.iter().map(|&it| it != NO_ROW).collect();
                assert!(gpu.get_bits(to, size) == there, "{size} without bits");
            }
        }
    });
}

#[test]
fn strings_plain_and_by_dictionary() {
    on("t4", |gpu| {
        let mut random = Random::new(5);
        let layouts = [
            Layout::String,
            Layout::Dictionary8,
            Layout::Dictionary16,
            Layout::Dictionary32,
            Layout::Dictionary64,
        ];
        for layout in layouts {
            let values = (0..200)
                .map(|_| {
                    let length = [0, 1, 5, 31, 32, 33, 300][random.below(7) as usize];
                    let letter = char::from(b'a' + random.below(4) as u8);
                    let text = letter.to_string().repeat(length);
                    (!random.one_in(4)).then_some(Value::Text(text))
                })
                .collect();
            let rows = Rows::new(layout, values);
            let column = gpu.put(&rows.put(gpu).to_bytes());
            for size in SIZES.into_iter().filter(|&size| size < 50_000) {
                let indices = some_indices(&mut random, size, 200);
                let count = size as u32;
                let region = Indices { region: gpu.put(&indices), count };
                let texts = gpu.room(16 * size as u64);
                gather::texts(&gpu.stream, column, region, texts).expect("texts");
                let lengths = gpu.room(4 * size as u64);
                gather::text_lengths(&gpu.stream, texts, count, lengths).expect("lengths");
                let workspace = gpu.room(scan::workspace_bytes(size as u64));
                let total = scan::sum(&gpu.stream, lengths, size as u64, workspace).expect("a sum");
                let offsets = gpu.room(4 * (size as u64 + 1));
                scan::offsets(&gpu.stream, lengths, size as u64, workspace, offsets)
                    .expect("offsets");
                let bytes = gpu.room(total);
                gather::text_bytes(&gpu.stream, texts, count, offsets, bytes).expect("bytes");

                let expected: Vec<&str> = indices
                    .iter()
                    .map(|&it| match rows.values.get(it as usize) {
                        Some(Some(Value::Text(text))) => text.as_str(),
                        _ => "",
                    })
                    .collect();
                assert_eq!(gpu.get::<u8>(bytes, total as usize), expected.concat().as_bytes());
                let offsets = gpu.get::<i32>(offsets, size + 1);
                let lengths: Vec<usize> =
                    offsets.windows(2).map(|pair| (pair[1] - pair[0]) as usize).collect();
                assert_eq!(lengths, expected.iter().map(|it| it.len()).collect::<Vec<_>>());
            }
        }
    });
}
