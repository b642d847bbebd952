//! Best fit over regions of memory, in the order of streams.
//!
//! ```text
//!   region  ┌──────┬────────┬──────┬───────────┬─────────────────────┐
//!           │ used │ free S │ used │  free T   │        fresh        │   chunks, linked by address
//!           └──────┴────────┴──────┴───────────┴─────────────────────┘
//!   lists    fresh {…}   S {…}   T {…}                                 each ordered by size
//! ```
//!
//! A region is cut into chunks that know their neighbours, so that what becomes free grows
//! together with what is free beside it. What a stream gave back is in that stream's list: the
//! stream itself may have it again at once, since its work is done in order. Others may have it
//! when the device is past the work that used it. That is known by events, one for all that a
//! stream gave back since the one before (its *epoch*), and only recorded when another stream
//! finds nothing else:
//!
//! 1. its own list, or fresh memory, whichever fits best;
//! 2. the same, after what other streams are done with became fresh;
//! 3. the best fit in another stream's list, once its own stream waits for that one's event;
//! 4. all lists become one, its own, after it waits for all others;
//! 5. none: the caller gets more memory, or fails.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::memory::upstream::{Stream, Upstream, UpstreamError};

/// A chunk's place in [`Heap::chunks`].
pub(super) type ChunkId = u32;

const NONE: ChunkId = ChunkId::MAX;

/// The list of memory that no stream has used, or all are done with.
const FRESH: usize = 0;

/// Events that a list keeps.
const ENDED_EPOCHS: usize = 8;

struct Chunk {
    address: u64,
    bytes: u64,
    /// Neighbours in the region.
    previous: ChunkId,
    next: ChunkId,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Used,
    /// In that list; given back in that epoch of it.
    Free {
        list: usize,
        epoch: u64,
    },
}

/// What one stream gave back.
struct List<E> {
    stream: Stream,
    /// Bytes, address, chunk: the best fit with the lowest address is found first.
    by_size: BTreeSet<(u64, u64, ChunkId)>,
    /// The epoch of what is given back now.
    epoch: u64,
    /// Whether anything was given back in it.
    dirty: bool,
    /// Epochs that ended, each with the event at its end, the oldest first.
    ended: VecDeque<(u64, E)>,
    /// The device is past the end of all epochs before this.
    done: u64,
}

impl<E> List<E> {
    fn of(stream: Stream) -> Self {
        Self {
            stream,
            by_size: BTreeSet::new(),
            // Epoch 0 is done from the start: it is that of fresh memory.
            epoch: 1,
            dirty: false,
            ended: VecDeque::new(),
            done: 1,
        }
    }
}

/// What a heap's streams cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    /// Events recorded.
    pub(super) events: u64,
    /// Times that a stream was made to wait for another.
    pub(super) waits: u64,
}

/// Regions of memory, and what of them is free.
pub(super) struct Heap<U: Upstream> {
    chunks: Vec<Chunk>,
    /// Places in `chunks` that are not in use.
    vacant: Vec<ChunkId>,
    lists: Vec<List<U::Event>>,
    /// The caller's name of the region that begins at that address.
    regions: BTreeMap<u64, u64>,
    smallest_region: u64,
    pub(super) traffic: Traffic,
}

