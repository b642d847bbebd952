//! What can be wrong with settings.

use std::io;
use std::path::PathBuf;

use crate::load::Origin;
use crate::value::Kind;

/// What is wrong with a setting, or with the file that it is in.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read, or isn't UTF-8.
    #[error("cannot read the settings file {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file isn't TOML.
    #[error("{at}: not valid TOML: {reason}")]
    Syntax {
        /// Where.
        at: Origin,
        /// The parser's words.
        reason: String,
    },
    /// There is no setting of that name.
    #[error("{}unknown setting {name:?}{}", place(at.as_ref()), suggestion(*nearest))]
    Unknown {
        /// Where it was given, if in a file, the environment or a flag.
        at: Option<Origin>,
        /// The name that was given.
        name: String,
        /// The known name that is most like it.
        nearest: Option<&'static str>,
    },
    /// The value isn't one that the setting takes.
    #[error("{}{name} can't be {:?}: expected {expected}", place(at.as_ref()), cut(text))]
    Value {
        /// Where it was given, if in a file, the environment or a flag.
        at: Option<Origin>,
        /// The setting.
        name: &'static str,
        /// The value that was given.
        text: String,
        /// What the setting takes.
        expected: Kind,
    },
    /// A flag isn't of the form `NAME=VALUE`.
    #[error("{0:?} is not of the form NAME=VALUE, as executor.threads=4")]
    Assignment(String),
    /// A client asked to change what only the operator of the node may change.
    #[error(
        "{0} is a setting of the node: a session can't change it; its operator can, in creel.toml"
    )]
    OperatorOnly(&'static str),
    /// More than one of these, in the order of the sources and lines.
    #[error("{}", lines(.0))]
    Several(Vec<Error>),
}

impl Error {
    /// None of these errors, or one, or all in one.
    pub(crate) fn of(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }

    /// Each error by itself.
    pub fn each(&self) -> &[Self] {
        match self {
            Self::Several(errors) => errors,
            _ => std::slice::from_ref(self),
        }
    }
}

fn place(at: Option<&Origin>) -> String {
    at.map_or_else(String::new, |at| format!("{at}: "))
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(
        || "; `creel config list` names them all".into(),
        |name| format!("; did you mean {name:?}?"),
    )
}

fn cut(text: &str) -> String {
    const SHOWN: usize = 100;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn lines(errors: &[Error]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
