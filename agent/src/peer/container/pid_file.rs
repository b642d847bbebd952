//! The NodeManager's pid files: `<local-dir>/nmPrivate/<application>/<container>/<container>.pid`
//! (`ContainerLaunch.getPidFileSubpath`), in one of `yarn.nodemanager.local-dirs`.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::peer::proc::Proc;
use crate::yarn::container_id::ContainerId;

/// The directory that a NodeManager keeps to itself.
const PRIVATE: &str = "nmPrivate";

/// What the NodeManager's pid file of a container says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PidFile {
    /// The container is that process, and what it started; by a file in that local directory.
    Names(i32, PathBuf),
    /// There is none, where it would be.
    Missing,
    /// The agent can't look.
    Unreadable,
}

impl PidFile {
    /// Looks for a container's in the local directories of the process's `LOCAL_DIRS`. Those whose
    /// private directory belongs to a user who is none of the NodeManager's don't count.
    pub(super) fn look(
        proc: &Proc,
        pid: i32,
        container: &str,
        is_manager: impl Fn(u32) -> bool,
    ) -> Self {
        let Ok(id) = container.parse::<ContainerId>() else { return Self::Unreadable };
        let application = id.application();
        let mut looked = Self::Unreadable;
        for local in local_dirs(proc, pid) {
            let private = local.join(PRIVATE);
            let is_theirs = private.symlink_metadata().is_ok_and(|dir| is_manager(dir.uid()));
            if !is_theirs || fs::read_dir(&private).is_err() {
                continue;
            }
            let file = private.join(&application).join(container).join(format!("{container}.pid"));
            match read(&file) {
                Some(pid) => return Self::Names(pid, local),
                None => looked = Self::Missing,
            }
        }
        looked
    }
}

/// The NodeManager's local directories, by a container's environment:
/// `LOCAL_DIRS=/data1/yarn/usercache/ann/appcache/application_…,/data2/…`.
fn local_dirs(proc: &Proc, pid: i32) -> Vec<PathBuf> {
    let variable = proc.variable(pid, "LOCAL_DIRS").ok().flatten().unwrap_or_default();
    let dirs = variable.split(',').filter_map(|dir| dir.split_once("/usercache/"));
    dirs.map(|(local, _)| PathBuf::from(local)).filter(|local| local.is_absolute()).collect()
}

fn read(path: &Path) -> Option<i32> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).custom_flags(flags.bits().cast_signed()).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok().filter(|pid| *pid > 0)
}
