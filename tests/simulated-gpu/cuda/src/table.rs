//! Handles: numbers, never dereferenced, and what they stand for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A handle as C sees it. 0 to 2 are no handles: null, and the names of default streams.
pub(crate) type Handle = usize;

/// Handles are of one kind each: a number is given once in a process.
static NEXT: AtomicUsize = AtomicUsize::new(0x100);

/// What handles of a kind stand for.
#[derive(Debug)]
pub(crate) struct Table<T>(Mutex<HashMap<Handle, Arc<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// A handle that no other thing has.
pub(crate) fn new_handle() -> Handle {
    NEXT.fetch_add(0x10, Ordering::Relaxed)
}

impl<T> Table<T> {
    pub(crate) fn insert(&self, handle: Handle, value: Arc<T>) {
        self.lock().insert(handle, value);
    }

    pub(crate) fn get(&self, handle: Handle) -> Option<Arc<T>> {
        self.lock().get(&handle).cloned()
    }

    pub(crate) fn remove(&self, handle: Handle) -> Option<Arc<T>> {
        self.lock().remove(&handle)
    }

    pub(crate) fn retain(&self, keep: impl Fn(&T) -> bool) {
        self.lock().retain(|_, value| keep(value));
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Handle, Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
