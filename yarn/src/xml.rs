//! A walk through an XML text that says where everything stands.
//!
//! What YARN's parsers refuse, the walk refuses: Woodstox, which reads Hadoop's configuration, and
//! the JDK's SAX parser, which reads what nvidia-smi answers, both stop at the first violation of
//! XML 1.0's well-formedness or of Namespaces in XML. quick-xml lets many of these pass; they are
//! checked here. Of a DOCTYPE only the name is understood: one with declarations of its own is
//! refused, so no entity beyond XML's five is ever expanded.

use std::ops::Range;

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

/// Text that is not well-formed XML, or holds what is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong there.
    pub reason: String,
}

/// A piece of a document.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A start tag, or an element that is only a tag. Names are without their prefixes.
    Start { name: String, attributes: Vec<(String, String)>, empty: bool },
    /// An end tag.
    End { name: String },
    /// Text within the root element, its references resolved.
    Text(String),
    /// Text as it stands, from a CDATA section.
    Cdata(String),
    /// A comment, a processing instruction, the XML declaration, a DOCTYPE, or white space outside
    /// the root element.
    Other,
}

/// Goes through a text from its start to its end.
pub(crate) struct Walk<'a> {
    text: &'a str,
    reader: Reader<&'a [u8]>,
    /// The elements that are open: their names, and the prefixes that each declares.
    open: Vec<(String, Vec<String>)>,
    root_seen: bool,
    doctype_seen: bool,
}

impl<'a> Walk<'a> {
    /// Begins at the start of a text without a byte order mark.
    pub(crate) fn new(text: &'a str) -> Result<Self, Malformed> {
        if let Some((at, c)) = text.char_indices().find(|(_, c)| !is_char(*c)) {
            let reason = format!("the character U+{:04X} is not allowed", u32::from(c));
            return Err(malformed(text, at, reason));
        }
        let mut reader = Reader::from_str(text);
        reader.config_mut().check_comments = true;
        Ok(Self { text, reader, open: Vec::new(), root_seen: false, doctype_seen: false })
    }

    /// How many elements are open.
    pub(crate) fn depth(&self) -> usize {
        self.open.len()
    }

    /// The next piece and where it stands; `None` at the end of a complete document.
    pub(crate) fn next(&mut self) -> Result<Option<(Range<usize>, Piece)>, Malformed> {
        let start = self.position();
        let event = self.reader.read_event();
        let span = start..self.position();
        let event = event.map_err(|error| {
            let at = usize::try_from(self.reader.error_position()).unwrap_or(start);
            malformed(self.text, at.max(start), error.to_string())
        })?;
        let piece = match self.understand(event, start) {
            Ok(Some(piece)) => piece,
            Ok(None) => return Ok(None),
            Err(reason) => return Err(malformed(self.text, start, reason)),
        };
        Ok(Some((span, piece)))
    }

    fn position(&self) -> usize {
        usize::try_from(self.reader.buffer_position())
            .map_or(self.text.len(), |at| at.min(self.text.len()))
    }

