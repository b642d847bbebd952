//! What can go wrong with YARN's files.

use std::path::PathBuf;

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
            Self::Role(_) => Kind::Usage,
            Self::NoConfDir { .. } | Self::NotConfDir { .. } => Kind::NotFound,
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
