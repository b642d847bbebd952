//! Batches at rest, which move from the device to the host to disk when memory is short.
//!
//! ```text
//!   insert ──▶ device ──spill──▶ host ──spill──▶ disk
//!                ▲ ────────────────┘               │
//!                └── get: upload, checksum ────────┘
//! ```
//!
//! An operator that keeps a batch for later gives it to the [`SpillStore`] and gets a
//! [`Spillable`]. Until it asks for the batch again, the [`ledger`](super::ledger) may have it
//! moved: the lowest priority first, to the host as far as `gpu.memory.host_spill_size` and the
//! host's limit allow, else to disk. A batch is copied first and its memory given back after, so
//! a copy that fails leaves it where it was. What is read from disk must have the checksum that
//! it had.
//!
//! The store knows bytes alone; what moves them is a [`Mover`].
//!
//! In [`disk`] are the files.

pub mod disk;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use self::disk::{SpillDirectory, SpillFile};
use super::error::MemoryError;
use super::ledger::{Kind, Query, Reservation, Spiller, Task, Whose};

/// Copies buffers between the device and the host.
///
/// A buffer has a stream of its own: work on its contents comes in that stream's order, and in
/// the same order its memory goes back.
pub trait Mover: Send + Sync + 'static {
    /// A buffer of the device; dropping it gives its memory and its reservation back.
    type Buffer: Send + Sync + 'static;

    /// A stream of the device.
    type Stream: Send + Sync + 'static;

    /// What the buffer counts for in the ledger, in bytes.
    fn reserved(&self, buffer: &Self::Buffer) -> u64;

    /// Copies all of a buffer, as work on its stream leaves it; the copy is done when this returns.
    fn download(&self, buffer: &Self::Buffer) -> Result<Vec<u8>, MemoryError>;

    /// Makes a buffer of these bytes, with a stream that it chooses.
    fn upload(&self, task: &Task, bytes: &[u8]) -> Result<Self::Buffer, MemoryError>;

    /// What `stream` is given from now on comes after what the buffers' own streams have until now.
    fn begin_use(&self, buffers: &[Self::Buffer], stream: &Self::Stream)
    -> Result<(), MemoryError>;

    /// What the buffers' own streams are given from now on comes after what `stream` has until now.
    fn end_use(&self, buffers: &[Self::Buffer], stream: &Self::Stream) -> Result<(), MemoryError>;
}

/// Which batches stay longest: the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority(pub u64);

impl Priority {
    /// That of a query's batches: those of older queries stay longer.
    pub fn of(query: &Query) -> Self {
        Self(u64::MAX - query.number())
    }
}

/// What moved, and what is where. Bytes as reserved on the device, and as long as they are
/// elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpillStatistics {
    /// Batches that the store has.
    pub batches: u64,
    /// On the host now, in bytes.
    pub host: u64,
    /// On disk now, in bytes.
    pub disk: u64,
    /// Moved from the device to the host, in bytes.
    pub to_host: u64,
    /// Moved to disk, in bytes.
    pub to_disk: u64,
    /// Moved back from the host, in bytes.
    pub from_host: u64,
    /// Moved back from disk, in bytes.
    pub from_disk: u64,
    /// Batches that could not be moved, or be ordered behind work that used them.
    pub failures: u64,
}

/// An executor's batches at rest.
pub struct SpillStore<M: Mover> {
    inner: Arc<Inner<M>>,
}

struct Inner<M: Mover> {
    mover: M,
    /// What batches may take of the host, in bytes.
    host_limit: u64,
    directory: Arc<SpillDirectory>,
    /// The lowest priority first.
    batches: Mutex<BTreeMap<Key, Arc<Batch<M>>>>,
    next: AtomicU64,
    host: AtomicU64,
    counters: Counters,
    last_failure: Mutex<Option<MemoryError>>,
}

#[derive(Default)]
struct Counters {
    to_host: AtomicU64,
    to_disk: AtomicU64,
    from_host: AtomicU64,
    from_disk: AtomicU64,
    failures: AtomicU64,
}

/// Of two batches of one priority the one kept first is moved first.
type Key = (Priority, u64);

struct Batch<M: Mover> {
    query: Query,
    /// Locked while it is in use: what is locked is not moved.
    place: RwLock<Place<M>>,
}

enum Place<M: Mover> {
    Device(Vec<M::Buffer>),
    Host(HostBuffers),
    Disk(SpillFile),
}

struct HostBuffers {
    buffers: Vec<Vec<u8>>,
    reservation: Reservation,
}