    fn understand(&mut self, event: Event<'_>, start: usize) -> Result<Option<Piece>, String> {
        Ok(Some(match event {
            Event::Start(tag) => self.start(&tag, false)?,
            Event::Empty(tag) => self.start(&tag, true)?,
            Event::End(tag) => {
                self.open.pop();
                Piece::End { name: tag.local_name().as_ref().to_owned() }
            }
            Event::Text(text) => {
                let text: &str = &text;
                if text.contains("]]>") {
                    return Err("]]> stands in a text: write ]]&gt;".to_owned());
                }
                if !self.open.is_empty() {
                    Piece::Text(lines_as_read(text))
                } else if text.chars().all(is_space) {
                    Piece::Other
                } else {
                    return Err("there is text outside the root element".to_owned());
                }
            }
            Event::GeneralRef(name) if !self.open.is_empty() => {
                Piece::Text(resolve(&name)?.to_string())
            }
            Event::GeneralRef(_) => {
                return Err("there is a reference outside the root element".to_owned());
            }
            Event::CData(text) if !self.open.is_empty() => Piece::Cdata(lines_as_read(&text)),
            Event::CData(_) => return Err("there is text outside the root element".to_owned()),
            Event::Comment(text) if text.ends_with('-') => {
                return Err("a comment ends in --->".to_owned());
            }
            Event::Comment(_) => Piece::Other,
            Event::Decl(_) if start > 0 => {
                return Err("<?xml …?> does not stand at the very start".to_owned());
            }
            Event::Decl(declaration) => {
                declaration.xml_version().map_err(|error| error.to_string())?;
                Piece::Other
            }
            Event::PI(instruction) => {
                let target = instruction.target();
                if target.eq_ignore_ascii_case("xml") || !is_name(target) {
                    return Err(format!("{target:?} is no name for a processing instruction"));
                }
                Piece::Other
            }
            Event::DocType(declaration) => {
                if self.root_seen || self.doctype_seen {
                    return Err("a DOCTYPE stands where none may".to_owned());
                }
                self.doctype_seen = true;
                let declaration: &str = &declaration;
                if declaration.contains('[') {
                    return Err("the DOCTYPE declares entities or elements of its own, which are \
                                not understood: write their values where they are used"
                        .to_owned());
                }
                Piece::Other
            }
            Event::Eof if !self.root_seen => return Err("there is no root element".to_owned()),
            Event::Eof => match self.open.last() {
                Some((name, _)) => return Err(format!("<{name}> is never closed")),
                None => return Ok(None),
            },
        }))
    }

    fn start(&mut self, tag: &BytesStart<'_>, empty: bool) -> Result<Piece, String> {
        if self.open.is_empty() && self.root_seen {
            return Err("there is a second root element".to_owned());
        }
        self.root_seen = true;
        let (mut attributes, mut names, mut declared) = (Vec::new(), Vec::new(), Vec::new());
        for attribute in tag.attributes() {
            let attribute = attribute.map_err(|error| error.to_string())?;
            let name = attribute.key.as_ref();
            let raw: &str = &attribute.value;
            if raw.contains('<') {
                return Err(format!("< stands in the attribute {name}: write &lt;"));
            }
            let value = attribute
                .normalized_value(XmlVersion::Explicit1_0)
                .map_err(|error| format!("the attribute {name}: {error}"))?;
            if let Some(c) = value.chars().find(|c| !is_char(*c)) {
                return Err(format!("the character U+{:04X} is not allowed", u32::from(c)));
            }
            if let Some(prefix) = name.strip_prefix("xmlns:") {
                declared.push(prefix.to_owned());
            }
            names.push(name.to_owned());
            attributes.push((attribute.key.local_name().as_ref().to_owned(), value.into_owned()));
        }
        let name = tag.name().as_ref().to_owned();
        self.open.push((name.clone(), declared));
        let unfit = [&name].into_iter().chain(&names).find(|name| !self.is_known(name));
        if let Some(unfit) = unfit {
            return Err(format!("{unfit:?} is no name, or its prefix is not declared"));
        }
        if empty {
            self.open.pop();
        }
        Ok(Piece::Start { name: tag.local_name().as_ref().to_owned(), attributes, empty })
    }

    /// Whether this is a name whose prefix, if it has one, is declared.
    fn is_known(&self, name: &str) -> bool {
        match name.split_once(':') {
            None => is_name(name),
            Some((prefix, local)) => {
                let mut declared = self.open.iter().flat_map(|(_, prefixes)| prefixes);
                is_name(local)
                    && (["xml", "xmlns"].contains(&prefix)
                        || declared.any(|declared| declared == prefix))
            }
        }
    }
}

fn malformed(text: &str, at: usize, reason: String) -> Malformed {
    Malformed { line: line_of(text, at), reason }
}

/// The line that a byte of a text stands in, counted from 1.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].split(|byte| *byte == b'\n').count()
}

