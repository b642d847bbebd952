//! The thread that writes: the store first, then the audit log and the agent's own.
//!
//! A disk may be slow, full or gone. Nobody waits for it but who is granted a lease: a lease that
//! is not on the disk would be forgotten by the next agent, so it is not given. An end needs no
//! disk: the next agent sees that the holder has gone.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::oneshot;
use tracing::{error, info, warn};

use super::audit::Audit;
use super::lease::Lease;
use super::recovery::Doubt;
use super::store::{self, Change, Content, Store};

/// What is written.
enum Entry {
    /// A lease was granted; whether it is on the disk.
    Grant(Box<Lease>, oneshot::Sender<Result<(), String>>),
    /// A lease has ended.
    End(Box<Lease>, String),
    /// What is in doubt from now on.
    Doubt(Option<Doubt>),
}

/// The way to the thread.
#[derive(Debug)]
pub(super) struct Journal {
    entries: mpsc::Sender<Entry>,
    /// Whether what the store holds could not be read.
    unread: bool,
    problem: Arc<Mutex<Option<String>>>,
}

/// The thread.
struct Writer {
    dir: PathBuf,
    /// Absent after an error; it is opened again for the next entry.
    store: Option<Store>,
    /// Whether it could not be read at the start: nobody knows what it holds, and it stays closed.
    unread: bool,
    audit: Audit,
    held: BTreeMap<u64, Lease>,
    next: u64,
    doubt: Option<Doubt>,
    problem: Arc<Mutex<Option<String>>>,
}

impl Journal {
    /// Starts the thread on what [`super::recovery`] found: a store, unless there is none that can
    /// be used, what it holds now, and what is wrong with it.
    pub(super) fn start(
        dir: PathBuf,
        store: Option<Store>,
        audit: Audit,
        content: Content,
        problem: Option<String>,
    ) -> std::io::Result<Self> {
        let (entries, received) = mpsc::channel();
        let problem = Arc::new(Mutex::new(problem));
        let unread = store.is_none();
        let writer = Writer {
            dir,
            unread,
            store,
            audit,
            held: content.leases.into_iter().map(|lease| (lease.number, lease)).collect(),
            next: content.next,
            doubt: content.doubt,
            problem: Arc::clone(&problem),
        };
        thread::Builder::new()
            .name("leases".to_owned())
            .spawn(move || writer.write_all(&received))?;
        Ok(Self { entries, unread, problem })
    }

    /// Writes of a grant, and waits until it is on the disk.
    pub(super) async fn grant(&self, lease: Lease) -> Result<(), String> {
        let (written, answer) = oneshot::channel();
        let ended = || "the thread that writes leases has ended".to_owned();
        self.entries.send(Entry::Grant(Box::new(lease), written)).map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }

    /// Writes of an end, some time.
    pub(super) fn end(&self, lease: Lease, reason: String) {
        let _ = self.entries.send(Entry::End(Box::new(lease), reason));
    }

    /// Writes of what is in doubt, some time.
    pub(super) fn doubt(&self, doubt: Option<Doubt>) {
        let _ = self.entries.send(Entry::Doubt(doubt));
    }

    /// Why no lease can be given until the agent starts anew: nobody knows who holds what.
    pub(super) fn unread(&self) -> Option<String> {
        self.problem().filter(|_| self.unread).map(|problem| {
            format!(
                "{problem}; nobody knows who holds what until it is put right and the agent is \
                 started anew"
            )
        })
    }

    /// What is wrong with what is on the disk.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Writer {
    fn write_all(mut self, entries: &mpsc::Receiver<Entry>) {
        for entry in entries {
            match entry {
                Entry::Grant(lease, written) => {
                    let _ = written.send(self.grant(&lease));
                }
                Entry::End(lease, reason) => self.end(&lease, &reason),
                Entry::Doubt(doubt) => {
                    self.doubt = doubt;
                    let content = self.content();
                    let _ = self.write(|store| store.rewrite(&content));
                }
            }
        }
    }

    fn content(&self) -> Content {
        let leases = self.held.values().cloned().collect();
        Content { leases, next: self.next, doubt: self.doubt.clone() }
    }

    fn grant(&mut self, lease: &Lease) -> Result<(), String> {
        let next = lease.number + 1;
        let change = Change { put: vec![lease.clone()], next: Some(next), ..Change::default() };
        self.write(|store| store.change(&change))?;
        self.next = next;
        let devices: Vec<_> = lease.devices.iter().map(|held| held.uuid.as_str()).collect();
        info!(
            lease = lease.id(),
            uid = lease.holder.uid,
            source = lease.source.name(),
            "{} holds {}",
            lease.holder.name(),
            if devices.is_empty() { "no GPU".to_owned() } else { devices.join(", ") }
        );
        self.held.insert(lease.number, lease.clone());
        let held: Vec<_> = self.held.values().cloned().collect();
        if let Err(failed) = self.audit.grant(lease, &held) {
            warn!("the audit log has no line of {}: {failed}", lease.id());
        }
        Ok(())
    }

    fn end(&mut self, lease: &Lease, reason: &str) {
        self.held.remove(&lease.number);
        info!(lease = lease.id(), "{} holds nothing any more: {reason}", lease.holder.name());
        let change = Change { remove: vec![lease.number], ..Change::default() };
        let _ = self.write(|store| store.change(&change));
        let held: Vec<_> = self.held.values().cloned().collect();
        if let Err(failed) = self.audit.end(lease, reason, &held) {
            warn!("the audit log has no line of the end of {}: {failed}", lease.id());
        }
    }

    /// Writes to the store. After an error it is opened anew, with all that is held.
    fn write(
        &mut self,
        write: impl FnOnce(&Store) -> Result<(), store::Error>,
    ) -> Result<(), String> {
        if self.unread {
            return Err("the lease store could not be read".to_owned());
        }
        let written = self.opened().and_then(write).map_err(|failed| failed.to_string());
        if let Err(failed) = &written {
            error!("{failed}");
            self.store = None;
        }
        *self.problem() = written.as_ref().err().cloned();
        written
    }

    fn opened(&mut self) -> Result<&Store, store::Error> {
        let store = if let Some(store) = self.store.take() {
            store
        } else {
            let (store, _) = Store::open(&self.dir)?;
            store.rewrite(&self.content())?;
            store
        };
        Ok(self.store.insert(store))
    }

    fn problem(&self) -> MutexGuard<'_, Option<String>> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
