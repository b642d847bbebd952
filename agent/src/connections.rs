//! How many connections may be open at once: together, and of one user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts connections.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    open: Arc<Mutex<HashMap<u32, usize>>>,
}

/// A connection that is counted until this is dropped.
#[derive(Debug)]
pub struct Place {
    open: Arc<Mutex<HashMap<u32, usize>>>,
    uid: u32,
}

impl Connections {
    /// Counts one more of a user, unless that would be more than `of_one` of that user or more
    /// than `together` of all.
    pub fn enter(&self, uid: u32, of_one: usize, together: usize) -> Option<Place> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = open.values().sum();
        let own = open.get(&uid).copied().unwrap_or(0);
        if all >= together || own >= of_one {
            return None;
        }
        open.insert(uid, own + 1);
        Some(Place { open: Arc::clone(&self.open), uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = open.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_does_not_take_the_places_of_another() {
        let connections = Connections::default();
        let first = connections.enter(1, 2, 3).unwrap();
        let _second = connections.enter(1, 2, 3).unwrap();
        assert!(connections.enter(1, 2, 3).is_none());
        let _other = connections.enter(2, 2, 3).unwrap();
        assert!(connections.enter(2, 2, 3).is_none(), "three together");
        drop(first);
        assert!(connections.enter(1, 2, 3).is_some());
    }

    #[test]
    fn a_user_who_left_is_forgotten() {
        let connections = Connections::default();
        for uid in 0..1000 {
            drop(connections.enter(uid, 1, 1).unwrap());
        }
        assert!(connections.open.lock().unwrap().is_empty());
    }
}
