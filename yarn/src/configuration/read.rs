//! Reading entries out of a text, by the rules of Hadoop's own parser.

use std::mem;
use std::ops::Range;

use super::{Include, Item, Malformed, Place, Property, Root};
use crate::xml::{Piece, Walk, line_of};

/// Elements whose text is looked at.
const FIELDS: [&str; 3] = ["name", "value", "final"];

pub(super) fn read(text: &str) -> Result<(Root, Vec<Item>), Malformed> {
    let mut walk = Walk::new(text)?;
    let mut reading = Reading::new(text);
    loop {
        let depth = walk.depth();
        let Some((span, piece)) = walk.next()? else { break };
        let line = span.start;
        reading
            .take(depth, span, piece)
            .map_err(|reason| Malformed { line: line_of(text, line), reason })?;
    }
    Ok(reading.end())
}

/// What has been read so far.
struct Reading<'a> {
    text: &'a str,
    root: Option<Root>,
    /// Items of the root, and of each fallback that is open.
    items: Vec<Vec<Item>>,
    /// Includes that are open, with the depth of each.
    includes: Vec<(usize, Include)>,
    /// The property that is open.
    property: Option<Open>,
}

/// A property that is being read.
struct Open {
    property: Property,
    depth: usize,
    start: usize,
    /// The field that is open: its name, its text, and the range of that.
    field: Option<(String, String, Range<usize>)>,
    /// How often each of [`FIELDS`] has been seen.
    seen: [usize; 3],
    value: Option<Range<usize>>,
    /// Whether there is nothing in it that an edit could lose.
    plain: bool,
}

impl<'a> Reading<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, root: None, items: vec![Vec::new()], includes: Vec::new(), property: None }
    }

    /// Takes the next piece, which stands in so many elements.
    fn take(&mut self, depth: usize, span: Range<usize>, piece: Piece) -> Result<(), String> {
        match piece {
            Piece::Start { name, empty, .. } if depth == 0 => {
                if name != "configuration" {
                    return Err(format!("the root element is <{name}>, not <configuration>"));
                }
                self.root =
                    Some(if empty { Root::Empty(span) } else { Root::Open(span.end..span.end) });
            }
            Piece::Start { name, attributes, empty } => {
                if name == "property" && self.property.is_some() {
                    return Err("a <property> stands within another".to_owned());
                }
                self.start(depth, &span, &name, &attributes, empty);
                if empty {
                    self.end_of(depth, &(span.end..span.end), &name);
                }
            }
            Piece::End { .. } if depth == 1 => {
                if let Some(Root::Open(inner)) = &mut self.root {
                    inner.end = span.start;
                }
            }
            Piece::End { name } => self.end_of(depth - 1, &span, &name),
            Piece::Text(text) => self.text(&text, &span, true),
            Piece::Cdata(text) => self.text(&text, &span, false),
            Piece::Other => self.not_plain_in_value(),
        }
        Ok(())
    }

    fn start(
        &mut self,
        depth: usize,
        span: &Range<usize>,
        name: &str,
        attributes: &[(String, String)],
        empty: bool,
    ) {
        let attribute = |wanted: &str| {
            attributes.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone())
        };
        let line = || line_of(self.text, span.start);
        match (name, &mut self.property) {
            ("property", _) => {
                let property = Property {
                    name: attribute("name").unwrap_or_default(),
                    value: attribute("value"),
                    is_final: attribute("final").as_deref() == Some("true"),
                    line: line(),
                    place: None,
                };
                self.property = Some(Open {
                    plain: depth == 1 && attributes.is_empty(),
                    property,
                    depth,
                    start: span.start,
                    field: None,
                    seen: [0; 3],
                    value: None,
                });
            }
            ("include", None) => {
                if let Some(href) = attribute("href") {
                    let include = Include { href, fallback: None, line: line() };
                    self.includes.push((depth, include));
                }
            }
            ("fallback", None) if !self.includes.is_empty() => self.items.push(Vec::new()),
            (_, Some(open)) => match FIELDS.iter().position(|field| *field == name) {
                Some(field) => {
                    open.plain &= open.field.is_none() && depth == open.depth + 1 && !empty;
                    open.seen[field] += 1;
                    open.field = Some((name.to_owned(), String::new(), span.end..span.end));
                }
                None => open.plain &= open.field.is_none(),
            },
            _ => {}
        }
    }

    /// An element ends: the one that stands in so many others.
    fn end_of(&mut self, depth: usize, span: &Range<usize>, name: &str) {
        if let Some(open) = &mut self.property {
            if name == "property" && depth == open.depth {
                self.end_property(span.end);
            } else if open.field.as_ref().is_some_and(|(field, ..)| field == name) {
                open.end_field(span.start);
            }
            return;
        }
        match name {
            "fallback" if self.items.len() > 1 => {
                let items = self.items.pop();
                if let Some((_, include)) = self.includes.last_mut() {
                    include.fallback = items;
                }
            }
            "include" if self.includes.last().is_some_and(|(at, _)| *at == depth) => {
                if let Some((_, include)) = self.includes.pop() {
                    self.push(Item::Include(include));
                }
            }
            _ => {}
        }
    }

    fn end_property(&mut self, end: usize) {
        let Some(mut open) = self.property.take() else { return };
        let plain = open.plain && open.seen[0] == 1 && open.seen[1] == 1 && open.seen[2] <= 1;
        if let Some(value) = open.value.filter(|_| plain) {
            open.property.place = Some(Place { element: open.start..end, value });
        }
        if !open.property.name.is_empty() {
            self.push(Item::Property(open.property));
        }
    }

    fn text(&mut self, text: &str, span: &Range<usize>, plain: bool) {
        if let Some(open) = &mut self.property {
            open.plain &= plain || open.field.is_none();
            if let Some((_, so_far, range)) = &mut open.field {
                so_far.push_str(text);
                range.end = span.end;
            }
        }
    }

    /// A comment or the like: an edit of the value around it would lose it.
    fn not_plain_in_value(&mut self) {
        if let Some(open) = &mut self.property {
            open.plain &= open.field.is_none();
        }
    }

    fn push(&mut self, item: Item) {
        if let Some(items) = self.items.last_mut() {
            items.push(item);
        }
    }

    fn end(mut self) -> (Root, Vec<Item>) {
        let root = self.root.take().unwrap_or(Root::Empty(0..0));
        (root, mem::take(&mut self.items).swap_remove(0))
    }
}

