//! Device memory by address and length.

use super::DeviceError;
use crate::memory::ledger::DeviceBuffer;
use crate::memory::pool::DeviceMemory;

/// Bytes of device memory. It owns nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    address: u64,
    bytes: u64,
}

/// Memory of a pool, for as long as that is held.
impl From<&DeviceMemory> for Region {
    fn from(memory: &DeviceMemory) -> Self {
        Region::new(memory.address(), memory.bytes())
    }
}

/// Memory of a query, for as long as that is held.
impl From<&DeviceBuffer> for Region {
    fn from(buffer: &DeviceBuffer) -> Self {
        Region::new(buffer.address(), buffer.bytes())
    }
}

impl Region {
    /// Memory that the driver has given out.
    pub fn new(address: u64, bytes: u64) -> Self {
        Region { address, bytes }
    }

    /// Where it begins.
    pub fn address(self) -> u64 {
        self.address
    }

    /// Its length.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// A part of it.
    pub fn part(self, offset: u64, bytes: u64) -> Result<Self, DeviceError> {
        let needed = offset.saturating_add(bytes);
        if needed > self.bytes {
            return Err(DeviceError::TooSmall { what: "a part", bytes: self.bytes, needed });
        }
        Ok(Region { address: self.address + offset, bytes })
    }

    /// Its address, if it has room for so many elements of so many bytes.
    pub(crate) fn holds(
        self,
        what: &'static str,
        count: impl TryInto<u64>,
        width: u64,
    ) -> Result<u64, DeviceError> {
        let count = count.try_into().unwrap_or(u64::MAX);
        let needed = count.saturating_mul(width);
        if needed > self.bytes {
            return Err(DeviceError::TooSmall { what, bytes: self.bytes, needed });
        }
        Ok(self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_checked() {
        let region = Region::new(0x1000, 100);
        assert_eq!(region.part(90, 10), Ok(Region::new(0x105A, 10)));
        assert!(region.part(90, 11).is_err());
        assert!(region.part(u64::MAX, 2).is_err());
        assert_eq!(region.holds("values", 25u32, 4), Ok(0x1000));
        let error = region.holds("values", 26usize, 4).expect_err("too small");
        assert_eq!(error.to_string(), "values takes 104 bytes, and the region has 100");
        assert!(region.holds("values", u64::MAX, 2).is_err());
    }
}
