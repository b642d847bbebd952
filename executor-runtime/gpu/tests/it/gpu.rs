//! A simulated node for each test, and device memory for it.

use std::sync::Arc;

use creel_gpu::device::{Context, Device, Driver, Region, Stream};
use cudarc::driver::result;
use simulated_cuda::harness;
use simulated_nvml::Node;

/// Set, the tests run on the first GPU that the machine's own driver shows, and those that need a
/// simulated one are skipped.
const REAL: &str = "CREEL_TEST_REAL_GPU";
/// Says to a process on a real GPU that it is to do the test.
const ALONE: &str = "CREEL_TEST_ALONE";

/// A node of one GPU.
pub(crate) const T4: &str = "[[gpu]]\nmodel = 't4'";
/// Nothing is done for so long, unless somebody waits for it.
pub(crate) const HELD: &[(&str, &str)] = &[("SIMULATED_GPU_HOLD_MS", "5000")];

/// Runs a test on a device of this model.
pub(crate) fn on(model: &str, test: impl Fn(&Gpu)) {
    on_device(harness::name_of(&test), &format!("[[gpu]]\nmodel = '{model}'"), &[], test);
}

/// Runs a test on a device that does nothing before somebody waits for it.
pub(crate) fn on_late(test: impl Fn(&Gpu)) {
    on_device(harness::name_of(&test), T4, HELD, test);
}

fn on_device(name: &str, topology: &str, variables: &[(&str, &str)], test: impl Fn(&Gpu)) {
    if std::env::var_os(REAL).is_some() {
        return on_the_real_one(name, test);
    }
    harness::named(name, topology, variables, |_| test(&Gpu::open()));
}

/// In a process of its own too: an error of a kernel is for good.
fn on_the_real_one(name: &str, test: impl Fn(&Gpu)) {
    if std::env::var_os(ALONE).is_some() {
        return test(&Gpu::open());
    }
    let output = harness::this_test(name).env(ALONE, "1").output().expect("this program");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
}

/// Runs a test on a simulated node, with more variables in its environment.
pub(crate) fn on_node(topology: &str, variables: &[(&str, &str)], test: impl Fn(&Node)) {
    if std::env::var_os(REAL).is_some() {
        return println!("skipped: it needs a simulated GPU");
    }
    harness::named(harness::name_of(&test), topology, variables, test);
}

/// A device, a stream, and memory that ends with the process: each region is an allocation of its
/// own, as long as asked for.
pub(crate) struct Gpu {
    pub(crate) context: Arc<Context>,
    pub(crate) stream: Stream,
}

impl Gpu {
    pub(crate) fn open() -> Self {
        let driver = Driver::start().expect("the simulated driver");
        let device: Device = driver.devices().expect("devices").remove(0);
        let context = device.open().expect("a context");
        let stream = context.stream().expect("a stream");
        Gpu { context, stream }
    }

    /// Memory with anything in it.
    pub(crate) fn room(&self, bytes: u64) -> Region {
        // The driver's calls want the context to be the thread's, and any of it is.
        self.context.memory().expect("the device's memory");
        // SAFETY: it isn't freed.
        let address = unsafe { result::malloc_sync(bytes.max(1) as usize) }.expect("memory");
        Region::new(address, bytes)
    }

    pub(crate) fn put<T: Number>(&self, values: &[T]) -> Region {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.bytes()).collect();
        let region = self.room(bytes.len() as u64);
        self.stream.upload(&bytes, region).expect("an upload");
        region
    }

    pub(crate) fn get<T: Number>(&self, region: Region, count: usize) -> Vec<T> {
        let mut bytes = vec![0; count * size_of::<T>()];
        self.stream.download(region, &mut bytes).expect("a download");
        bytes.chunks_exact(size_of::<T>()).map(T::of).collect()
    }

    /// A bitmap of whole words, whose first bit is that of the number.
    pub(crate) fn put_bits(&self, first: u32, bits: impl IntoIterator<Item = bool>) -> Region {
        self.put(&words(first, bits))
    }

    pub(crate) fn get_bits(&self, region: Region, count: usize) -> Vec<bool> {
        let words = self.get::<u32>(region, count.div_ceil(32));
        (0..count).map(|bit| words[bit / 32] >> (bit % 32) & 1 == 1).collect()
    }
}

fn words(first: u32, bits: impl IntoIterator<Item = bool>) -> Vec<u32> {
    // What comes before is set, so that who reads it notices.
    let mut words = vec![];
    let bits = std::iter::repeat_n(true, first as usize).chain(bits);
    for (place, bit) in bits.enumerate() {
        if place % 32 == 0 {
            words.push(0);
        }
        words[place / 32] |= u32::from(bit) << (place % 32);
    }
    words
}

/// A number as it lies in memory.
pub(crate) trait Number: Copy {
    fn bytes(self) -> Vec<u8>;
    fn of(bytes: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Number for $type {
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn of(bytes: &[u8]) -> Self {
                <$type>::from_le_bytes(bytes.try_into().expect("its size"))
            }
        }
    )*};
}

numbers! { u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64 }

/// Sizes around those of warps, words, blocks and tiles.
pub(crate) const SIZES: [usize; 8] = [0, 1, 31, 32, 33, 1023, 1025, 100_003];

/// Numbers that look random, the same in every run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    /// True once in so many times.
    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
