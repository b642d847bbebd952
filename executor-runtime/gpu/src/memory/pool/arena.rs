//! ARENA: each stream has superblocks of its own for small pieces; large pieces are from the whole.
//!
//! ```text
//!   whole    │ superblock of S │ large │ superblock of T │ large │   free   │
//!   S            ▪▪▪ ▪ ▪                 T   ▪ ▪▪
//! ```
//!
//! Small pieces are many and short of life. In superblocks they don't cut up what large ones
//! need, and streams that different threads use don't wait for each other's locks. An empty
//! superblock goes back to the whole, all but one of each stream. When there is no room, all
//! empty ones go back, and then a small piece may come from another stream's superblock.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::heap::{ChunkId, Heap, Traffic};
use super::{ALIGNMENT, Place, Suballocator, Usage};
use crate::memory::upstream::{Stream, Upstream, UpstreamError};

/// A superblock is this part of the pool, within these bounds.
const SUPERBLOCK_SHARE: u64 = 1024;
const MIN_SUPERBLOCK: u64 = 1 << 20;
const MAX_SUPERBLOCK: u64 = 16 << 20;

/// And no more than this part, lest one keeps large pieces out of a small pool.
const LARGEST_SHARE: u64 = 8;

/// A piece is small up to this part of a superblock.
const SMALL_SHARE: u64 = 8;

/// What the pool grows by, at the least.
const STEP: u64 = 64 << 20;

/// [`Place::home`] of what is from the whole.
const WHOLE: u32 = u32::MAX;

pub(super) struct Arena<U: Upstream> {
    upstream: Arc<U>,
    maximum: u64,
    superblock: u64,
    whole: Mutex<Whole<U>>,
    /// Never fewer: [`Place::home`] is an index.
    streams: RwLock<Vec<Arc<StreamArena<U>>>>,
}

struct Whole<U: Upstream> {
    heap: Heap<U>,
    /// Address of each region.
    regions: Vec<u64>,
    taken: u64,
}

struct StreamArena<U: Upstream> {
    stream: Stream,
    home: u32,
    heap: Mutex<Heap<U>>,
}

impl<U: Upstream> Arena<U> {
    pub(super) fn new(initial: u64, maximum: u64, upstream: Arc<U>) -> Result<Self, UpstreamError> {
        let mut whole = Whole { heap: Heap::new(), regions: Vec::new(), taken: 0 };
        if initial > 0 {
            whole.extend(upstream.alloc(initial)?, initial);
        }
        let superblock = (maximum / SUPERBLOCK_SHARE).clamp(MIN_SUPERBLOCK, MAX_SUPERBLOCK);
        let largest = (maximum / LARGEST_SHARE).max(ALIGNMENT);
        Ok(Self {
            upstream,
            maximum,
            superblock: superblock.next_power_of_two().min(1 << largest.ilog2()),
            whole: Mutex::new(whole),
            streams: RwLock::default(),
        })
    }

    fn arena(&self, stream: Stream) -> Arc<StreamArena<U>> {
        let of = |all: &[Arc<StreamArena<U>>]| {
            all.iter().find(|arena| arena.stream == stream).map(Arc::clone)
        };
        if let Some(arena) = of(&self.streams.read()) {
            return arena;
        }
        let mut streams = self.streams.write();
        of(&streams).unwrap_or_else(|| {
            let home = u32::try_from(streams.len()).expect("streams are few");
            let arena = Arc::new(StreamArena { stream, home, heap: Mutex::new(Heap::new()) });
            streams.push(Arc::clone(&arena));
            arena
        })
    }

