//! Replacing files as one: all of them, or none.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::mem;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, Uid, XattrFlags, fchmod, fchown, fsetxattr};
use rustix::fs::{getxattr, listxattr};
use rustix::io::Errno;

use crate::Error;

/// A file system's limit on a list of attributes, and on one (xattr(7)).
const MAX_ATTRIBUTE_BYTES: usize = 64 << 10;

/// The next state of a file.
pub(super) struct Step {
    /// The file, not a link to it.
    target: PathBuf,
    before: Option<Vec<u8>>,
    next: Next,
}

enum Next {
    /// The file with the next content, beside the target.
    Content(Temporary),
    /// No file: where it is put until all steps are taken.
    Removed(Temporary),
}

/// A file that goes with its owner, unless it has been renamed.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // Left behind it does no harm: the next change of the directory removes it.
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

impl Step {
    /// A file that gets other content. Mode, owner, ACL and label stay; a new file has those of
    /// `like`.
    pub(super) fn write(
        path: &Path,
        before: Option<&[u8]>,
        after: &[u8],
        like: &Path,
    ) -> Result<Self, Error> {
        let target = real(path);
        let prepare = || prepare(&target, after, if before.is_some() { &target } else { like });
        let temporary =
            prepare().map_err(|source| Error::Write { path: target.clone(), source })?;
        let before = before.map(<[u8]>::to_vec);
        Ok(Self { target, before, next: Next::Content(temporary) })
    }

    /// A file that is to be no more.
    pub(super) fn remove(path: &Path, before: &[u8]) -> Result<Self, Error> {
        let target = real(path);
        let aside = temporary_of(&target)
            .map_err(|source| Error::Write { path: target.clone(), source })?;
        let next = Next::Removed(Temporary(aside));
        Ok(Self { target, before: Some(before.to_vec()), next })
    }

