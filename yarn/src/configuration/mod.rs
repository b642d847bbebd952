//! A Hadoop configuration file, whose entries can be changed with every other byte left alone.
//!
//! ```text
//!   bytes ──encoding──▶ text ──read──▶ entries, each with its place in the text
//!     ▲                  ▲                │
//!     └──────encoding────┴─────edit───────┘   a place gets another text, and all is read again
//! ```
//!
//! The text itself is the model: an edit replaces a range of it. So comments, order, indentation,
//! line ends, encoding and a missing last newline stay as they are, without anybody's care.
//!
//! The rules of reading are those of Hadoop 3's `org.apache.hadoop.conf.Configuration` (class
//! `Parser`): `<property>` with `<name>`, `<value>` and `<final>` or with attributes of these
//! names; `<include>` and its `<fallback>`; an empty `<value>` is no value; anything else is
//! passed over. Three things that it reads are not understood here, and are errors: a root element
//! of another name, a property within a property, and entities that a DOCTYPE declares.

mod edit;
mod encoding;
mod read;

use std::ops::Range;

pub(crate) use self::encoding::Encoding;
pub use crate::xml::Malformed;

/// A configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    text: String,
    encoding: Encoding,
    root: Root,
    items: Vec<Item>,
}

/// Where the root element stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Root {
    /// `<configuration/>`
    Empty(Range<usize>),
    /// What is between `<configuration>` and `</configuration>`.
    Open(Range<usize>),
}

/// What a configuration is made of, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An entry.
    Property(Property),
    /// Entries of another file.
    Include(Include),
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// Its name.
    pub name: String,
    /// Its value, as it stands; absent where there is none, or an empty one.
    pub value: Option<String>,
    /// Whether no later entry may change it.
    pub is_final: bool,
    /// The line that it begins in, counted from 1.
    pub line: usize,
    /// Where it can be edited.
    place: Option<Place>,
}

/// Where an entry stands that can be edited: a child of the root, of the plain form, with nothing
/// but text in its value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// `<property>…</property>`
    element: Range<usize>,
    /// What is between `<value>` and `</value>`.
    value: Range<usize>,
}

/// Entries of another file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Include {
    /// The file's name, as it stands.
    pub href: String,
    /// What holds where there is no such file; absent where that is an error.
    pub fallback: Option<Vec<Item>>,
    /// The line that it begins in, counted from 1.
    pub line: usize,
}

impl Document {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Where it is not well-formed, or is not understood.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (text, encoding) = Encoding::decode(bytes)?;
        Self::of(text, encoding)
    }

    /// A new file without entries.
    pub fn empty() -> Self {
        let text =
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<configuration>\n</configuration>\n";
        Self::of(text.to_owned(), Encoding::UTF_8).expect("a constant that a test reads")
    }

    fn of(text: String, encoding: Encoding) -> Result<Self, Malformed> {
        let (root, items) = read::read(&text)?;
        Ok(Self { text, encoding, root, items })
    }

    /// What it is made of, in order.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// The text, without a byte order mark.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.encoding.encode(&self.text)
    }

    /// The last entry of that name among the children of the root, if it can be edited.
    pub fn last(&self, name: &str) -> Option<&Property> {
        let properties = self.items.iter().rev().filter_map(|item| match item {
            Item::Property(property) => Some(property),
            Item::Include(_) => None,
        });
        properties.into_iter().find(|property| property.name == name && property.place.is_some())
    }
}
