//! The queue of a node that is full: who came first is served first.

use super::assign::{Board, Want};

/// Requests that wait, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Queue {
    next: u64,
    waiting: Vec<(u64, Want)>,
}

impl Queue {
    /// Puts a request at the end, and gives its ticket.
    pub(super) fn enter(&mut self, want: Want) -> u64 {
        self.next += 1;
        self.waiting.push((self.next, want));
        self.next
    }

    /// Takes a request out, served or not.
    pub(super) fn leave(&mut self, ticket: u64) {
        self.waiting.retain(|(waiting, _)| *waiting != ticket);
    }

    /// Sets aside what those before a ticket wait for.
    pub(super) fn set_aside(&self, board: &mut Board<'_>, ticket: u64) {
        for (_, want) in self.waiting.iter().take_while(|(waiting, _)| *waiting < ticket) {
            board.set_aside(want);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::Unit;

    #[test]
    fn first_come_first_served() {
        let unit = |address| Unit {
            address,
            uuid: Some(address.to_string()),
            usable: true,
            ..Unit::default()
        };
        let units = [unit(0), unit(1)];
        let mut queue = Queue::default();
        let [one, two, three] = [1, 1, 1].map(|count| queue.enter(Want::any(count)));
        let served = |queue: &Queue, ticket| {
            let mut board = Board::new(&units, |_| None);
            queue.set_aside(&mut board, ticket);
            board.take(&Want::any(1)).map(|devices| devices[0].unit.address)
        };
        assert_eq!(
            [one, two, three].map(|ticket| served(&queue, ticket)),
            [Some(0), Some(1), None]
        );
        queue.leave(one);
        assert_eq!([two, three].map(|ticket| served(&queue, ticket)), [Some(0), Some(1)]);
    }
}