    fn small(&self, bytes: u64, stream: Stream) -> Result<Option<Place>, UpstreamError> {
        let arena = self.arena(stream);
        if let Some(place) = arena.allocate(bytes, stream, &self.upstream)? {
            return Ok(Some(place));
        }
        // Not under the arena's lock: it may take the locks of all.
        if let Some((address, chunk)) = self.large(self.superblock, stream)? {
            let mut heap = arena.heap.lock();
            heap.add_region_of(address, self.superblock, u64::from(chunk), stream);
            let place = heap.allocate(bytes, stream, &self.upstream)?;
            return Ok(place.map(|(address, chunk)| arena.place(address, chunk)));
        }
        if let Some((address, chunk)) = self.large(bytes, stream)? {
            return Ok(Some(Place { address, home: WHOLE, chunk }));
        }
        let streams: Vec<_> = self.streams.read().clone();
        for arena in streams {
            if let Some(place) = arena.allocate(bytes, stream, &self.upstream)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// A piece of the whole.
    fn large(&self, bytes: u64, stream: Stream) -> Result<Option<(u64, ChunkId)>, UpstreamError> {
        if let Some(piece) = self.piece(bytes, stream)? {
            return Ok(Some(piece));
        }
        self.defragment()?;
        self.piece(bytes, stream)
    }

    fn piece(&self, bytes: u64, stream: Stream) -> Result<Option<(u64, ChunkId)>, UpstreamError> {
        let mut whole = self.whole.lock();
        if let Some(piece) = whole.heap.allocate(bytes, stream, &self.upstream)? {
            return Ok(Some(piece));
        }
        let left = self.maximum.saturating_sub(whole.taken);
        if bytes > left {
            return Ok(None);
        }
        for size in [bytes.next_multiple_of(STEP).min(left), bytes] {
            match self.upstream.alloc(size) {
                Ok(address) => {
                    whole.extend(address, size);
                    return whole.heap.allocate(bytes, stream, &self.upstream);
                }
                Err(UpstreamError::OutOfMemory { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Gives all superblocks back that are empty, or become so when lists become one.
    fn defragment(&self) -> Result<(), UpstreamError> {
        let streams: Vec<_> = self.streams.read().clone();
        for arena in streams {
            let mut heap = arena.heap.lock();
            heap.merge_into(arena.stream, &self.upstream)?;
            self.give_back(&mut heap, 0);
        }
        Ok(())
    }

    fn give_back(&self, heap: &mut Heap<U>, keep: usize) {
        let empty = heap.remove_free_regions(keep);
        if empty.is_empty() {
            return;
        }
        let mut whole = self.whole.lock();
        for (name, stream) in empty {
            let chunk = name as ChunkId;
            match stream {
                Some(stream) => drop(whole.heap.free(chunk, stream)),
                None => whole.heap.free_unused(chunk),
            }
        }
    }
}

impl<U: Upstream> StreamArena<U> {
    fn allocate(
        &self,
        bytes: u64,
        stream: Stream,
        upstream: &U,
    ) -> Result<Option<Place>, UpstreamError> {
        let piece = self.heap.lock().allocate(bytes, stream, upstream)?;
        Ok(piece.map(|(address, chunk)| self.place(address, chunk)))
    }

    fn place(&self, address: u64, chunk: ChunkId) -> Place {
        Place { address, home: self.home, chunk }
    }
}

impl<U: Upstream> Whole<U> {
    fn extend(&mut self, address: u64, bytes: u64) {
        self.heap.add_region(address, bytes, address);
        self.regions.push(address);
        self.taken += bytes;
    }
}

impl<U: Upstream> Suballocator for Arena<U> {
    fn allocate(&self, bytes: u64, stream: Stream) -> Result<Option<Place>, UpstreamError> {
        if bytes <= self.superblock / SMALL_SHARE {
            return self.small(bytes, stream);
        }
        let piece = self.large(bytes, stream)?;
        Ok(piece.map(|(address, chunk)| Place { address, home: WHOLE, chunk }))
    }

    fn free(&self, place: Place, _: u64, stream: Stream) -> Result<(), UpstreamError> {
        if place.home == WHOLE {
            self.whole.lock().heap.free(place.chunk, stream);
            return Ok(());
        }
        let arena = Arc::clone(&self.streams.read()[place.home as usize]);
        let mut heap = arena.heap.lock();
        if heap.free(place.chunk, stream) {
            self.give_back(&mut heap, 1);
        }
        Ok(())
    }

    fn retire(&self, stream: Stream) -> Result<(), UpstreamError> {
        let streams: Vec<_> = self.streams.read().clone();
        for arena in streams {
            let mut heap = arena.heap.lock();
            heap.retire(stream, &self.upstream)?;
            self.give_back(&mut heap, 0);
        }
        self.whole.lock().heap.retire(stream, &self.upstream)
    }

    fn usage(&self) -> Usage {
        let streams: Vec<_> = self.streams.read().clone();
        let (mut largest_free, mut traffic) = (0, Traffic::default());
        let mut add = |heap: &Heap<U>| {
            largest_free = largest_free.max(heap.largest_free());
            traffic.events += heap.traffic.events;
            traffic.waits += heap.traffic.waits;
        };
        for arena in &streams {
            add(&arena.heap.lock());
        }
        let whole = self.whole.lock();
        add(&whole.heap);
        Usage { taken: whole.taken, limit: self.maximum, largest_free, traffic }
    }
}

impl<U: Upstream> Drop for Arena<U> {
    fn drop(&mut self) {
        // Best effort: a driver that fails here gives all back when the context ends.
        for arena in self.streams.get_mut() {
            let _ = arena.heap.lock().quiesce(&self.upstream);
        }
        let whole = self.whole.get_mut();
        let _ = whole.heap.quiesce(&self.upstream);
        for address in &whole.regions {
            let _ = self.upstream.free(*address);
        }
    }
}
