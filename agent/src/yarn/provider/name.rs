//! Words that YARN takes as labels, and as names and values of attributes.

use crate::error::Error;

/// The longest word.
const MAX_BYTES: usize = 255;

/// Whether it is a label or an attribute's name: `^[0-9a-zA-Z][0-9a-zA-Z-_]*` (`NodeLabelUtil`).
pub(super) fn is_name(text: &str) -> bool {
    is_word(text, b"-_")
}

/// Whether it is an attribute's value: `^[0-9a-zA-Z][0-9a-zA-Z-_.]*` (`NodeLabelUtil`).
pub(super) fn is_value(text: &str) -> bool {
    is_word(text, b"-_.")
}

fn is_word(text: &str, beside: &[u8]) -> bool {
    let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    let all = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || beside.contains(&byte));
    first && all && text.len() <= MAX_BYTES
}

/// A text as a label: what may not stand in one is a `-`, as `NVIDIA-H200` or `1g-5gb`.
pub(super) fn name_of(text: &str) -> Option<String> {
    word_of(text, b"-_")
}

/// A text as an attribute's value, as `NVIDIA-A100-SXM4-80GB` or `580.65.06`; `None`: nothing of
/// it can stand in one.
pub(super) fn value_of(text: &str) -> Option<String> {
    word_of(text, b"-_.")
}

fn word_of(text: &str, beside: &[u8]) -> Option<String> {
    let mut word = String::new();
    for byte in text.bytes() {
        let taken = byte.is_ascii_alphanumeric() || (beside.contains(&byte) && !word.is_empty());
        if taken {
            word.push(char::from(byte));
        } else if !word.is_empty() && !word.ends_with('-') {
            word.push('-');
        }
        if word.len() == MAX_BYTES {
            break;
        }
    }
    let word = word.trim_end_matches('-');
    (!word.is_empty()).then(|| word.to_owned())
}

/// A label that an operator chose.
pub(super) fn checked_label(label: &str) -> Result<&str, Error> {
    if is_name(label) {
        return Ok(label);
    }
    Err(Error::Usage(format!(
        "{label:?} can't be a label: YARN takes letters, digits, '-' and '_', beginning with a \
         letter or digit, {MAX_BYTES} at the most"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_yarn_takes() {
        for name in ["gpu", "0", "A100-80GB", "a_b-c"] {
            assert!(is_name(name) && is_value(name), "{name}");
        }
        for name in ["", "-a", "_a", "a b", "1g.5gb", "é", "a,b", "a/b", "a\n"] {
            assert!(!is_name(name), "{name}");
        }
        assert!(is_value("580.65.06") && !is_value(".5") && !is_value("a b"));
        assert!(is_name(&"a".repeat(255)) && !is_name(&"a".repeat(256)));
    }

    #[test]
    fn words_of_any_text_are_what_yarn_takes_or_none() {
        for (text, value, name) in [
            ("NVIDIA A100-SXM4-80GB", Some("NVIDIA-A100-SXM4-80GB"), Some("NVIDIA-A100-SXM4-80GB")),
            ("580.65.06", Some("580.65.06"), Some("580-65-06")),
            ("1g.10gb+me", Some("1g.10gb-me"), Some("1g-10gb-me")),
            ("  -Tesla  V100, (rev. A) ", Some("Tesla-V100-rev.-A"), Some("Tesla-V100-rev-A")),
            ("NODE_ATTRIBUTE:X\nY", Some("NODE_ATTRIBUTE-X-Y"), Some("NODE_ATTRIBUTE-X-Y")),
            ("ГПУ", None, None),
            ("", None, None),
        ] {
            assert_eq!(value_of(text).as_deref(), value, "{text}");
            assert_eq!(name_of(text).as_deref(), name, "{text}");
            assert!(value_of(text).is_none_or(|value| is_value(&value)), "{text}");
        }
        assert_eq!(value_of(&"x ".repeat(300)).unwrap().len(), 255);
    }
}
