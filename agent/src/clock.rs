//! The time of day, as the control API and the command line count it.

use std::time::{SystemTime, UNIX_EPOCH};

use arrow::temporal_conversions::timestamp_s_to_datetime;

/// Seconds since the Unix epoch; 0 on a clock before it.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Seconds since the Unix epoch as date and time, as `2023-11-14 22:13:20 UTC`.
pub fn utc(time: u64) -> String {
    let date = i64::try_from(time).ok().and_then(timestamp_s_to_datetime);
    date.map_or_else(|| format!("{time} s after 1970"), |date| format!("{date} UTC"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(1_700_000_000), "2023-11-14 22:13:20 UTC");
        assert_eq!(utc(u64::MAX), format!("{} s after 1970", u64::MAX));
    }
}
