//! A configuration directory as it was read: its files, and those that they include.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::configuration::{Document, Item};

/// More than this no configuration has.
const MAX_BYTES: u64 = 16 << 20;
/// How deep files may include each other.
const MAX_DEPTH: usize = 16;

/// A file of the directory.
///
/// The order is the one in which they are written, so that whoever starts in between starts: the
/// calculator that counts GPUs comes before the resource type, and that before the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum File {
    /// Of the ResourceManager's CapacityScheduler.
    #[serde(rename = "capacity-scheduler.xml")]
    CapacityScheduler,
    /// Read by every part of YARN, after `yarn-site.xml`.
    #[serde(rename = "resource-types.xml")]
    ResourceTypes,
    /// Read by every part of YARN.
    #[serde(rename = "yarn-site.xml")]
    YarnSite,
    /// Read by every part of Hadoop, first; it is never changed.
    #[serde(rename = "core-site.xml")]
    CoreSite,
}

impl File {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::CapacityScheduler, Self::ResourceTypes, Self::YarnSite, Self::CoreSite];

    /// The file's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::CapacityScheduler => "capacity-scheduler.xml",
            Self::ResourceTypes => "resource-types.xml",
            Self::YarnSite => "yarn-site.xml",
            Self::CoreSite => "core-site.xml",
        }
    }
}

/// The files of a directory, as documents.
pub type Documents = BTreeMap<File, Document>;

/// A configuration directory.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    bytes: BTreeMap<File, Vec<u8>>,
    documents: Documents,
    included: BTreeMap<PathBuf, Document>,
    notices: Vec<String>,
}

impl Directory {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// Where a file is there that can't be read or understood: Hadoop's daemons, too, stop at it.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let path = std::fs::canonicalize(path)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let mut directory = Self {
            path,
            bytes: BTreeMap::new(),
            documents: BTreeMap::new(),
            included: BTreeMap::new(),
            notices: Vec::new(),
        };
        for file in File::ALL {
            let path = directory.file(file);
            if let Some(bytes) = read(&path)? {
                let document = parse(&path, &bytes)?;
                directory.include(&path, document.items(), 0)?;
                directory.bytes.insert(file, bytes);
                directory.documents.insert(file, document);
            }
        }
        Ok(directory)
    }

    /// Where it is, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file, whether there is one or not.
    pub fn file(&self, file: File) -> PathBuf {
        self.path.join(file.name())
    }

    /// What a file holds; `None` where there is none.
    pub fn bytes(&self, file: File) -> Option<&[u8]> {
        self.bytes.get(&file).map(Vec::as_slice)
    }

    /// The files.
    pub fn documents(&self) -> &Documents {
        &self.documents
    }

    /// What is to be known of reading it.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// The document that one of a file's includes stands for, and its path; `None` where the
    /// fallback holds.
    pub(crate) fn included(&self, from: &Path, href: &str) -> Option<(&Path, &Document)> {
        let mut candidates = self.candidates(from, href).into_iter();
        candidates
            .find_map(|path| self.included.get_key_value(&path))
            .map(|(p, d)| (p.as_path(), d))
    }

    /// Reads the files that these items include.
    fn include(&mut self, from: &Path, items: &[Item], depth: usize) -> Result<(), Error> {
        for item in items {
            let Item::Include(include) = item else { continue };
            if let Some(items) = &include.fallback {
                self.include(from, items, depth)?;
            }
            if is_remote(&include.href) {
                self.notices.push(format!(
                    "{}:{} includes {}, which is not on this machine: what it says is not known \
                     here",
                    from.display(),
                    include.line,
                    include.href
                ));
                continue;
            }
            let failed = |reason: String| Error::Include {
                path: from.to_owned(),
                line: include.line,
                href: include.href.clone(),
                reason,
            };
            if depth == MAX_DEPTH {
                return Err(failed("files include each other without end".to_owned()));
            }
            let mut found = None;
            for path in self.candidates(from, &include.href) {
                let bytes = read(&path)?;
                if let Some(bytes) = bytes {
                    found = Some((path, bytes));
                    break;
                }
            }
            match found {
                Some((path, bytes)) => {
                    let document = parse(&path, &bytes)?;
                    self.include(&path, document.items(), depth + 1)?;
                    self.included.insert(path, document);
                }
                None if include.fallback.is_some() => {}
                None => return Err(failed("there is no such file, and no fallback".to_owned())),
            }
        }
        Ok(())
    }

    /// Where a file that is included may be: on the class path, which is this directory, or beside
    /// the file that includes it.
    fn candidates(&self, from: &Path, href: &str) -> Vec<PathBuf> {
        if is_remote(href) {
            return Vec::new();
        }
        let href = Path::new(href.strip_prefix("file:").unwrap_or(href));
        vec![self.path.join(href), from.with_file_name(href)]
    }
}

fn is_remote(href: &str) -> bool {
    href.contains("://") && !href.starts_with("file:///")
}

/// The bytes of a file; `None` where there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let about = match std::fs::metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if !about.is_file() || about.len() > MAX_BYTES {
        let what = format!("it is no file of at most {} MiB", MAX_BYTES >> 20);
        return Err(failed(std::io::Error::other(what)));
    }
    std::fs::read(path).map(Some).map_err(failed)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Document, Error> {
    Document::parse(bytes)
        .map_err(|malformed| Error::Malformed { path: path.to_owned(), malformed })
}
