//! When to look at YARN's files again.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use creel_settings::Settings;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::debug;

use crate::gpus::{Gpus, Looked};

/// Whoever writes one file writes others: their last is waited for.
const SETTLED: Duration = Duration::from_secs(1);

/// Tells when something changed that matters to the files.
pub(super) struct Changes {
    settings: watch::Receiver<Arc<Settings>>,
    gpus: Gpus,
    looked: Looked,
    /// The GPUs that were seen at the last look.
    seen: Vec<Option<String>>,
    watched: Option<Watched>,
}

impl Changes {
    pub(super) fn new(settings: watch::Receiver<Arc<Settings>>, gpus: Gpus) -> Self {
        let looked = gpus.looked();
        Self { settings, gpus, looked, seen: Vec::new(), watched: None }
    }

    /// Waits for a change of the settings, and unless `again` is absent, of the GPUs and of the
    /// files in that directory, but not longer than until then. `false` when the agent ends.
    pub(super) async fn next(&mut self, conf_dir: Option<&Path>, again: Option<Instant>) -> bool {
        let Some(again) = again else {
            self.watched = None;
            return self.settings.changed().await.is_ok();
        };
        if self.watched.as_ref().map(|watched| watched.path.as_path()) != conf_dir {
            self.watched = conf_dir.and_then(|path| match Watched::new(path) {
                Ok(watched) => Some(watched),
                Err(error) => {
                    debug!("{} is looked at now and again: {error}", path.display());
                    None
                }
            });
        }
        // It goes on over looks at the GPUs.
        let mut written = pin!(written(self.watched.as_ref()));
        loop {
            tokio::select! {
                changed = self.settings.changed() => return changed.is_ok(),
                () = tokio::time::sleep_until(again) => return true,
                () = &mut written => return true,
                more = self.looked.next() => {
                    if !more {
                        return false;
                    }
                    let units = self.gpus.units().await.unwrap_or_default();
                    let seen: Vec<_> = units.into_iter().map(|unit| unit.uuid).collect();
                    if seen != self.seen {
                        self.seen = seen;
                        return true;
                    }
                }
            }
        }
    }
}

/// Waits until files are written, and all of them are; for ever without a directory.
async fn written(watched: Option<&Watched>) {
    let Some(watched) = watched else { return std::future::pending().await };
    watched.written.notified().await;
    while tokio::time::timeout(SETTLED, watched.written.notified()).await.is_ok() {}
}

/// A directory whose files are watched, by a thread that sleeps meanwhile (inotify(7)).
struct Watched {
    path: PathBuf,
    inotify: Arc<OwnedFd>,
    watch: i32,
    /// Told of a file that was written, moved or removed; of hidden ones nothing is told.
    written: Arc<Notify>,
}

impl Watched {
    fn new(path: &Path) -> io::Result<Self> {
        let inotify = Arc::new(inotify::init(CreateFlags::CLOEXEC)?);
        let events = WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::ONLYDIR;
        let watch = inotify::add_watch(&inotify, path, events)?;
        let written = Arc::new(Notify::new());
        let (reading, telling) = (Arc::clone(&inotify), Arc::clone(&written));
        thread::Builder::new()
            .name("yarn files".to_owned())
            .spawn(move || listen(&reading, &telling))?;
        Ok(Self { path: path.to_owned(), inotify, watch, written })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // The thread is told of it, and ends. It has ended if the directory is gone.
        let _ = inotify::remove_watch(&self.inotify, self.watch);
    }
}

fn listen(inotify: &OwnedFd, written: &Notify) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(inotify, &mut buffer);
    loop {
        match events.next() {
            Ok(event) if event.events().contains(ReadFlags::IGNORED) => return,
            Ok(event) => {
                let hidden = |name: &CStr| name.to_bytes().starts_with(b".");
                if !event.file_name().is_some_and(hidden) {
                    written.notify_one();
                }
            }
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_that_are_written_moved_or_removed_are_noticed_and_hidden_ones_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let watched = Watched::new(directory.path()).unwrap();
        std::fs::write(path("a"), "1").unwrap();
        watched.written.notified().await;
        std::fs::write(path(".b"), "1").unwrap();
        std::fs::rename(path(".b"), path("a")).unwrap();
        watched.written.notified().await;
        std::fs::write(path(".c"), "1").unwrap();
        std::fs::remove_file(path("a")).unwrap();
        watched.written.notified().await;
        std::fs::remove_file(path(".c")).unwrap();
        let more = tokio::time::timeout(Duration::from_millis(50), watched.written.notified());
        assert!(more.await.is_err());
    }

    #[test]
    fn the_thread_ends_with_its_watch() {
        let directory = tempfile::tempdir().unwrap();
        let watched = Watched::new(directory.path()).unwrap();
        let held = Arc::downgrade(&watched.inotify);
        drop(watched);
        while held.upgrade().is_some() {
            thread::yield_now();
        }
    }
}
