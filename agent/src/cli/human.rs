//! Numbers, times and tables for people.

use std::fmt::Display;

use comfy_table::{Cell, CellAlignment, Table, presets};

/// What stands for a value that is unknown.
const UNKNOWN: &str = "-";

/// Bytes in the largest binary unit, with one digit after the point.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // What would be printed as 1024.0 is one of the next unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A number with a space between its thousands.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let head = (digits.len() - 1) % 3 + 1;
    let mut text = digits[..head].to_owned();
    for group in digits.as_bytes()[head..].chunks(3) {
        text.push(' ');
        text.extend(group.iter().map(|digit| char::from(*digit)));
    }
    text
}

/// Seconds in the two largest units that they fill.
pub(crate) fn seconds(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// How long ago a time was, in seconds since the Unix epoch.
pub(crate) fn since(time: u64) -> String {
    seconds(crate::clock::now().saturating_sub(time))
}

/// A user's name, or the number where there is no name.
pub(crate) fn user(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(uid.into());
    user.ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// A value, or that it is unknown.
pub(crate) fn or_unknown<T: Display>(value: Option<T>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| value.to_string())
}

/// Text on one line, cut to so many characters.
pub(crate) fn one_line(text: &str, chars: usize) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(chars) {
        Some(_) => words.chars().take(chars - 1).chain(['…']).collect(),
        None => words,
    }
}

/// An empty table: aligned columns without lines, the same on a terminal and in a pipe.
///
/// The columns named with a leading `>` are numbers: they are aligned to the right.
pub(crate) fn table(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(columns.iter().map(|name| Cell::new(name.trim_start_matches('>'))));
    for (column, name) in table.column_iter_mut().zip(columns) {
        column.set_padding((0, 2));
        if name.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_the_largest_unit() {
        for (given, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (150_323_855_360, "140.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(given), text);
        }
    }

    #[test]
    fn counts_by_thousands() {
        for (given, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1 000"),
            (59_986_052, "59 986 052"),
            (u64::MAX, "18 446 744 073 709 551 615"),
        ] {
            assert_eq!(count(given), text);
        }
    }

    #[test]
    fn seconds_in_two_units() {
        for (given, text) in
            [(0, "0s"), (61, "1m 1s"), (3599, "59m 59s"), (7260, "2h 1m"), (90_000, "1d 1h")]
        {
            assert_eq!(seconds(given), text);
        }
        assert_eq!(since(u64::MAX), "0s");
    }

    #[test]
    fn root_has_a_name_and_nobody_elses_number_stays() {
        assert_eq!(user(0), "root");
        assert_eq!(user(3_999_999_999), "3999999999");
    }

    #[test]
    fn text_is_cut_by_characters() {
        assert_eq!(one_line("SELECT\n  1", 60), "SELECT 1");
        assert_eq!(one_line("ééééé", 5), "ééééé");
        assert_eq!(one_line("éééééé", 5), "éééé…");
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = table(&["NAME", ">ROWS"]);
        table.add_row(["a", "12345"]).add_row(["longer", "1"]);
        let lines: Vec<_> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        assert_eq!(lines, ["NAME     ROWS", "a       12345", "longer      1"]);
    }
}