impl<U: Upstream> Heap<U> {
    pub(super) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            vacant: Vec::new(),
            lists: vec![List::of(Stream::default())],
            regions: BTreeMap::new(),
            smallest_region: u64::MAX,
            traffic: Traffic::default(),
        }
    }

    pub(super) fn largest_free(&self) -> u64 {
        let largest = |list: &List<_>| list.by_size.last().map_or(0, |(bytes, ..)| *bytes);
        self.lists.iter().map(largest).max().unwrap_or(0)
    }

    /// Adds a region that nobody has used.
    pub(super) fn add_region(&mut self, address: u64, bytes: u64, name: u64) {
        let chunk = self.region(address, bytes, name);
        self.release(chunk, FRESH, 0);
    }

    /// Adds a region that this stream may use at once, and others after its work.
    pub(super) fn add_region_of(&mut self, address: u64, bytes: u64, name: u64, stream: Stream) {
        let chunk = self.region(address, bytes, name);
        self.free(chunk, stream);
    }

    fn region(&mut self, address: u64, bytes: u64, name: u64) -> ChunkId {
        self.regions.insert(address, name);
        self.smallest_region = self.smallest_region.min(bytes);
        self.chunk(Chunk { address, bytes, previous: NONE, next: NONE, state: State::Used })
    }

    /// Takes `bytes` for a stream, by the steps 1 to 4 of the module. `None` if nothing fits.
    pub(super) fn allocate(
        &mut self,
        bytes: u64,
        stream: Stream,
        upstream: &U,
    ) -> Result<Option<(u64, ChunkId)>, UpstreamError> {
        let own = self.list(stream);
        if let Some(chunk) = self.fit(bytes, own) {
            return Ok(Some(self.take(chunk, bytes)));
        }
        if self.lists.len() > 2 {
            if self.reclaim(own, upstream)?
                && let Some(chunk) = self.fit(bytes, own)
            {
                return Ok(Some(self.take(chunk, bytes)));
            }
            if let Some(chunk) = self.steal(bytes, own, upstream)? {
                return Ok(Some(self.take(chunk, bytes)));
            }
        }
        self.merge(own, upstream)?;
        Ok(self.fit(bytes, own).map(|chunk| self.take(chunk, bytes)))
    }

    /// Takes back what [`Heap::allocate`] gave; the last work that used it is on `stream`.
    /// Whether its region is free as a whole now, and that stream's.
    pub(super) fn free(&mut self, chunk: ChunkId, stream: Stream) -> bool {
        let list = self.list(stream);
        self.lists[list].dirty = true;
        let epoch = self.lists[list].epoch;
        let free = self.release(chunk, list, epoch);
        self.is_whole_region(free)
    }

    /// Takes back what no stream uses any more.
    pub(super) fn free_unused(&mut self, chunk: ChunkId) {
        self.release(chunk, FRESH, 0);
    }

    fn is_whole_region(&self, chunk: ChunkId) -> bool {
        let chunk = &self.chunks[chunk as usize];
        chunk.previous == NONE && chunk.next == NONE
    }

    /// Takes out the regions that are free as a whole, but `keep` of them: name, and the stream
    /// that may still use it, if any.
    pub(super) fn remove_free_regions(&mut self, keep: usize) -> Vec<(u64, Option<Stream>)> {
        let whole: Vec<_> = self
            .lists
            .iter()
            .enumerate()
            .flat_map(|(list, free)| {
                // No smaller chunk can be a whole region.
                let large = free.by_size.range((self.smallest_region, 0, 0)..);
                large.map(move |(.., chunk)| (list, *chunk))
            })
            .filter(|(_, chunk)| self.is_whole_region(*chunk))
            .skip(keep)
            .collect();
        whole
            .into_iter()
            .map(|(list, chunk)| {
                self.unlist(chunk);
                let address = self.chunks[chunk as usize].address;
                self.vacant.push(chunk);
                let name = self.regions.remove(&address).expect("each region has a name");
                (name, (list != FRESH).then(|| self.lists[list].stream))
            })
            .collect()
    }

    /// All that is free becomes one stream's.
    pub(super) fn merge_into(&mut self, stream: Stream, upstream: &U) -> Result<(), UpstreamError> {
        let own = self.list(stream);
        self.merge(own, upstream)
    }

    /// Blocks until the device is done with all that was given back.
    pub(super) fn quiesce(&mut self, upstream: &U) -> Result<(), UpstreamError> {
        for list in 1..self.lists.len() {
            self.end_epoch(list, upstream)?;
            if let Some((_, event)) = self.lists[list].ended.back() {
                upstream.synchronize(event)?;
            }
        }
        Ok(())
    }

    /// Forgets a stream that is about to end: blocks until the device is done with its work.
    pub(super) fn retire(&mut self, stream: Stream, upstream: &U) -> Result<(), UpstreamError> {
        let Some(list) = self.known(stream) else { return Ok(()) };
        self.end_epoch(list, upstream)?;
        if let Some((_, event)) = self.lists[list].ended.back() {
            upstream.synchronize(event)?;
        }
        let free: Vec<_> = self.lists[list].by_size.iter().map(|(.., chunk)| *chunk).collect();
        for chunk in free {
            self.unlist(chunk);
            self.release(chunk, FRESH, 0);
        }
        self.lists.swap_remove(list);
        if list < self.lists.len() {
            for (.., chunk) in &self.lists[list].by_size {
                if let State::Free { list: at, .. } = &mut self.chunks[*chunk as usize].state {
                    *at = list;
                }
            }
        }
        Ok(())
    }

    fn known(&self, stream: Stream) -> Option<usize> {
        // Streams are few.
        (1..self.lists.len()).find(|list| self.lists[*list].stream == stream)
    }

    fn list(&mut self, stream: Stream) -> usize {
        self.known(stream).unwrap_or_else(|| {
            self.lists.push(List::of(stream));
            self.lists.len() - 1
        })
    }

    /// The best fit in a list or in fresh memory.
    fn fit(&self, bytes: u64, own: usize) -> Option<ChunkId> {
        let best = |list: usize| self.lists[list].by_size.range((bytes, 0, 0)..).next();
        match (best(own), best(FRESH)) {
            (Some(one), Some(other)) => Some(one.min(other).2),
            (one, other) => one.or(other).map(|(.., chunk)| *chunk),
        }
    }

    /// Makes fresh what other streams are done with, and asks for the events that say so next
    /// time. Whether anything became fresh.
    fn reclaim(&mut self, own: usize, upstream: &U) -> Result<bool, UpstreamError> {
        let mut any = false;
        for list in (1..self.lists.len()).filter(|list| *list != own) {
            let before = self.lists[list].done;
            while let Some((epoch, event)) = self.lists[list].ended.front() {
                if !upstream.is_complete(event)? {
                    break;
                }
                self.lists[list].done = epoch + 1;
                self.lists[list].ended.pop_front();
            }
            let done = self.lists[list].done;
            if done > before {
                let free = self.lists[list].by_size.iter().map(|(.., chunk)| *chunk);
                let past: Vec<_> = free.filter(|chunk| self.epoch(*chunk) < done).collect();
                any |= !past.is_empty();
                for chunk in past {
                    self.unlist(chunk);
                    self.release(chunk, FRESH, 0);
                }
            }
            if self.lists[list].ended.is_empty() {
                self.end_epoch(list, upstream)?;
            }
        }
        Ok(any)
    }

    /// The best fit of another stream, for which the own one then waits.
    fn steal(
        &mut self,
        bytes: u64,
        own: usize,
        upstream: &U,
    ) -> Result<Option<ChunkId>, UpstreamError> {
        let others = (1..self.lists.len()).filter(|list| *list != own);
        let best = others
            .filter_map(|list| self.lists[list].by_size.range((bytes, 0, 0)..).next())
            .min()
            .copied();
        let Some((.., chunk)) = best else { return Ok(None) };
        let State::Free { list, epoch } = self.chunks[chunk as usize].state else {
            unreachable!("what is in a list is free")
        };
        self.wait(own, list, epoch, upstream)?;
        Ok(Some(chunk))
    }

    /// All that is free becomes the own list's.
    fn merge(&mut self, own: usize, upstream: &U) -> Result<(), UpstreamError> {
        for list in (0..self.lists.len()).filter(|list| *list != own) {
            if self.lists[list].by_size.is_empty() {
                continue;
            }
            if list != FRESH {
                self.wait(own, list, self.lists[list].epoch, upstream)?;
            }
            let free: Vec<_> = self.lists[list].by_size.iter().map(|(.., chunk)| *chunk).collect();
            // The waiting is part of the own stream's work now.
            let epoch = self.lists[own].epoch;
            self.lists[own].dirty = true;
            for chunk in free {
                // One may have joined its neighbour already.
                if let State::Free { .. } = self.unlist(chunk) {
                    self.release(chunk, own, epoch);
                }
            }
        }
        Ok(())
    }

    /// Lets the own stream wait for another's work until the end of that epoch.
    fn wait(
        &mut self,
        own: usize,
        list: usize,
        epoch: u64,
        upstream: &U,
    ) -> Result<(), UpstreamError> {
        if epoch < self.lists[list].done {
            return Ok(());
        }
        if epoch == self.lists[list].epoch {
            self.end_epoch(list, upstream)?;
        }
        // The last event is that of the current epoch, where nothing was given back in it.
        let ended = &self.lists[list].ended;
        let event = ended.iter().find(|(ended, _)| *ended >= epoch).or(ended.back());
        if let Some((_, event)) = event {
            upstream.wait(self.lists[own].stream, event)?;
            self.traffic.waits += 1;
        }
        Ok(())
    }

    fn end_epoch(&mut self, list: usize, upstream: &U) -> Result<(), UpstreamError> {
        let list = &mut self.lists[list];
        if list.dirty {
            list.ended.push_back((list.epoch, upstream.record(list.stream)?));
            // A later event is as good as an earlier one, and only waited for longer.
            if list.ended.len() > ENDED_EPOCHS {
                list.ended.pop_front();
            }
            list.epoch += 1;
            list.dirty = false;
            self.traffic.events += 1;
        }
        Ok(())
    }

    fn epoch(&self, chunk: ChunkId) -> u64 {
        match self.chunks[chunk as usize].state {
            State::Free { epoch, .. } => epoch,
            State::Used => unreachable!("a chunk that is in use has no epoch"),
        }
    }

    /// Cuts `bytes` off the low end of a free chunk.
    fn take(&mut self, chunk: ChunkId, bytes: u64) -> (u64, ChunkId) {
        let State::Free { list, epoch } = self.unlist(chunk) else {
            unreachable!("what is in a list is free")
        };
        let Chunk { address, bytes: all, next, .. } = self.chunks[chunk as usize];
        if all > bytes {
            let rest = self.chunk(Chunk {
                address: address + bytes,
                bytes: all - bytes,
                previous: chunk,
                next,
                state: State::Used,
            });
            if next != NONE {
                self.chunks[next as usize].previous = rest;
            }
            let taken = &mut self.chunks[chunk as usize];
            taken.next = rest;
            taken.bytes = bytes;
            // Its neighbours can't have become free meanwhile: nothing to grow together with.
            self.enlist(rest, list, epoch);
        }
        (address, chunk)
    }

    /// Makes a chunk free, together with the free ones beside it, which it becomes one with.
    fn release(&mut self, mut chunk: ChunkId, list: usize, mut epoch: u64) -> ChunkId {
        // Own and fresh ones may lie side by side from when there were more streams, so more than
        // one neighbour may join.
        loop {
            let previous = self.chunks[chunk as usize].previous;
            let Some(other) = self.joins(previous, list) else { break };
            epoch = epoch.max(other);
            self.unlist(previous);
            self.absorb(previous, chunk);
            chunk = previous;
        }
        loop {
            let next = self.chunks[chunk as usize].next;
            let Some(other) = self.joins(next, list) else { break };
            epoch = epoch.max(other);
            self.unlist(next);
            self.absorb(chunk, next);
        }
        self.enlist(chunk, list, epoch);
        chunk
    }

    /// The epoch of a neighbour that can become one with a chunk of that list.
    ///
    /// With one stream, fresh memory is as good as its own. With several it would become that
    /// stream's, and the others would wait for what was free.
    fn joins(&self, neighbour: ChunkId, list: usize) -> Option<u64> {
        let state = self.chunks.get(neighbour as usize)?.state;
        match state {
            State::Free { list: other, epoch } if other == list => Some(epoch),
            State::Free { list: FRESH, epoch } if self.lists.len() == 2 => Some(epoch),
            _ => None,
        }
    }

    /// Adds a chunk to the one before it.
    fn absorb(&mut self, chunk: ChunkId, next: ChunkId) {
        let Chunk { bytes, next: after, .. } = self.chunks[next as usize];
        let grown = &mut self.chunks[chunk as usize];
        grown.bytes += bytes;
        grown.next = after;
        if after != NONE {
            self.chunks[after as usize].previous = chunk;
        }
        self.vacant.push(next);
    }

    fn chunk(&mut self, chunk: Chunk) -> ChunkId {
        if let Some(place) = self.vacant.pop() {
            self.chunks[place as usize] = chunk;
            return place;
        }
        let place = ChunkId::try_from(self.chunks.len()).expect("fewer than 2^32 chunks");
        self.chunks.push(chunk);
        place
    }

    fn enlist(&mut self, chunk: ChunkId, list: usize, epoch: u64) {
        let free = &mut self.chunks[chunk as usize];
        free.state = State::Free { list, epoch };
        self.lists[list].by_size.insert((free.bytes, free.address, chunk));
    }

    fn unlist(&mut self, chunk: ChunkId) -> State {
        let free = &mut self.chunks[chunk as usize];
        let was = std::mem::replace(&mut free.state, State::Used);
        if let State::Free { list, .. } = was {
            self.lists[list].by_size.remove(&(free.bytes, free.address, chunk));
        }
        was
    }
}
