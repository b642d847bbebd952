//! The encoding of a configuration file: from bytes to text, and back to the same bytes.

use std::borrow::Cow;

use crate::xml::Malformed;

/// How a file's text is written as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Encoding {
    form: Form,
    /// Whether a byte order mark comes first.
    mark: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Utf8,
    Ascii,
    /// One byte a character, ASCII below 128: what is above stays the byte that it is, whichever
    /// character that may be.
    SingleByte,
    Utf16 {
        big_endian: bool,
    },
}

/// Encodings with one byte a character, by the start of their names.
const SINGLE_BYTE: [&str; 4] = ["iso-8859-", "iso8859-", "latin1", "windows-125"];

impl Encoding {
    /// The encoding of a new file.
    pub(crate) const UTF_8: Self = Self { form: Form::Utf8, mark: false };

    /// The text of a file, and how it is encoded: as its byte order mark or its XML declaration
    /// says, else in UTF-8 (XML 1.0, appendix F).
    pub(crate) fn decode(bytes: &[u8]) -> Result<(String, Self), Malformed> {
        let (form, mark, bytes) = match bytes {
            [0xEF, 0xBB, 0xBF, rest @ ..] => (Some(Form::Utf8), true, rest),
            [0xFE, 0xFF, rest @ ..] => (Some(Form::Utf16 { big_endian: true }), true, rest),
            [0xFF, 0xFE, rest @ ..] => (Some(Form::Utf16 { big_endian: false }), true, rest),
            [0, b'<', 0, ..] => (Some(Form::Utf16 { big_endian: true }), false, bytes),
            [b'<', 0, _, 0, ..] => (Some(Form::Utf16 { big_endian: false }), false, bytes),
            _ => (None, false, bytes),
        };
        if let Some(form) = form {
            let text = form.decode(bytes)?;
            if let Some(declared) = declared(&text) {
                let agrees = match form {
                    Form::Utf16 { .. } => declared.starts_with("utf-16"),
                    _ => declared == "utf-8",
                };
                if !agrees {
                    return Err(unusable(format!(
                        "it declares the encoding {declared}, and its first bytes are those of \
                         another"
                    )));
                }
            }
            return Ok((text, Self { form, mark }));
        }
        let start = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
        let form = match declared(&start).as_deref() {
            None | Some("utf-8" | "utf8") => Form::Utf8,
            Some("us-ascii" | "ascii") => Form::Ascii,
            Some(name) if SINGLE_BYTE.iter().any(|known| name.starts_with(known)) => {
                Form::SingleByte
            }
            Some(name) => {
                return Err(unusable(format!(
                    "it declares the encoding {name}, which is not understood: convert it to UTF-8"
                )));
            }
        };
        Ok((form.decode(bytes)?, Self { form, mark }))
    }

    /// The bytes of a text, each character of which [`Self::writable`] left as it is.
    pub(crate) fn encode(self, text: &str) -> Vec<u8> {
        let mark = if self.mark { "\u{feff}" } else { "" };
        match self.form {
            Form::Utf8 | Form::Ascii => [mark, text].concat().into_bytes(),
            Form::SingleByte => text.chars().map(|c| c as u8).collect(),
            Form::Utf16 { big_endian } => {
                let units = mark.encode_utf16().chain(text.encode_utf16());
                let bytes = |unit: u16| {
                    if big_endian { unit.to_be_bytes() } else { unit.to_le_bytes() }
                };
                units.flat_map(bytes).collect()
            }
        }
    }

    /// A text of XML that this encoding can write: other characters as references.
    pub(crate) fn writable(self, text: &str) -> Cow<'_, str> {
        if matches!(self.form, Form::Utf8 | Form::Utf16 { .. }) || text.is_ascii() {
            return Cow::Borrowed(text);
        }
        let written = |c: char| {
            if c.is_ascii() { c.to_string() } else { format!("&#{};", u32::from(c)) }
        };
        Cow::Owned(text.chars().map(written).collect())
    }
}