    fn commit(&mut self) -> Result<(), Error> {
        let failed = |source| Error::Write { path: self.target.clone(), source };
        let now = match std::fs::read(&self.target) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        if now != self.before {
            return Err(Error::Changed { path: self.target.clone() });
        }
        match &mut self.next {
            Next::Content(temporary) => {
                std::fs::rename(&temporary.0, &self.target).map_err(failed)?;
                mem::take(&mut temporary.0);
            }
            Next::Removed(aside) => {
                std::fs::rename(&self.target, &aside.0).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Brings back what was there before.
    fn revert(&mut self) -> Result<(), Error> {
        let failed = |source| Error::Write { path: self.target.clone(), source };
        let mut former = match (&mut self.next, &self.before) {
            (Next::Removed(aside), _) => Temporary(mem::take(&mut aside.0)),
            (Next::Content(_), Some(before)) => {
                prepare(&self.target, before, &self.target).map_err(failed)?
            }
            (Next::Content(_), None) => {
                return std::fs::remove_file(&self.target).map_err(failed);
            }
        };
        std::fs::rename(&former.0, &self.target).map_err(failed)?;
        mem::take(&mut former.0);
        Ok(())
    }
}

/// Takes the steps, in their order. If one fails, those before it are taken back.
pub(super) fn take(mut steps: Vec<Step>) -> Result<(), Error> {
    for at in 0..steps.len() {
        if let Err(error) = steps[at].commit() {
            for step in steps[..at].iter_mut().rev() {
                if let Err(second) = step.revert() {
                    return Err(Error::HalfDone {
                        path: step.target.clone(),
                        first: Box::new(error),
                        second: Box::new(second),
                    });
                }
            }
            return Err(error);
        }
    }
    for step in &steps {
        sync_directory_of(&step.target)
            .map_err(|source| Error::Write { path: step.target.clone(), source })?;
    }
    Ok(())
}

/// Removes what a change that was cut off left beside a file.
pub(super) fn sweep(path: &Path) {
    let target = real(path);
    let (Some(directory), Some(prefix)) = (target.parent(), prefix(&target)) else { return };
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            // If it can't be removed, the change that is to come says why.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Writes a file at once, whoever reads it: for files that are only ours.
pub(super) fn write_own(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut temporary = Temporary(temporary_of(path)?);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&temporary.0)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&temporary.0, path)?;
    mem::take(&mut temporary.0);
    sync_directory_of(path)
}

/// Where a path leads, through links; the path itself where there is nothing.
fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Writes a file beside another, with the attributes of a third.
fn prepare(target: &Path, content: &[u8], like: &Path) -> io::Result<Temporary> {
    let temporary = Temporary(temporary_of(target)?);
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary.0)?;
    file.write_all(content)?;
    resemble(&file, like)?;
    file.sync_all()?;
    Ok(temporary)
}

/// Gives a new file the owner, mode, ACL and label of another.
fn resemble(file: &File, like: &Path) -> io::Result<()> {
    let (about, own) = (std::fs::metadata(like)?, file.metadata()?);
    if (about.uid(), about.gid()) != (own.uid(), own.gid()) {
        fchown(file, Some(Uid::from_raw(about.uid())), Some(Gid::from_raw(about.gid())))?;
    }
    fchmod(file, Mode::from_raw_mode(about.mode() & 0o7777))?;
    let mut names = vec![0; MAX_ATTRIBUTE_BYTES];
    let names = match listxattr(like, &mut names[..]) {
        Ok(length) => &names[..length],
        Err(Errno::NOTSUP) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut value = vec![0; MAX_ATTRIBUTE_BYTES];
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let length = getxattr(like, name, &mut value[..])?;
        match fsetxattr(file, name, &value[..length], XattrFlags::empty()) {
            Ok(()) | Err(Errno::NOTSUP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The names of files beside another one begin so.
fn prefix(target: &Path) -> Option<String> {
    Some(format!(".{}.creel-", target.file_name()?.to_str()?))
}

fn temporary_of(target: &Path) -> io::Result<PathBuf> {
    let prefix = prefix(target).ok_or(ErrorKind::InvalidFilename)?;
    Ok(target.with_file_name(format!("{prefix}{}", std::process::id())))
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(directory.path().join(name), content).unwrap();
        }
        directory
    }

    #[test]
    fn mode_and_attributes_stay_and_links_stay_links() {
        let directory = directory(&[("a", "1")]);
        let (file, link) = (directory.path().join("a"), directory.path().join("link"));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        let labelled = rustix::fs::setxattr(&file, "user.label", b"x", XattrFlags::empty()).is_ok();
        std::os::unix::fs::symlink("a", &link).unwrap();
        take(vec![Step::write(&link, Some(b"1"), b"2", &link).unwrap()]).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "2");
        assert!(link.is_symlink());
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o640);
        let mut value = [0; 8];
        let kept = getxattr(&file, "user.label", &mut value).is_ok_and(|n| &value[..n] == b"x");
        assert_eq!(kept, labelled);
    }

    #[test]
    fn a_failure_takes_back_what_came_before() {
        let directory = directory(&[("a", "1"), ("b", "1"), ("d", "1")]);
        let path = |name: &str| directory.path().join(name);
        let steps = vec![
            Step::write(&path("a"), Some(b"1"), b"2", &path("a")).unwrap(),
            Step::write(&path("c"), None, b"2", &path("a")).unwrap(),
            Step::remove(&path("d"), b"1").unwrap(),
            Step::write(&path("b"), Some(b"other"), b"2", &path("b")).unwrap(),
        ];
        let error = take(steps).unwrap_err();
        assert!(matches!(error, Error::Changed { .. }), "{error}");
        let mut left: Vec<_> = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()))
            .collect();
        left.sort();
        let expected = ["a", "b", "d"].map(|name| (path(name), "1".to_owned()));
        assert_eq!(left, expected);
    }

    #[test]
    fn what_was_left_behind_is_swept_and_nothing_else() {
        let directory =
            directory(&[("a", "1"), (".a.creel-7", ""), (".b.creel-7", ""), ("a.creel-7", "")]);
        sweep(&directory.path().join("a"));
        let mut left: Vec<_> = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, [".b.creel-7", "a", "a.creel-7"]);
    }
}
