//! When an executor that ended unasked may be started again.

use std::time::Duration;

use tokio::time::Instant;

/// An executor that ran this long before it ended is started again as if for the first time.
const CALM: Duration = Duration::from_mins(1);
/// The wait after the second end in a row; each further end doubles it.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// Counts ends in a row: the first start after an end is at once, the next ones wait, each
/// longer than the one before.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    ends: u32,
    until: Option<Instant>,
}

impl Backoff {
    /// The executor ended unasked after it ran for that long; `None` if it never became ready.
    pub(super) fn ended(&mut self, ran: Option<Duration>, now: Instant) {
        if ran.is_some_and(|ran| ran >= CALM) {
            self.ends = 0;
        }
        self.ends += 1;
        self.until = (self.ends > 1).then(|| {
            let doublings = (self.ends - 2).min(16);
            now + (FIRST_WAIT * 2_u32.pow(doublings)).min(MAX_WAIT)
        });
    }

    /// When it may be started, if that is not now.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(backoff: &Backoff, now: Instant) -> u64 {
        backoff.until(now).map_or(0, |until| (until - now).as_secs())
    }

    #[test]
    fn the_first_restart_is_at_once_and_the_others_wait_longer_and_longer() {
        let now = Instant::now();
        let mut backoff = Backoff::default();
        let waits: Vec<u64> = (0..10)
            .map(|_| {
                backoff.ended(None, now);
                wait(&backoff, now)
            })
            .collect();
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(backoff.until(now + MAX_WAIT), None);
    }

    #[test]
    fn a_long_life_forgives() {
        let now = Instant::now();
        let mut backoff = Backoff::default();
        for _ in 0..50 {
            backoff.ended(None, now);
        }
        backoff.ended(Some(CALM), now);
        assert_eq!(wait(&backoff, now), 0);
        backoff.ended(Some(Duration::from_secs(1)), now);
        assert_eq!(wait(&backoff, now), 1);
    }
}
