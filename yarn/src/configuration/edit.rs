//! Changing entries in place.

use std::borrow::Cow;
use std::ops::Range;

use super::{Document, Item, Malformed, Place, Property, Root};
use crate::xml::is_space;

/// The white space of an entry, taken from the one before it.
struct Style<'a> {
    /// Before `<property>`, with the line break.
    before: Cow<'a, str>,
    /// Before `<name>`.
    name: Cow<'a, str>,
    /// Before `<value>`.
    value: Cow<'a, str>,
    /// Before `</property>`.
    end: Cow<'a, str>,
}

impl Document {
    /// Gives the last entry of that name another value, if it can be edited ([`Document::last`]).
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<bool, Malformed> {
        let Some(place) = self.last(name).and_then(|property| property.place.clone()) else {
            return Ok(false);
        };
        let escaped = self.escape(value);
        self.replace(place.value, &escaped)?;
        Ok(true)
    }

    /// What stands between `<value>` and `</value>` of the last entry of that name, if it can be
    /// edited.
    pub(crate) fn raw(&self, name: &str) -> Option<&str> {
        let place = self.last(name)?.place.as_ref()?;
        Some(&self.text[place.value.clone()])
    }

    /// Puts back what [`Document::raw`] gave.
    pub(crate) fn restore(&mut self, name: &str, raw: &str) -> Result<bool, Malformed> {
        let Some(place) = self.last(name).and_then(|property| property.place.clone()) else {
            return Ok(false);
        };
        self.replace(place.value, raw)?;
        Ok(true)
    }

    /// Adds an item to a list: the value of the last entry of that name, if it can be edited.
    pub(crate) fn join(&mut self, name: &str, item: &str) -> Result<bool, Malformed> {
        let Some(place) = self.last(name).and_then(|property| property.place.clone()) else {
            return Ok(false);
        };
        let list = self.text[place.value.clone()].trim_end_matches(is_space);
        let item = self.escape(item);
        if list.trim_matches(|c| is_space(c) || c == ',').is_empty() {
            // With a comma before it, YARN would see an item without a name.
            self.replace(place.value, &item)?;
            return Ok(true);
        }
        let at = place.value.start + list.len();
        let item = if list.ends_with(',') { item } else { format!(",{item}") };
        self.replace(at..at, &item)?;
        Ok(true)
    }

    /// Takes an item out of a list, with one comma beside it.
    pub(crate) fn withdraw(&mut self, name: &str, item: &str) -> Result<bool, Malformed> {
        let Some(place) = self.last(name).and_then(|property| property.place.clone()) else {
            return Ok(false);
        };
        let list = &self.text[place.value.clone()];
        let mut start = 0;
        for part in list.split_inclusive([',', '\n']) {
            let end = start + part.len();
            let name = part.trim_end_matches([',', '\n']).trim_matches(is_space);
            if name == item {
                let at = start + part.find(item).unwrap_or_default();
                let range = match list[..start].strip_suffix(',') {
                    Some(before) => before.len()..at + item.len(),
                    None if part.ends_with(',') => at..end,
                    None => at..at + item.len(),
                };
                self.replace(place.value.start + range.start..place.value.start + range.end, "")?;
                return Ok(true);
            }
            start = end;
        }
        Ok(false)
    }

    /// Adds entries after all that is in the root element, so that they hold over what is before
    /// them, in the layout of the entry that is last.
    pub(crate) fn append(&mut self, entries: &[(&str, &str)]) -> Result<(), Malformed> {
        let style = self.style();
        let entry = |(name, value): &(&str, &str)| {
            let (name, value) = (self.escape(name), self.escape(value));
            format!(
                "{}<property>{}<name>{name}</name>{}<value>{value}</value>{}</property>",
                style.before, style.name, style.value, style.end
            )
        };
        let entries: String = entries.iter().map(entry).collect();
        match &self.root {
            Root::Open(inner) => {
                let content = self.text[inner.clone()].trim_end_matches(is_space);
                let at = inner.start + content.len();
                // An element without white space before its end has its end on a line of its own.
                let last = if at == inner.end && style.before.contains('\n') {
                    self.line_end()
                } else {
                    ""
                };
                self.replace(at..at, &format!("{entries}{last}"))
            }
            Root::Empty(tag) => {
                let tag = tag.clone();
                let open = self.text[tag.clone()].trim_end_matches("/>").trim_end_matches(is_space);
                let name = open[1..].split(is_space).next().unwrap_or_default();
                let all = format!("{open}>{entries}{}</{name}>", self.line_end());
                self.replace(tag, &all)
            }
        }
    }

