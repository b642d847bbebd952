//! Notices the end of processes.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

/// What is done when a process ends.
type Then = Box<dyn FnOnce() + Send>;

/// Waits for the end of any number of processes with one thread, which sleeps meanwhile.
///
/// A pidfd becomes readable when its process ends (`pidfd_open(2)`), whoever still holds what
/// the process had open.
#[derive(Clone, Debug)]
pub struct Ends {
    shared: Arc<Shared>,
}

struct Shared {
    epoll: OwnedFd,
    next: AtomicU64,
    awaited: Mutex<HashMap<u64, Then>>,
}

/// The wait for the end of a process, until it is dropped.
#[derive(Debug)]
pub struct Awaited {
    shared: Arc<Shared>,
    number: u64,
    /// Closing it takes it out of the epoll set.
    _pidfd: OwnedFd,
}

impl Ends {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            next: AtomicU64::new(0),
            awaited: Mutex::default(),
        });
        let waiting = Arc::clone(&shared);
        thread::Builder::new().name("peers".to_owned()).spawn(move || waiting.wait())?;
        Ok(Self { shared })
    }

    /// Calls `then` when the process of a pidfd has ended, unless what this returns is dropped
    /// before.
    pub fn when_ended(
        &self,
        pidfd: OwnedFd,
        then: impl FnOnce() + Send + 'static,
    ) -> io::Result<Awaited> {
        let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
        self.shared.awaited().insert(number, Box::new(then));
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        let added = epoll::add(&self.shared.epoll, &pidfd, EventData::new_u64(number), flags);
        let awaited = Awaited { shared: Arc::clone(&self.shared), number, _pidfd: pidfd };
        added?;
        Ok(awaited)
    }
}

impl Shared {
    fn wait(&self) {
        let mut events = Vec::<Event>::with_capacity(64);
        loop {
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            // Only a signal interrupts it.
            if epoll::wait(&self.epoll, spare, None).is_err() {
                continue;
            }
            for event in &events {
                let then = self.awaited().remove(&event.data.u64());
                if let Some(then) = then {
                    then();
                }
            }
        }
    }

    fn awaited(&self) -> MutexGuard<'_, HashMap<u64, Then>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("awaited", &self.awaited().len()).finish_non_exhaustive()
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.shared.awaited().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::process::{Pid, PidfdFlags};

    use super::*;

    fn sleeper() -> (Child, OwnedFd) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        (child, pidfd.unwrap())
    }

    #[test]
    fn the_end_of_a_process_is_noticed_once() {
        let ends = Ends::start().unwrap();
        let (told, ended) = mpsc::channel();
        let (mut child, pidfd) = sleeper();
        let _awaited = ends.when_ended(pidfd, move || told.send(()).unwrap()).unwrap();
        assert!(ended.try_recv().is_err());
        child.kill().unwrap();
        // Before anybody has waited for it.
        ended.recv_timeout(Duration::from_secs(10)).unwrap();
        child.wait().unwrap();
        assert_eq!(ends.shared.awaited().len(), 0);
    }

    #[test]
    fn who_does_not_want_to_know_is_not_told() {
        let ends = Ends::start().unwrap();
        let (told, ended) = mpsc::channel();
        let (mut child, pidfd) = sleeper();
        drop(ends.when_ended(pidfd, move || told.send(()).unwrap()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(ended.recv(), Err(mpsc::RecvError), "the sender went with the wait");
    }
}