/// Line ends as a parser hands them on (XML 1.0, §2.11).
fn lines_as_read(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// What a reference stands for: a character, by its number or as one of XML's own five.
fn resolve(name: &quick_xml::events::BytesRef<'_>) -> Result<char, String> {
    let by_number = name.resolve_char_ref().map_err(|error| error.to_string())?;
    let c = match (by_number, name.as_ref()) {
        (Some(c), _) => c,
        (None, "lt") => '<',
        (None, "gt") => '>',
        (None, "amp") => '&',
        (None, "apos") => '\'',
        (None, "quot") => '"',
        (None, other) => return Err(format!("the entity &{other}; is not known")),
    };
    if is_char(c) { Ok(c) } else { Err(format!("&{}; is not allowed", name.as_ref())) }
}

/// XML 1.0, production 2.
fn is_char(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{fffd}' | '\u{10000}'..)
}

/// XML 1.0, production 3.
pub(crate) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

/// XML 1.0, productions 4 and 5, without the colon, and with all of what is beyond ASCII.
fn is_name(name: &str) -> bool {
    let starts = |c: char| c.is_ascii_alphabetic() || c == '_' || !c.is_ascii();
    name.starts_with(starts)
        && name.chars().all(|c| starts(c) || c.is_ascii_digit() || matches!(c, '-' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(text: &str) -> Result<Vec<Piece>, Malformed> {
        let mut walk = Walk::new(text)?;
        let mut pieces = Vec::new();
        let mut end = 0;
        while let Some((span, piece)) = walk.next()? {
            assert_eq!(span.start, end, "{text}");
            end = span.end;
            pieces.push(piece);
        }
        assert_eq!(end, text.len(), "{text}");
        Ok(pieces)
    }

    #[test]
    fn every_byte_belongs_to_one_piece() {
        let text = "<?xml version=\"1.0\"?>\n<!DOCTYPE a SYSTEM \"a.dtd\">\n<!-- c -->\n\
            <a x='1' xmlns:i=\"u\">t&lt;&#233;<![CDATA[<]]><?p i?><i:b/>\r\n</a>\n";
        let pieces = walk(text).unwrap();
        assert!(pieces.contains(&Piece::Text("é".to_owned())));
        assert!(pieces.contains(&Piece::Text("\n".to_owned())));
        assert!(pieces.contains(&Piece::Cdata("<".to_owned())));
        let b = Piece::Start { name: "b".to_owned(), attributes: vec![], empty: true };
        assert!(pieces.contains(&b));
    }

    #[test]
    fn what_javas_parsers_refuse_is_refused() {
        for text in [
            "",
            "\n",
            "text",
            "<a>",
            "<a></b>",
            "</a>",
            "<a/><b/>",
            "<a/>text",
            "x<a/>",
            "<a/>&lt;",
            "<a/><![CDATA[x]]>",
            "\n<?xml version=\"1.0\"?><a/>",
            "<?xml?><a/>",
            "<a><?xml version=\"1.0\"?></a>",
            "<a>&unknown;</a>",
            "<a>a & b</a>",
            "<a>&#0;</a>",
            "<a>&#1;</a>",
            "<a>\u{1}</a>",
            "<a>]]></a>",
            "<a><!-- -- --></a>",
            "<a><!-- ---></a>",
            "<a x='<'/>",
            "<a x='&u;'/>",
            "<a x='1' x='2'/>",
            "<a x=1/>",
            "<a x/>",
            "<1/>",
            "<a 1='1'/>",
            "<i:a/>",
            "<a i:x='1'/>",
            "<a><![CDATA[x</a>",
            "<a/><!DOCTYPE a>",
            "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
        ] {
            assert!(walk(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_line_is_told() {
        assert_eq!(walk("<a>\n\n<b></c></a>").unwrap_err().line, 3);
        assert_eq!(walk("<a>\n&b;</a>").unwrap_err().line, 2);
    }
}