    /// Takes the last entry of that name out, with the white space before it, if it can be edited.
    pub(crate) fn remove(&mut self, name: &str) -> Result<bool, Malformed> {
        let Some(place) = self.last(name).and_then(|property| property.place.clone()) else {
            return Ok(false);
        };
        let space = self.space_before(place.element.start);
        self.replace(space.start..place.element.end, "")?;
        Ok(true)
    }

    fn replace(&mut self, range: Range<usize>, with: &str) -> Result<(), Malformed> {
        let mut text = self.text.clone();
        text.replace_range(range, with);
        *self = Self::of(text, self.encoding)?;
        Ok(())
    }

    fn escape(&self, value: &str) -> String {
        self.encoding.writable(&quick_xml::escape::partial_escape(value)).into_owned()
    }

    fn line_end(&self) -> &'static str {
        if self.text.contains("\r\n") { "\r\n" } else { "\n" }
    }

    /// The white space just before a place, from its last line break on.
    fn space_before(&self, at: usize) -> Range<usize> {
        let before = &self.text[..at];
        let space = before.trim_end_matches(is_space).len();
        let line = before[space..].rfind('\n').map_or(space, |line| space + line);
        let start = if before[space..line].ends_with('\r') { line - 1 } else { line };
        start..at
    }

    fn style(&self) -> Style<'_> {
        let places = self.items.iter().rev().filter_map(|item| match item {
            Item::Property(Property { place: Some(place), .. }) => Some(place),
            _ => None,
        });
        places.into_iter().find_map(|place| self.style_of(place)).unwrap_or_else(|| {
            let line = self.line_end();
            let deep: Cow<'_, str> = Cow::Owned(format!("{line}    "));
            let shallow: Cow<'_, str> = Cow::Owned(format!("{line}  "));
            Style { before: shallow.clone(), name: deep.clone(), value: deep, end: shallow }
        })
    }

    /// The layout of an entry, if there is nothing but white space between its elements.
    fn style_of(&self, place: &Place) -> Option<Style<'_>> {
        let element = &self.text[place.element.clone()];
        let (before_name, after_name) = split(element, "<name>", "</name>")?;
        let (before_value, after_value) = split(after_name, "<value>", "</value>")?;
        let name = before_name.strip_prefix("<property>")?;
        let last = after_value.strip_suffix("</property>")?;
        let end = &last[last.rfind('>').map_or(0, |at| at + 1)..];
        let before = &self.text[self.space_before(place.element.start)];
        let all_space = [name, before_value, end].iter().all(|text| text.chars().all(is_space));
        all_space.then_some(Style {
            before: before.into(),
            name: name.into(),
            value: before_value.into(),
            end: end.into(),
        })
    }
}

