//! GPUs and MIG slices that executors lost: after several losses one is left alone for a while.
//!
//! An executor loses its GPU when no call of the driver works in its process any more, as after an
//! access to an illegal address. The next process may find it well. One that does so again and
//! again has a fault that NVML doesn't see, and would cost every query on it.
//!
//! Or its user has: a query with a fault of its own looks the same. So YARN is not told of losses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::error;

use crate::clock;

/// So many losses within [`WINDOW`] make a device unfit for use.
const LIMIT: usize = 3;
/// See [`LIMIT`].
const WINDOW: Duration = Duration::from_mins(10);
/// How long after its last loss it stays so.
const REST: Duration = Duration::from_hours(1);
/// What an executor says of a loss is cut to so many characters.
const REASON_CHARS: usize = 300;

/// The losses of each device; clones share them. They last as long as the agent runs.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    by_device: Arc<Mutex<BTreeMap<String, Device>>>,
}

/// What one GPU or slice did to its executors.
#[derive(Debug, Default)]
struct Device {
    /// When it was lost, within [`WINDOW`].
    recent: Vec<Instant>,
    unfit: Option<Unfit>,
}

#[derive(Debug)]
struct Unfit {
    until: Instant,
    reason: String,
}

impl Losses {
    /// An executor has lost that GPU or slice, for that reason.
    pub fn note(&self, uuid: &str, reason: &str) {
        let mut devices = self.lock();
        let device = devices.entry(uuid.to_owned()).or_default();
        device.lost(reason, Instant::now(), clock::now());
        if let Some(unfit) = &device.unfit {
            error!(gpu = uuid, "the GPU is not used any more: {}", unfit.reason);
        }
    }

    /// Why that GPU or slice is unfit for use now, if it is.
    pub fn unfit(&self, uuid: &str) -> Option<String> {
        self.lock().get(uuid)?.unfit(Instant::now()).map(str::to_owned)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Device>> {
        self.by_device.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device {
    /// `time` is that of day, in seconds since the Unix epoch.
    fn lost(&mut self, reason: &str, now: Instant, time: u64) {
        self.recent.retain(|at| now - *at < WINDOW);
        self.recent.push(now);
        if self.recent.len() < LIMIT {
            return;
        }
        let reason: String = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        let reason: String = reason.chars().take(REASON_CHARS).collect();
        let reason = format!(
            "its executors lost it {} times within {} minutes, the last time at {} ({reason}); it \
             is not used until {}, or creeld is started again",
            self.recent.len(),
            WINDOW.as_secs() / 60,
            clock::utc(time),
            clock::utc(time + REST.as_secs()),
        );
        self.unfit = Some(Unfit { until: now + REST, reason });
    }

    fn unfit(&self, now: Instant) -> Option<&str> {
        let unfit = self.unfit.as_ref().filter(|unfit| unfit.until > now)?;
        Some(&unfit.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that was lost at these seconds.
    fn lost(start: Instant, times: &[u64]) -> Device {
        let mut device = Device::default();
        for at in times {
            device.lost("CUDA_ERROR_ILLEGAL_ADDRESS:\n", start + Duration::from_secs(*at), *at);
        }
        device
    }

    #[test]
    fn one_loss_or_two_say_nothing_of_a_gpu_and_three_in_a_row_do() {
        let start = Instant::now();
        assert_eq!(lost(start, &[0, 1]).unfit(start), None);
        let device = lost(start, &[0, 300, 599]);
        let now = start + Duration::from_secs(599);
        assert_eq!(
            device.unfit(now),
            Some(
                "its executors lost it 3 times within 10 minutes, the last time at 1970-01-01 \
                 00:09:59 UTC (CUDA_ERROR_ILLEGAL_ADDRESS:); it is not used until 1970-01-01 \
                 01:09:59 UTC, or creeld is started again"
            )
        );
        assert_eq!(lost(start, &[0, 300, 600]).unfit(now + WINDOW), None, "one is long ago");
    }

    #[test]
    fn an_hour_without_a_loss_forgives() {
        let start = Instant::now();
        let mut device = lost(start, &[0, 1, 2]);
        let later = start + Duration::from_secs(2) + REST;
        assert!(device.unfit(later - Duration::from_secs(1)).is_some());
        assert_eq!(device.unfit(later), None);
        device.lost("again", later, 0);
        assert_eq!(device.unfit(later), None, "the first of another row");
    }

    #[test]
    fn a_loss_by_an_executor_that_still_ran_makes_it_last_longer() {
        let start = Instant::now();
        let device = lost(start, &[0, 1, 2, 60]);
        assert!(device.unfit(start + REST + Duration::from_secs(59)).is_some());
    }

    #[test]
    fn each_device_counts_for_itself() {
        let losses = Losses::default();
        for _ in 0..LIMIT {
            losses.clone().note("MIG-1", &"no ".repeat(1000));
        }
        losses.note("MIG-2", "no");
        assert!(losses.unfit("MIG-1").is_some_and(|reason| reason.len() < 2 * REASON_CHARS));
        assert_eq!((losses.unfit("MIG-2"), losses.unfit("GPU-1")), (None, None));
    }
}
