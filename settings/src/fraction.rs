//! Shares: `0.9`, `1`.

use crate::value::{Kind, Value};

/// A number from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Fraction(f64);

// It is never NaN.
impl Eq for Fraction {}

impl Fraction {
    /// The fraction of that value; `None` where it is not from 0 to 1.
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then_some(Self(value))
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// The share of so many bytes, rounded down.
    pub fn of(self, bytes: u64) -> u64 {
        (self.0 * bytes as f64) as u64
    }
}

impl Value for Fraction {
    const KIND: Kind = Kind::Fraction;

    fn parse(text: &str, _: &Kind) -> Option<Self> {
        let text = text.trim();
        // Words such as `inf` are numbers to Rust, and exponents are none to TOML's readers.
        text.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit()).then_some(())?;
        Self::new(text.parse().ok()?)
    }

    fn text(&self) -> String {
        self.0.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_is_from_0_to_1() {
        for (text, value) in [("0", 0.0), ("1", 1.0), ("1.0", 1.0), ("0.25", 0.25), (" .5 ", 0.5)] {
            assert_eq!(Fraction::parse(text, &Kind::Fraction), Some(Fraction(value)), "{text}");
        }
        for text in ["", "-0.1", "1.01", "NaN", "inf", "1e-1", "90%", ".", "0.1.2"] {
            assert_eq!(Fraction::parse(text, &Kind::Fraction), None, "{text}");
        }
        assert_eq!(Fraction(0.9).text(), "0.9");
    }

    #[test]
    fn a_share_is_rounded_down() {
        assert_eq!(Fraction(0.9).of(25_396_838_400), 22_857_154_560);
        assert_eq!(Fraction(0.5).of(3), 1);
    }
}
