//! How long to wait for another program that writes the same files.

use std::time::Duration;

use tokio::time::Instant;

const FIRST: Duration = Duration::from_mins(1);
const LONGEST: Duration = Duration::from_hours(1);

/// What another program has done to our entries.
#[derive(Debug, Default)]
pub(super) struct Contest {
    /// How long the last wait is, and when it began.
    wait: Option<(Duration, Instant)>,
}

impl Contest {
    /// Whether entries that were taken out may be put back now.
    pub(super) fn may_write(&self, now: Instant) -> bool {
        self.until().is_none_or(|until| now >= until)
    }

    /// When they may.
    pub(super) fn until(&self) -> Option<Instant> {
        self.wait.map(|(wait, since)| since + wait)
    }

    /// They were taken out, and are put back. Gives how long they stay out if it happens again:
    /// twice as long as the last time, unless an hour passed since.
    pub(super) fn lost(&mut self, now: Instant) -> Duration {
        let wait = match self.wait {
            Some((wait, since)) if now - since < wait + LONGEST => (wait * 2).min(LONGEST),
            _ => FIRST,
        };
        self.wait = Some((wait, now));
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_waits_twice_as_long_until_an_hour_of_peace() {
        let mut contest = Contest::default();
        let mut now = Instant::now();
        assert!(contest.may_write(now));
        let mut waits = Vec::new();
        for _ in 0..8 {
            let wait = contest.lost(now);
            assert!(!contest.may_write(now));
            now += wait;
            assert!(contest.may_write(now));
            waits.push(wait.as_secs() / 60);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        now += LONGEST * 2;
        assert_eq!(contest.lost(now), FIRST);
    }
}