impl<M: Mover> Clone for SpillStore<M> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<M: Mover> SpillStore<M> {
    /// A store without batches. `host_limit` is what they may take of the host, in bytes.
    pub fn new(mover: M, host_limit: u64, directory: Arc<SpillDirectory>) -> Self {
        let inner = Inner {
            mover,
            host_limit,
            directory,
            batches: Mutex::default(),
            next: AtomicU64::new(0),
            host: AtomicU64::new(0),
            counters: Counters::default(),
            last_failure: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Keeps a batch, whose buffers are as work on their own streams leaves them.
    pub fn insert(
        &self,
        query: &Query,
        buffers: Vec<M::Buffer>,
        priority: Priority,
    ) -> Spillable<M> {
        let key = (priority, self.inner.next.fetch_add(1, Ordering::Relaxed));
        let place = RwLock::new(Place::Device(buffers));
        let batch = Arc::new(Batch { query: query.clone(), place });
        self.inner.batches.lock().insert(key, Arc::clone(&batch));
        Spillable { store: self.clone(), key, batch }
    }

    /// Its numbers now.
    pub fn statistics(&self) -> SpillStatistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Inner { batches, host, directory, counters, .. } = &*self.inner;
        SpillStatistics {
            batches: batches.lock().len() as u64,
            host: read(host),
            disk: directory.used(),
            to_host: read(&counters.to_host),
            to_disk: read(&counters.to_disk),
            from_host: read(&counters.from_host),
            from_disk: read(&counters.from_disk),
            failures: read(&counters.failures),
        }
    }

    /// Why a batch could not be moved last, if any could not since the last call.
    pub fn take_failure(&self) -> Option<MemoryError> {
        self.inner.last_failure.lock().take()
    }
}

impl<M: Mover> Inner<M> {
    /// The batches to look at, the lowest priority first.
    fn candidates(&self, whose: Whose) -> Vec<(Priority, Arc<Batch<M>>)> {
        let of = |batch: &Batch<M>| match whose {
            Whose::Query(number) => batch.query.number() == number,
            Whose::Attachment(number) => batch.query.attachment().number() == number,
            Whose::All => true,
        };
        let batches = self.batches.lock();
        let matching = batches.iter().filter(|(_, batch)| of(batch));
        matching.map(|((priority, _), batch)| (*priority, Arc::clone(batch))).collect()
    }

    /// Moves a batch off the device, if it is there; the bytes that became free.
    fn off_device(
        &self,
        place: &mut Place<M>,
        query: &Query,
        priority: Priority,
    ) -> Result<u64, MemoryError> {
        let Place::Device(buffers) = place else { return Ok(0) };
        let reserved = buffers.iter().map(|buffer| self.mover.reserved(buffer)).sum();
        if reserved == 0 {
            return Ok(0);
        }
        let mut copies = Vec::with_capacity(buffers.len());
        for buffer in &*buffers {
            copies.push(self.mover.download(buffer)?);
        }
        let bytes = copies.iter().map(|copy| copy.len() as u64).sum();
        *place = match self.room_on_host(query, bytes, priority) {
            Some(reservation) => {
                self.host.fetch_add(bytes, Ordering::Relaxed);
                self.counters.to_host.fetch_add(bytes, Ordering::Relaxed);
                Place::Host(HostBuffers { buffers: copies, reservation })
            }
            None => Place::Disk(self.write(&copies)?),
        };
        Ok(reserved)
    }

    /// Moves a batch from the host to disk, if it is there; the bytes that became free.
    fn host_to_disk(&self, place: &mut Place<M>) -> Result<u64, MemoryError> {
        let Place::Host(HostBuffers { buffers, reservation }) = place else { return Ok(0) };
        let bytes = reservation.bytes();
        *place = Place::Disk(self.write(buffers)?);
        self.host.fetch_sub(bytes, Ordering::Relaxed);
        Ok(bytes)
    }

    fn write(&self, buffers: &[Vec<u8>]) -> Result<SpillFile, MemoryError> {
        let file = self.directory.write(buffers)?;
        self.counters.to_disk.fetch_add(file.bytes(), Ordering::Relaxed);
        Ok(file)
    }

    /// Room for a batch on the host, for which those of lower priority go to disk.
    fn room_on_host(&self, query: &Query, bytes: u64, priority: Priority) -> Option<Reservation> {
        let try_reserve = || {
            let used = self.host.load(Ordering::Relaxed);
            let fits = used.checked_add(bytes).is_some_and(|used| used <= self.host_limit);
            fits.then(|| query.try_reserve(Kind::Host, bytes, "spilled batches")).flatten()
        };
        if let Some(reservation) = try_reserve() {
            return Some(reservation);
        }
        if bytes > self.host_limit {
            return None;
        }
        let lower = self.candidates(Whose::All).into_iter().take_while(|(of, _)| *of < priority);
        for (_, batch) in lower {
            let Some(mut place) = batch.place.try_write() else { continue };
            match self.host_to_disk(&mut place) {
                Ok(0) => {}
                Ok(_) => {
                    drop(place);
                    if let Some(reservation) = try_reserve() {
                        return Some(reservation);
                    }
                }
                Err(error) => self.failed(error),
            }
        }
        None
    }

