//! Sizes in bytes: `64 MiB`, `10g`, `1.5GiB`, `4096`.

use std::fmt;
use std::str::FromStr;

use crate::value::{Kind, Value};

/// A number of bytes.
///
/// Every unit is binary, as Spark's are: `k`, `kb` and `kib` are 1024 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

const UNITS: [(&str, u32); 6] =
    [("EiB", 60), ("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// More digits than this after the point say nothing about whole bytes.
const MAX_FRACTION_DIGITS: usize = 18;

/// The text is no size, or one of more than `u64::MAX` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSize;

impl FromStr for Size {
    type Err = NoSize;

    /// A number, which may have a fraction, and a unit; no unit means bytes. Case and the space
    /// between them are free. A fraction of a byte is dropped.
    fn from_str(text: &str) -> Result<Self, NoSize> {
        let text = text.trim();
        let end = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let shift = shift(unit.trim_start()).ok_or(NoSize)?;
        let (whole, fraction) = match number.split_once('.') {
            Some((whole, fraction)) if !fraction.is_empty() && shift > 0 => (whole, fraction),
            Some(_) => return Err(NoSize),
            None => (number, ""),
        };
        if fraction.len() > MAX_FRACTION_DIGITS || fraction.contains('.') {
            return Err(NoSize);
        }
        let whole = u128::from(whole.parse::<u64>().map_err(|_| NoSize)?) << shift;
        let part = match fraction {
            "" => 0,
            // At most 10^18 * 2^60: far from the end of 128 bits.
            _ => {
                (fraction.parse::<u128>().map_err(|_| NoSize)? << shift)
                    / 10_u128.pow(fraction.len() as u32)
            }
        };
        u64::try_from(whole + part).map(Self).map_err(|_| NoSize)
    }
}

/// The power of two that a unit stands for.
fn shift(unit: &str) -> Option<u32> {
    let unit = unit.to_ascii_lowercase();
    if matches!(unit.as_str(), "" | "b") {
        return Some(0);
    }
    let prefix = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit);
    UNITS.iter().find(|(name, _)| name[..1].eq_ignore_ascii_case(prefix)).map(|(_, shift)| *shift)
}

impl fmt::Display for Size {
    /// In the largest unit that gives a whole number, so that nothing is lost.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, shift)| self.0 > 0 && self.0.is_multiple_of(1 << shift));
        match unit {
            Some((unit, shift)) => write!(f, "{} {unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Value for Size {
    const KIND: Kind = Kind::Size;

    fn parse(text: &str, _: &Kind) -> Option<Self> {
        text.parse().ok()
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn notations() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("17 b", 17),
            ("64 MiB", 64 << 20),
            ("64MB", 64 << 20),
            ("10g", 10 << 30),
            ("1.5GiB", 3 << 29),
            (" 2 t ", 2 << 40),
            ("1kib", 1024),
            ("0.1k", 102),
            ("15 EiB", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size() {
        for text in [
            "",
            "MiB",
            "-1",
            "+1",
            "1.5",
            "1.",
            "1.k",
            ".5k",
            "1.2.3k",
            "1 x",
            "1 kk",
            "1ibib",
            "64 M i B",
            "16 EiB",
            "18446744073709551616",
            "99999999999g",
            "1e3",
            "1_000",
            "١",
            "0.0000000000000000001g",
        ] {
            assert_eq!(text.parse::<Size>(), Err(NoSize), "{text}");
        }
    }

    #[test]
    fn display_takes_the_largest_whole_unit() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1 KiB"),
            (3 << 29, "1536 MiB"),
            (100 << 30, "100 GiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn round_trip(bytes: u64, shift in 0_u32..60) {
            for size in [Size(bytes), Size(bytes >> shift << shift)] {
                prop_assert_eq!(size.to_string().parse(), Ok(size));
            }
        }

        #[test]
        fn any_text_is_taken_or_refused(text in "[0-9. ]{0,25}[ a-zA-Zµ]{0,4}") {
            if let Ok(size) = text.parse::<Size>() {
                prop_assert_eq!(size.to_string().parse(), Ok(size));
            }
        }
    }
}
