//! The types of settings' values.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::auto::AUTO;

/// What a setting's value is, and in what notation it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Integer {
        /// What it counts.
        unit: &'static str,
        /// The least that is allowed.
        min: u64,
        /// The most that is allowed.
        max: u64,
    },
    /// [`crate::size`].
    Size,
    /// [`crate::duration`].
    Duration {
        /// The least that is allowed.
        min: Duration,
    },
    /// [`crate::memory`].
    Memory,
    /// [`crate::fraction`].
    Fraction,
    /// Any text.
    Text,
    /// An absolute path, or nothing.
    Path,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// [`crate::auto`]: `auto`, or what this takes.
    Auto(&'static Self),
}

impl Kind {
    /// The kind's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bool => "boolean",
            Self::Integer { .. } => "integer",
            Self::Size => "size",
            Self::Duration { .. } => "duration",
            Self::Memory => "memory",
            Self::Fraction => "fraction",
            Self::Text => "text",
            Self::Path => "path",
            Self::Choice(_) => "choice",
            Self::Auto(kind) => kind.name(),
        }
    }

    /// What a plain number of this kind counts; empty where there is no unit.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Integer { unit, .. } => unit,
            Self::Size | Self::Memory => "bytes",
            Self::Duration { .. } => "time",
            Self::Bool | Self::Fraction | Self::Text | Self::Path | Self::Choice(_) => "",
            Self::Auto(kind) => kind.unit(),
        }
    }

    /// A value's text as TOML: bare where TOML has the type, else as a string.
    pub fn toml(&self, text: &str) -> String {
        match self {
            Self::Bool | Self::Integer { .. } | Self::Fraction => text.to_owned(),
            Self::Auto(kind) if text != AUTO => kind.toml(text),
            _ => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
        }
    }
}

impl fmt::Display for Kind {
    /// What is expected, to be read after "expected".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => write!(f, "true or false"),
            Self::Integer { unit, min, max: u64::MAX } => {
                write!(f, "a number of {unit}, at least {min}")
            }
            Self::Integer { unit, min, max } => write!(f, "a number of {unit} from {min} to {max}"),
            Self::Size => write!(f, "a size such as \"64 MiB\" or \"10g\""),
            Self::Duration { min } => {
                write!(f, "a duration such as \"500ms\", \"30s\" or \"1h 30m\"")?;
                if min.is_zero() { Ok(()) } else { write!(f, ", at least \"{}\"", min.text()) }
            }
            Self::Memory => {
                write!(f, "a size such as \"4 GiB\", or a percentage from \"1%\" to \"100%\"")
            }
            Self::Fraction => write!(f, "a number from 0 to 1"),
            Self::Text => write!(f, "text"),
            Self::Path => write!(f, "an absolute path, or nothing"),
            Self::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Self::Auto(kind) => write!(f, "{AUTO}, or {kind}"),
        }
    }
}

/// A type that a setting can have.
pub trait Value: Sized {
    /// The kind that the type has if the declaration says no more.
    const KIND: Kind;

    /// The value of a text; `None` where it is not of the kind.
    fn parse(text: &str, kind: &Kind) -> Option<Self>;

    /// The value as text that [`Value::parse`] takes.
    fn text(&self) -> String;
}

impl Value for bool {
    const KIND: Kind = Kind::Bool;

    fn parse(text: &str, _: &Kind) -> Option<Self> {
        text.parse().ok()
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for usize {
    const KIND: Kind = Kind::Integer { unit: "", min: 0, max: u64::MAX };

    fn parse(text: &str, kind: &Kind) -> Option<Self> {
        let number = text.parse().ok()?;
        match kind {
            Kind::Integer { min, max, .. } => {
                (*min..=*max).contains(&(number as u64)).then_some(number)
            }
            _ => Some(number),
        }
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for String {
    const KIND: Kind = Kind::Text;

    fn parse(text: &str, _: &Kind) -> Option<Self> {
        Some(text.to_owned())
    }

    fn text(&self) -> String {
        self.clone()
    }
}

impl Value for PathBuf {
    const KIND: Kind = Kind::Path;

    fn parse(text: &str, _: &Kind) -> Option<Self> {
        let path = Self::from(text);
        let whole = (path.is_absolute() || text.is_empty()) && !text.contains('\0');
        whole.then_some(path)
    }

    fn text(&self) -> String {
        self.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_stays_in_its_range() {
        let kind = Kind::Integer { unit: "rows", min: 1, max: 10 };
        assert_eq!(usize::parse("10", &kind), Some(10));
        for text in ["0", "11", "-1", "1.0", "", "1 row"] {
            assert_eq!(usize::parse(text, &kind), None, "{text}");
        }
    }

    #[test]
    fn a_path_is_absolute_or_empty() {
        assert_eq!(PathBuf::parse("/a", &Kind::Path), Some("/a".into()));
        assert_eq!(PathBuf::parse("", &Kind::Path), Some(PathBuf::new()));
        assert_eq!(PathBuf::parse("a", &Kind::Path), None);
        assert_eq!(PathBuf::parse("/a\0", &Kind::Path), None);
    }

    #[test]
    fn a_boolean_is_a_word_of_toml() {
        assert_eq!(bool::parse("true", &Kind::Bool), Some(true));
        assert_eq!(bool::parse("yes", &Kind::Bool), None);
    }
}