impl Open {
    fn end_field(&mut self, end: usize) {
        let Some((name, text, range)) = self.field.take() else { return };
        match name.as_str() {
            "name" if !text.is_empty() => {
                text.trim().clone_into(&mut self.property.name);
            }
            "value" => {
                self.value = Some(range.start..end);
                if !text.is_empty() {
                    self.property.value = Some(text);
                }
            }
            "final" => self.property.is_final = text == "true",
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Document;
    use super::*;

    fn items(text: &str) -> Vec<Item> {
        Document::parse(text.as_bytes()).unwrap().items().to_vec()
    }

    fn summary(items: &[Item]) -> String {
        let each = |item: &Item| match item {
            Item::Property(p) => {
                let value = p.value.as_deref().unwrap_or("∅");
                format!("{}={value}{}", p.name, if p.is_final { "!" } else { "" })
            }
            Item::Include(i) => match &i.fallback {
                Some(fallback) => format!("{}({})", i.href, summary(fallback)),
                None => i.href.clone(),
            },
        };
        items.iter().map(each).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn entries_are_read_as_hadoop_reads_them() {
        for (text, expected) in [
            ("<property><name> a </name><value> b </value></property>", "a= b "),
            ("<property name='a' value='b' final='true'/>", "a=b!"),
            ("<property name='a'><value>c</value></property>", "a=c"),
            ("<property><name>a</name><value></value><final>true</final></property>", "a=∅!"),
            ("<property><name>a</name><value>b</value><final> true</final></property>", "a=b"),
            ("<property><name></name><value>b</value></property>", ""),
            ("<property><value>b</value></property>", ""),
            ("<property><name>a</name><value>1</value><value>2</value></property>", "a=2"),
            ("<property><name>a</name><value>x<!-- c -->y</value></property>", "a=xy"),
            (
                "<property><description>d</description><name>a</name><value>b</value></property>",
                "a=b",
            ),
            ("<!-- <property><name>a</name><value>b</value></property> -->", ""),
            (
                "<configuration><property><name>a</name><value>b</value></property></configuration>",
                "a=b",
            ),
            ("<include href='b.xml'/><property name='a' value='1'/>", "b.xml a=1"),
            (
                "<i:include xmlns:i='http://www.w3.org/2001/XInclude' href='b.xml'><i:fallback><property name='a' value='1'/></i:fallback></i:include>",
                "b.xml(a=1)",
            ),
            ("<include href='b.xml'><fallback/></include>", "b.xml()"),
            ("<include/>text<other><property name='a' value='1'/></other>", "a=1"),
        ] {
            let text = format!("<configuration>{text}</configuration>");
            assert_eq!(summary(&items(&text)), expected, "{text}");
        }
    }

    #[test]
    fn lines_are_counted() {
        let items = items(
            "<configuration>\n\n<property name='a' value='1'/>\n<include href='b'/>\n</configuration>",
        );
        let [Item::Property(property), Item::Include(include)] = items.as_slice() else {
            panic!("{items:?}");
        };
        assert_eq!((property.line, include.line), (3, 4));
    }

    #[test]
    fn another_root_is_an_error() {
        let error = Document::parse(b"<Configuration/>").unwrap_err();
        assert!(error.reason.contains("<Configuration>"), "{error:?}");
    }

    #[test]
    fn a_property_within_another_is_an_error() {
        let text = b"<configuration><property>\n<property/></property></configuration>";
        assert_eq!(Document::parse(text).unwrap_err().line, 2);
    }
}
