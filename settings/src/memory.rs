//! An amount of memory: a size, or a share of what there is.

use crate::size::Size;
use crate::value::{Kind, Value};

/// A size such as `4 GiB`, or a percentage such as `60%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// That much.
    Bytes(Size),
    /// That share, from 1 to 100.
    Percent(u8),
}

impl Memory {
    /// Bytes, where there are `total` bytes. A size is taken as it is, even if it is more.
    pub fn of(self, total: u64) -> u64 {
        match self {
            Self::Bytes(size) => size.0,
            Self::Percent(percent) => (u128::from(total) * u128::from(percent) / 100) as u64,
        }
    }
}

impl Value for Memory {
    const KIND: Kind = Kind::Memory;

    fn parse(text: &str, _: &Kind) -> Option<Self> {
        let Some(percent) = text.trim().strip_suffix('%') else {
            return text.parse().ok().map(Self::Bytes);
        };
        let percent = percent.trim_end().parse().ok()?;
        (1..=100).contains(&percent).then_some(Self::Percent(percent))
    }

    fn text(&self) -> String {
        match self {
            Self::Bytes(size) => size.to_string(),
            Self::Percent(percent) => format!("{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shares() {
        let parse = |text| Memory::parse(text, &Kind::Memory);
        assert_eq!(parse("60%"), Some(Memory::Percent(60)));
        assert_eq!(parse("100 %"), Some(Memory::Percent(100)));
        assert_eq!(parse("4 GiB"), Some(Memory::Bytes(Size(4 << 30))));
        for text in ["0%", "101%", "-5%", "%", "5.5%", "60% of it", ""] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_share_of_the_largest_total_fits() {
        assert_eq!(Memory::Percent(100).of(u64::MAX), u64::MAX);
        assert_eq!(Memory::Percent(60).of(1000), 600);
        assert_eq!(Memory::Bytes(Size(5)).of(1), 5);
    }
}
