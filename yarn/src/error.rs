//! What can go wrong with YARN's files.

use std::io;
use std::path::PathBuf;

use crate::answer::Refusal;
use crate::configuration::Malformed;
use crate::danger::Danger;
use crate::keys::{CALCULATOR, DOMINANT, SCHEDULER_STORE};
use crate::layout::Origin;

/// What failed, on what, why, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A word that names no role.
    #[error("{0:?} is no role: rm, nm, client and all are")]
    Role(String),
    /// No configuration directory of Hadoop is found.
    #[error(
        "no Hadoop configuration is found: neither HADOOP_CONF_DIR nor yarn envvars names one, and \
         none is at {}; say where it is with --conf-dir DIR",
        list(tried)
    )]
    NoConfDir {
        /// Where it was looked for.
        tried: Vec<PathBuf>,
    },
    /// A directory that was named is no configuration directory of Hadoop.
    #[error(
        "{} ({origin}) is no Hadoop configuration directory: it has neither yarn-site.xml nor \
         core-site.xml nor capacity-scheduler.xml",
        path.display()
    )]
    NotConfDir {
        /// The directory.
        path: PathBuf,
        /// Who named it.
        origin: Origin,
    },
    /// A file can't be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is not understood.
    #[error("{}:{}: {}; nothing was changed", path.display(), malformed.line, malformed.reason)]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        malformed: Malformed,
    },
    /// A file includes one that can't be read.
    #[error("{}:{line} includes {href}: {reason}", path.display())]
    Include {
        /// The file that includes.
        path: PathBuf,
        /// Where it does.
        line: usize,
        /// What it includes.
        href: String,
        /// Why that can't be read.
        reason: String,
    },
    /// What YARN would be pointed at does not answer as it has to.
    #[error(
        "a NodeManager would not start: {} does not answer as YARN needs it: {refusal}; \
         nothing was changed (creel doctor looks for the cause, --role rm,client leaves the \
         NodeManager out)",
        program.display()
    )]
    Answer {
        /// The program.
        program: PathBuf,
        /// Why YARN would refuse its answer.
        refusal: Refusal,
    },
    /// Daemons would not start any more.
    #[error("{} stays as it is: {}", path.display(), sentences(dangers))]
    Dangerous {
        /// The configuration directory.
        path: PathBuf,
        /// Why not.
        dangers: Vec<Danger>,
    },
    /// An entry that has to change is final.
    #[error(
        "{}:{line}: {key} is {} and final: take its <final> out, or change it there",
        path.display(), value.as_deref().unwrap_or("without a value")
    )]
    Final {
        /// The file that has it.
        path: PathBuf,
        /// Where.
        line: usize,
        /// The entry.
        key: String,
        /// Its value.
        value: Option<String>,
    },
    /// An entry does not hold, although it is the last of its file.
    #[error("{} can't change {key}: another entry holds over it", path.display())]
    Overridden {
        /// The file.
        path: PathBuf,
        /// The entry.
        key: String,
    },
    /// The scheduler doesn't read its file.
    #[error(
        "the scheduler's configuration is kept in a store ({SCHEDULER_STORE} is {store}), and \
         not in capacity-scheduler.xml: set {CALCULATOR} to {DOMINANT} there (yarn schedulerconf \
         -global), and apply with --role nm,client"
    )]
    SchedulerStore {
        /// The store.
        store: String,
    },
    /// There is no such queue.
    #[error("{} has no queue {name:?}, or several: give its path from root", path.display())]
    NoQueue {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        name: String,
    },
    /// A queue can't have a label's capacity.
    #[error("{queue} can't be given the label {label}: {reason}")]
    Queue {
        /// The queue.
        queue: String,
        /// The label.
        label: String,
        /// Why not.
        reason: String,
    },
    /// A file can't be written.
    #[error("cannot write {}: {source}; nothing was changed", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file was changed by another between reading and writing it.
    #[error("{} was changed by another meanwhile: nothing was changed, try again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// Another changes the directory.
    #[error("another creel changes {}: try again", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// A change failed half-way, and a file could not be brought back.
    #[error(
        "{first}; and then {} could not be brought back ({second}): creel yarn undo does it when \
         that is mended",
        path.display()
    )]
    HalfDone {
        /// The file.
        path: PathBuf,
        /// What failed first.
        first: Box<Error>,
        /// Why it could not be taken back.
        second: Box<Error>,
    },
    /// What was changed can't be found out.
    #[error("{} can't be read: {reason}", path.display())]
    Record {
        /// The record, or a copy that it names.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A file was edited since it was written, so that its entries can't be found.
    #[error("nothing was undone: {0}")]
    Undo(Box<Error>),
    /// A path that can't stand in a configuration file.
    #[error("{} is not UTF-8, so it can't stand in a configuration file", path.display())]
    Path {
        /// The path.
        path: PathBuf,
    },
}

/// What kind of failure an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What was asked for makes no sense.
    Usage,
    /// The operating system says that this user may not.
    NotAllowed,
    /// There is nothing of that name.
    NotFound,
    /// As things stand, it must not be done.
    Refused,
    /// It was tried, and failed.
    Failed,
}

impl Error {
    /// What kind of failure it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Role(_) | Self::Path { .. } => Kind::Usage,
            Self::Read { source, .. } | Self::Write { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Kind::NotAllowed
            }
            Self::Read { .. }
            | Self::Malformed { .. }
            | Self::Include { .. }
            | Self::Write { .. }
            | Self::HalfDone { .. }
            | Self::Record { .. } => Kind::Failed,
            Self::NoQueue { .. } | Self::NoConfDir { .. } | Self::NotConfDir { .. } => {
                Kind::NotFound
            }

            Self::Undo(_)
            | Self::Changed { .. }
            | Self::Locked { .. }
            | Self::Answer { .. }
            | Self::Dangerous { .. }
            | Self::Final { .. }
            | Self::Overridden { .. }
            | Self::SchedulerStore { .. }
            | Self::Queue { .. } => Kind::Refused,
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn sentences(dangers: &[Danger]) -> String {
    dangers.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
