//! One look at YARN's files.

use std::path::{Path, PathBuf};

use creel_settings::Settings;
use creel_yarn::restart::{self, Due};
use creel_yarn::{daemons, files};

use crate::error::Error;
use crate::yarn::cluster;

/// The machine.
const ROOT: &str = "/";

/// What a look found and did.
#[derive(Debug)]
pub(super) struct Brought {
    pub(super) conf_dir: PathBuf,
    /// The files that were written.
    pub(super) written: Vec<PathBuf>,
    /// Whether any of that had been written before, and was taken out by another.
    pub(super) again: bool,
    /// Whether there was something to write that was not written now.
    pub(super) put_off: bool,
    pub(super) due: Vec<Due>,
}

/// Brings the files to what the settings want. What others took out is put back if this may be
/// done now.
pub(super) fn bring(settings: &Settings, may_put_back: bool) -> Result<Brought, Error> {
    let (directory, _) = cluster::configuration(None, settings)?;
    let plan = cluster::plan(&directory, settings)?;
    let record = files::recorded(directory.path())?;
    let made: Vec<_> = record.iter().flat_map(|record| &record.files).collect();
    let was_made =
        |key: &str| made.iter().flat_map(|file| &file.changes).any(|made| made.change.key == key);
    let again = plan.changes.iter().any(|change| was_made(&change.key));
    let put_off = again && !may_put_back;
    let root = Path::new(ROOT);
    let written = if put_off {
        Vec::new()
    } else {
        files::apply(&directory, &plan, &daemons::running(root, directory.path()))?
    };
    let due = restart::due(directory.path(), root)?;
    Ok(Brought { conf_dir: directory.path().to_owned(), written, again, put_off, due })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A configuration directory, an nvidia-smi that shows a GPU, and settings that name both.
    fn machine() -> (tempfile::TempDir, Settings) {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::create_dir(path("conf")).unwrap();
        std::fs::write(path("conf/yarn-site.xml"), "<configuration/>").unwrap();
        let answer = "<nvidia_smi_log><gpu><minor_number>0</minor_number></gpu></nvidia_smi_log>";
        std::fs::write(path("nvidia-smi"), format!("#!/bin/sh\necho '{answer}'\n")).unwrap();
        std::fs::set_permissions(path("nvidia-smi"), std::fs::Permissions::from_mode(0o755))
            .unwrap();
        let mut settings = Settings::default();
        settings.set("yarn.conf_dir", path("conf").to_str().unwrap()).unwrap();
        settings.set("yarn.nvidia_smi_dir", directory.path().to_str().unwrap()).unwrap();
        (directory, settings)
    }

    #[test]
    fn entries_are_written_once_and_put_back_when_they_are_taken_out() {
        let (directory, settings) = machine();
        let first = bring(&settings, false).unwrap();
        assert_eq!((first.written.len(), first.again, first.put_off), (2, false, false));
        let second = bring(&settings, true).unwrap();
        assert!(second.written.is_empty() && !second.again);

        let site = directory.path().join("conf/yarn-site.xml");
        std::fs::write(&site, "<configuration></configuration>").unwrap();
        let third = bring(&settings, false).unwrap();
        assert!(third.again && third.put_off && third.written.is_empty());
        assert_eq!(std::fs::read_to_string(&site).unwrap(), "<configuration></configuration>");
        let fourth = bring(&settings, true).unwrap();
        assert!(fourth.again && !fourth.put_off);
        assert_eq!(fourth.written, [site.canonicalize().unwrap()]);
    }

    #[test]
    fn wrong_roles_are_an_error() {
        let (_directory, mut settings) = machine();
        settings.set("yarn.roles", "master").unwrap();
        assert!(bring(&settings, true).unwrap_err().to_string().contains("master"));
    }
}
