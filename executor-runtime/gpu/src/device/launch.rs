//! Arguments of kernels.

use std::ffi::c_void;

use super::{DeviceError, Stream};

/// What a kernel is called with, in order. Each lies at a multiple of 8 bytes.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    words: Vec<u64>,
    starts: Vec<usize>,
}

impl Arguments {
    /// No argument yet.
    #[must_use]
    pub fn new() -> Self {
        Arguments::default()
    }

    /// An address, or another number of 64 bits.
    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        self.starts.push(self.words.len());
        self.words.push(value);
        self
    }

    /// A number of 32 bits.
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        // The kernel reads the lower half, which comes first.
        self.u64(u64::from(value))
    }

    /// A struct, by its bytes.
    #[must_use]
    pub fn bytes(mut self, value: &[u8]) -> Self {
        self.starts.push(self.words.len());
        self.words.extend(value.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        }));
        self
    }

    /// Launches a kernel; it runs after what the stream has until now.
    pub(crate) fn launch(
        mut self,
        stream: &Stream,
        kernel: &'static str,
        blocks: u64,
        threads: u32,
        shared_bytes: u32,
    ) -> Result<(), DeviceError> {
        const LIMIT: u64 = (1 << 31) - 1;
        if blocks == 0 {
            return Ok(());
        }
        if blocks > LIMIT {
            return Err(DeviceError::TooMany { what: "blocks", count: blocks, limit: LIMIT });
        }
        let words = &mut self.words;
        let mut pointers: Vec<*mut c_void> =
            self.starts.iter().map(|&start| (&raw mut words[start]).cast()).collect();
        stream.launch(kernel, blocks as u32, threads, shared_bytes, &mut pointers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_lie_at_multiples_of_eight() {
        let arguments = Arguments::new().u32(7).bytes(&[1; 12]).u64(9);
        assert_eq!(arguments.starts, [0, 1, 3]);
        assert_eq!(arguments.words, [7, 0x0101_0101_0101_0101, 0x0101_0101, 9]);
    }
}
