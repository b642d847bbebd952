//! DEFAULT: one heap for all streams.

use std::sync::Arc;

use parking_lot::Mutex;

use super::heap::Heap;
use super::{ALIGNMENT, Place, Suballocator, Usage};
use crate::memory::upstream::{Stream, Upstream, UpstreamError};

/// A heap that grows by half of what it may still take, or by less where the driver has less.
///
/// Source of the growth: `pool_memory_resource` of RMM.
pub(super) struct Coalescing<U: Upstream> {
    upstream: Arc<U>,
    maximum: u64,
    state: Mutex<State<U>>,
}

struct State<U: Upstream> {
    heap: Heap<U>,
    /// Address of each region.
    regions: Vec<u64>,
    taken: u64,
}

impl<U: Upstream> Coalescing<U> {
    pub(super) fn new(initial: u64, maximum: u64, upstream: Arc<U>) -> Result<Self, UpstreamError> {
        let mut state = State { heap: Heap::new(), regions: Vec::new(), taken: 0 };
        if initial > 0 {
            state.extend(upstream.alloc(initial)?, initial);
        }
        Ok(Self { upstream, maximum, state: Mutex::new(state) })
    }

    /// Takes at least `bytes` more of the driver; whether there was that much.
    fn grow(&self, state: &mut State<U>, bytes: u64) -> Result<bool, UpstreamError> {
        let left = self.maximum.saturating_sub(state.taken) & !(ALIGNMENT - 1);
        if bytes > left {
            return Ok(false);
        }
        let mut size = bytes.max((left / 2).next_multiple_of(ALIGNMENT));
        loop {
            match self.upstream.alloc(size) {
                Ok(address) => {
                    state.extend(address, size);
                    return Ok(true);
                }
                Err(UpstreamError::OutOfMemory { .. }) if size == bytes => return Ok(false),
                Err(UpstreamError::OutOfMemory { .. }) => {
                    size = bytes.max((size / 2).next_multiple_of(ALIGNMENT));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl<U: Upstream> State<U> {
    fn extend(&mut self, address: u64, bytes: u64) {
        self.heap.add_region(address, bytes, address);
        self.regions.push(address);
        self.taken += bytes;
    }
}

impl<U: Upstream> Suballocator for Coalescing<U> {
    fn allocate(&self, bytes: u64, stream: Stream) -> Result<Option<Place>, UpstreamError> {
        let mut state = self.state.lock();
        let mut place = state.heap.allocate(bytes, stream, &self.upstream)?;
        if place.is_none() && self.grow(&mut state, bytes)? {
            place = state.heap.allocate(bytes, stream, &self.upstream)?;
        }
        Ok(place.map(|(address, chunk)| Place { address, home: 0, chunk }))
    }

    fn free(&self, place: Place, _: u64, stream: Stream) -> Result<(), UpstreamError> {
        self.state.lock().heap.free(place.chunk, stream);
        Ok(())
    }

    fn retire(&self, stream: Stream) -> Result<(), UpstreamError> {
        self.state.lock().heap.retire(stream, &self.upstream)
    }

    fn usage(&self) -> Usage {
        let state = self.state.lock();
        Usage {
            taken: state.taken,
            limit: self.maximum,
            largest_free: state.heap.largest_free(),
            traffic: state.heap.traffic,
        }
    }
}

impl<U: Upstream> Drop for Coalescing<U> {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        // Best effort: a driver that fails here gives all back when the context ends.
        let _ = state.heap.quiesce(&self.upstream);
        for address in &state.regions {
            let _ = self.upstream.free(*address);
        }
    }
}