impl Form {
    fn decode(self, bytes: &[u8]) -> Result<String, Malformed> {
        match self {
            Self::Utf8 => {
                let not_utf8 = |error: std::str::Utf8Error| Malformed {
                    line: line_of(bytes, error.valid_up_to()),
                    reason: "it is not UTF-8, and declares no other encoding".to_owned(),
                };
                Ok(std::str::from_utf8(bytes).map_err(not_utf8)?.to_owned())
            }
            Self::Ascii => match bytes.iter().position(|byte| !byte.is_ascii()) {
                Some(at) => Err(Malformed {
                    line: line_of(bytes, at),
                    reason: "it declares US-ASCII, and a byte is none".to_owned(),
                }),
                None => Ok(bytes.iter().copied().map(char::from).collect()),
            },
            Self::SingleByte => Ok(bytes.iter().copied().map(char::from).collect()),
            Self::Utf16 { big_endian } => {
                let (pairs, rest) = bytes.as_chunks::<2>();
                let unit = |pair: &[u8; 2]| {
                    if big_endian { u16::from_be_bytes(*pair) } else { u16::from_le_bytes(*pair) }
                };
                let text = String::from_utf16(&pairs.iter().map(unit).collect::<Vec<_>>());
                match text {
                    Ok(text) if rest.is_empty() => Ok(text),
                    _ => Err(unusable("it is no valid UTF-16".to_owned())),
                }
            }
        }
    }
}

/// The encoding that an XML declaration names, in lower case.
fn declared(text: &str) -> Option<String> {
    let declaration = text.strip_prefix("<?xml")?.split("?>").next()?;
    let (_, after) = declaration.split_once("encoding")?;
    let quoted = after.trim_start().strip_prefix('=')?.trim_start();
    let quote = quoted.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    Some(quoted[1..].split(quote).next()?.to_ascii_lowercase())
}

fn line_of(bytes: &[u8], at: usize) -> usize {
    bytes[..at].split(|byte| *byte == b'\n').count()
}

fn unusable(reason: String) -> Malformed {
    Malformed { line: 1, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utf16(text: &str, big_endian: bool) -> Vec<u8> {
        let bytes = |unit: u16| if big_endian { unit.to_be_bytes() } else { unit.to_le_bytes() };
        text.encode_utf16().flat_map(bytes).collect()
    }

    #[test]
    fn bytes_come_back_as_they_were() {
        for bytes in [
            b"<a>\xc3\xa9</a>".to_vec(),
            b"\xef\xbb\xbf<?xml version='1.0' encoding='UTF-8'?><a/>".to_vec(),
            b"<?xml version='1.0' encoding='us-ascii'?><a/>".to_vec(),
            b"<?xml version=\"1.0\" encoding = \"ISO-8859-1\"?><a>\xe9\x80</a>".to_vec(),
            b"<?xml version='1.0' encoding='windows-1251'?><a>\xe9\xff</a>".to_vec(),
            utf16("\u{feff}<a>é𝄞</a>", true),
            utf16("\u{feff}<?xml version='1.0' encoding='UTF-16'?><a/>", false),
            utf16("<?xml version='1.0' encoding='UTF-16LE'?><a/>", false),
            utf16("<?xml version='1.0' encoding='UTF-16BE'?><a/>", true),
        ] {
            let (text, encoding) = Encoding::decode(&bytes).unwrap();
            assert!(text.starts_with('<'), "{text}");
            assert_eq!(encoding.encode(&text), bytes);
        }
    }

    #[test]
    fn what_is_not_as_declared_or_not_understood_is_an_error() {
        for (bytes, words) in [
            (b"<a>\n\xe9</a>".to_vec(), "not UTF-8"),
            (b"<?xml version='1.0' encoding='ascii'?>\xe9".to_vec(), "US-ASCII"),
            (b"<?xml version='1.0' encoding='GBK'?><a/>".to_vec(), "gbk"),
            (b"<?xml version='1.0' encoding='UTF-16'?><a/>".to_vec(), "utf-16"),
            (b"\xef\xbb\xbf<?xml version='1.0' encoding='latin1'?>".to_vec(), "another"),
            (b"\xfe\xff\x00".to_vec(), "UTF-16"),
            (b"\xfe\xff\xd8\x00".to_vec(), "UTF-16"),
        ] {
            let error = Encoding::decode(&bytes).unwrap_err();
            assert!(error.reason.contains(words), "{error:?}");
        }
        assert_eq!(Encoding::decode(b"<a>\n\xe9</a>").unwrap_err().line, 2);
    }

    #[test]
    fn what_an_encoding_lacks_is_written_as_a_reference() {
        let (_, latin) = Encoding::decode(b"<?xml version='1.0' encoding='latin1'?><a/>").unwrap();
        assert_eq!(latin.writable("/é/a"), "/&#233;/a");
        assert_eq!(Encoding::UTF_8.writable("/é/a"), "/é/a");
    }
}