    /// Brings a batch to the device. After an error it is where it was.
    fn to_device(&self, place: &mut Place<M>, task: &Task) -> Result<(), MemoryError> {
        let upload = |bytes: &[u8]| self.mover.upload(task, bytes);
        let buffers = match &*place {
            Place::Device(_) => return Ok(()),
            Place::Host(HostBuffers { buffers, reservation }) => {
                let uploaded =
                    buffers.iter().map(|bytes| upload(bytes)).collect::<Result<_, _>>()?;
                self.host.fetch_sub(reservation.bytes(), Ordering::Relaxed);
                self.counters.from_host.fetch_add(reservation.bytes(), Ordering::Relaxed);
                uploaded
            }
            Place::Disk(file) => {
                let mut uploaded = Vec::new();
                file.read(|bytes| {
                    uploaded.push(upload(bytes)?);
                    Ok(())
                })?;
                self.counters.from_disk.fetch_add(file.bytes(), Ordering::Relaxed);
                uploaded
            }
        };
        *place = Place::Device(buffers);
        Ok(())
    }

    fn failed(&self, error: MemoryError) {
        self.counters.failures.fetch_add(1, Ordering::Relaxed);
        *self.last_failure.lock() = Some(error);
    }
}

impl<M: Mover> Spiller for SpillStore<M> {
    fn spill(&self, kind: Kind, bytes: u64, whose: Whose) -> u64 {
        let mut freed = 0;
        if kind == Kind::Pinned {
            return freed;
        }
        for (priority, batch) in self.inner.candidates(whose) {
            if freed >= bytes {
                break;
            }
            // Somebody uses it, perhaps this very task.
            let Some(mut place) = batch.place.try_write() else { continue };
            let moved = match kind {
                Kind::Device => self.inner.off_device(&mut place, &batch.query, priority),
                Kind::Host => self.inner.host_to_disk(&mut place),
                Kind::Pinned => Ok(0),
            };
            match moved {
                Ok(bytes) => freed += bytes,
                Err(error) => self.inner.failed(error),
            }
        }
        freed
    }
}

/// A batch at rest. Dropping it drops the batch, wherever it is.
pub struct Spillable<M: Mover> {
    store: SpillStore<M>,
    key: Key,
    batch: Arc<Batch<M>>,
}

/// Where a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// In the device's memory.
    Device,
    /// In the host's memory.
    Host,
    /// In a file.
    Disk,
}

impl<M: Mover> Spillable<M> {
    /// The batch, on the device, for work on a stream. It stays there while this is held, which
    /// several tasks may do. Who drops it has given the stream all work that uses the batch; that
    /// need not be done.
    pub fn get(&self, task: &Task, stream: &Arc<M::Stream>) -> Result<Held<'_, M>, MemoryError> {
        let place = self.on_device(task)?;
        if let Place::Device(buffers) = &*place {
            self.store.inner.mover.begin_use(buffers, stream)?;
        }
        Ok(Held { place, stream: Arc::clone(stream), store: &self.store })
    }

    fn on_device(&self, task: &Task) -> Result<RwLockReadGuard<'_, Place<M>>, MemoryError> {
        if let Some(place) = self.batch.place.try_read()
            && matches!(*place, Place::Device(_))
        {
            return Ok(place);
        }
        // Another task that brings it up may wait for memory that this one has.
        let locked = self.batch.place.try_write();
        let mut place = locked.unwrap_or_else(|| task.idle(|| self.batch.place.write()));
        self.store.inner.to_device(&mut place, task)?;
        Ok(RwLockWriteGuard::downgrade(place))
    }

    /// Where it is now.
    pub fn tier(&self) -> Tier {
        match &*self.batch.place.read() {
            Place::Device(_) => Tier::Device,
            Place::Host(_) => Tier::Host,
            Place::Disk(_) => Tier::Disk,
        }
    }
}

impl<M: Mover> Drop for Spillable<M> {
    fn drop(&mut self) {
        self.store.inner.batches.lock().remove(&self.key);
        // Here and not with the last clone, which somebody who looks for batches may have.
        let gone = std::mem::replace(&mut *self.batch.place.write(), Place::Device(Vec::new()));
        if let Place::Host(HostBuffers { reservation, .. }) = &gone {
            self.store.inner.host.fetch_sub(reservation.bytes(), Ordering::Relaxed);
        }
    }
}

/// A batch on the device, which is not moved while this lives.
pub struct Held<'a, M: Mover> {
    place: RwLockReadGuard<'a, Place<M>>,
    stream: Arc<M::Stream>,
    store: &'a SpillStore<M>,
}

impl<M: Mover> Drop for Held<'_, M> {
    fn drop(&mut self) {
        if let Err(error) = self.store.inner.mover.end_use(self, &self.stream) {
            self.store.inner.failed(error);
        }
    }
}

impl<M: Mover> Deref for Held<'_, M> {
    type Target = [M::Buffer];

    fn deref(&self) -> &[M::Buffer] {
        match &*self.place {
            Place::Device(buffers) => buffers,
            Place::Host(_) | Place::Disk(_) => unreachable!("what is held is on the device"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
