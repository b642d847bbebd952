//! Durations: `500ms`, `30s`, `5m`, `1h 30m`, to the millisecond.

use std::time::Duration;

use crate::value::{Kind, Value};

/// Units and their milliseconds, largest first.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Parses whole numbers with units, the larger unit first, each at most once.
///
/// `None` for anything else, also for a number without a unit, and for what has more than
/// `u64::MAX` milliseconds.
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut units = UNITS.iter();
    let mut millis: u64 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let (_, scale) = units.find(|(name, _)| *name == unit)?;
        millis = millis.checked_add(number.parse::<u64>().ok()?.checked_mul(*scale)?)?;
        rest = after.trim_start();
    }
    Some(Duration::from_millis(millis))
}

/// Writes a duration as [`parse`] takes it; what is below a millisecond is dropped.
pub fn text(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if rest == 0 {
        return "0s".into();
    }
    let mut parts = Vec::new();
    for (unit, scale) in UNITS {
        if rest >= scale {
            parts.push(format!("{}{unit}", rest / scale));
            rest %= scale;
        }
    }
    parts.join(" ")
}

impl Value for Duration {
    const KIND: Kind = Kind::Duration { min: Duration::ZERO };

    fn parse(text: &str, kind: &Kind) -> Option<Self> {
        let duration = parse(text)?;
        match kind {
            Kind::Duration { min } => (duration >= *min).then_some(duration),
            _ => Some(duration),
        }
    }

    fn text(&self) -> String {
        text(*self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_duration_has_its_least() {
        let kind = Kind::Duration { min: Duration::from_millis(100) };
        assert_eq!(<Duration as Value>::parse("100ms", &kind), Some(Duration::from_millis(100)));
        for text in ["99ms", "0s"] {
            assert_eq!(<Duration as Value>::parse(text, &kind), None, "{text}");
        }
        let any = <Duration as Value>::parse("0s", &<Duration as Value>::KIND);
        assert_eq!(any, Some(Duration::ZERO));
    }

    #[test]
    fn notations() {
        for (text, millis) in [
            ("0s", 0),
            ("500ms", 500),
            ("30s", 30_000),
            ("30 s", 30_000),
            ("5m", 300_000),
            ("1h 30m", 5_400_000),
            (" 1h30m ", 5_400_000),
            ("2d 1ms", 172_800_001),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration() {
        for text in [
            "",
            " ",
            "30",
            "s",
            "1.5h",
            "-1s",
            "+1s",
            "5m 5m",
            "30m 1h",
            "1 fortnight",
            "5M",
            "1h,30m",
            "18446744073709551616ms",
            "213503982335d",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn round_trip(millis: u64, scale in prop::sample::select(vec![1, 1000, 60_000, 3_600_000])) {
            let duration = Duration::from_millis(millis / scale * scale);
            prop_assert_eq!(parse(&text(duration)), Some(duration));
        }

        #[test]
        fn any_text_is_taken_or_refused(given in "([0-9]{0,21} ?[a-zµ]{0,3} ?){0,4}") {
            if let Some(duration) = parse(&given) {
                prop_assert_eq!(parse(&text(duration)), Some(duration));
            }
        }
    }
}