/// What is before a start tag, and what is after the end tag.
fn split<'a>(text: &'a str, start: &str, end: &str) -> Option<(&'a str, &'a str)> {
    let (before, rest) = text.split_once(start)?;
    let (_, after) = rest.split_once(end)?;
    Some((before, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document {
        Document::parse(text.as_bytes()).unwrap()
    }

    fn appended(text: &str) -> String {
        let mut document = document(text);
        document.append(&[("k", "v")]).unwrap();
        assert_eq!(document.last("k").unwrap().value.as_deref(), Some("v"), "{text}");
        document.text().to_owned()
    }

    #[test]
    fn a_new_entry_has_the_layout_of_the_one_before_it() {
        for (text, entry) in [
            (
                "<configuration>\n\t<property>\n\t\t<name>a</name>\n\t\t<value>b</value>\n\t</property>@\n</configuration>\n",
                "\n\t<property>\n\t\t<name>k</name>\n\t\t<value>v</value>\n\t</property>",
            ),
            (
                "<configuration>\n  <property><name>a</name><value>b</value><final>true</final></property>\n  <!-- c -->@\n\n</configuration>",
                "\n  <property><name>k</name><value>v</value></property>",
            ),
            (
                "<configuration><property><name>a</name><value>b</value></property>@</configuration>",
                "<property><name>k</name><value>v</value></property>",
            ),
            (
                "<configuration>\r\n<property>\r\n<name>a</name>\r\n<value>b</value>\r\n</property>@\r\n</configuration>",
                "\r\n<property>\r\n<name>k</name>\r\n<value>v</value>\r\n</property>",
            ),
            (
                "<configuration>@\n</configuration>",
                "\n  <property>\n    <name>k</name>\n    <value>v</value>\n  </property>",
            ),
            (
                "<configuration>\n  <property name='a' value='b'/>@\n</configuration>",
                "\n  <property>\n    <name>k</name>\n    <value>v</value>\n  </property>",
            ),
        ] {
            assert_eq!(appended(&text.replace('@', "")), text.replace('@', entry));
        }
    }

    #[test]
    fn an_element_that_was_empty_is_opened() {
        let entry = "\n  <property>\n    <name>k</name>\n    <value>v</value>\n  </property>\n";
        assert_eq!(
            appended("<configuration/>\n"),
            format!("<configuration>{entry}</configuration>\n")
        );
        assert_eq!(
            appended("<configuration></configuration>"),
            format!("<configuration>{entry}</configuration>")
        );
        assert_eq!(
            appended("<configuration xmlns:x=\"a:b\" />"),
            format!("<configuration xmlns:x=\"a:b\">{entry}</configuration>")
        );
    }

    #[test]
    fn what_is_added_can_be_taken_out_again() {
        for text in [
            "<configuration>\n  <!-- c -->\n\n</configuration>",
            "<configuration>\r\n\t<property>\r\n<name>a</name><value>b</value></property>\r\n</configuration>\r\n",
            "<configuration><property><name>a</name><value>b</value></property></configuration>",
            "<configuration> <include href='b.xml'/> </configuration>",
        ] {
            let mut document = document(text);
            document.append(&[("k", "v"), ("l", "<&>")]).unwrap();
            assert!(document.remove("k").unwrap() && document.remove("l").unwrap());
            assert_eq!(document.text(), text);
        }
    }

    #[test]
    fn a_value_is_changed_and_nothing_around_it() {
        let text = "<configuration><property> <value>\n a &amp; b </value><!-- c --><name> k\n</name></property></configuration>";
        let mut document = document(text);
        assert_eq!(document.last("k").unwrap().value.as_deref(), Some("\n a & b "));
        assert!(document.set("k", "<x>").unwrap());
        assert_eq!(document.text(), text.replace("\n a &amp; b ", "&lt;x&gt;"));
        assert!(!document.set("none", "x").unwrap());
    }

    #[test]
    fn an_item_joins_a_list_and_is_withdrawn() {
        for (list, joined) in [
            ("a", "a,g"),
            (" a , b ", " a , b,g "),
            ("\r\n  a,\r\n  b\r\n", "\r\n  a,\r\n  b,g\r\n"),
            ("${x}", "${x},g"),
            ("a,", "a,g"),
        ] {
            let text = |list: &str| {
                format!(
                    "<configuration><property><name>k</name><value>{list}</value></property></configuration>"
                )
            };
            let mut document = document(&text(list));
            assert!(document.join("k", "g").unwrap());
            assert_eq!(document.text(), text(joined));
            assert!(document.withdraw("k", "g").unwrap());
            assert_eq!(document.text(), text(list.trim_end_matches(',')), "{list:?}");
            assert!(!document.withdraw("k", "g").unwrap());
        }
    }

    #[test]
    fn a_list_without_items_becomes_the_item() {
        for list in ["", " ", ",", " , \n"] {
            let text = format!(
                "<configuration><property><name>k</name><value>{list}</value></property></configuration>"
            );
            let mut document = document(&text);
            assert!(document.join("k", "g").unwrap());
            assert_eq!(document.last("k").unwrap().value.as_deref(), Some("g"), "{list:?}");
        }
    }

    #[test]
    fn an_item_is_withdrawn_wherever_it_stands() {
        for (list, left) in [("g,a", "a"), ("a,g,b", "a,b"), ("a, g ,b", "a ,b"), ("gg,g", "gg")] {
            let text = format!(
                "<configuration><property><name>k</name><value>{list}</value></property></configuration>"
            );
            let mut document = document(&text);
            assert!(document.withdraw("k", "g").unwrap());
            assert_eq!(document.last("k").unwrap().value.as_deref(), Some(left), "{list}");
        }
    }

    #[test]
    fn the_last_entry_of_a_name_is_the_one_that_holds() {
        let one = "<property><name>k</name><value>1</value></property>";
        let two = "<property><name>k</name><value>2</value></property>";
        let mut document = document(&format!("<configuration>{one}{two}</configuration>"));
        document.set("k", "3").unwrap();
        assert_eq!(
            document.text(),
            format!("<configuration>{one}{}</configuration>", two.replace('2', "3"))
        );
    }

    #[test]
    fn what_an_edit_could_damage_is_not_edited() {
        for value in [
            "<value>a<!-- c -->b</value>",
            "<value><![CDATA[a]]></value>",
            "<value/>",
            "<value>1</value><value>2</value>",
            "",
        ] {
            let text = format!(
                "<configuration><property><name>k</name>{value}</property></configuration>"
            );
            assert_eq!(document(&text).last("k"), None, "{value}");
        }
        let nested = "<configuration><configuration><property><name>k</name><value>1</value></property></configuration></configuration>";
        assert_eq!(document(nested).last("k"), None);
    }
}
