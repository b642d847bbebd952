//! How many tasks use the GPU at one time.
//!
//! A task that is about to use the GPU takes a permit ([`Task::acquire`]). With
//! `gpu.concurrent_tasks` there are so many. Without, permits are of memory: the pool is counted
//! in units of 32 MiB, and a task takes as many as tasks of its stage were seen to need. What is
//! not known yet is guessed, so that at most four tasks run.
//!
//! The oldest task that waits goes first, whichever attachment it is of, and none passes it, so a
//! client with many tasks can't keep others out: each new task of it is younger than theirs.
//!
//! A permit is a task's. It should be given back while the task waits for something else
//! ([`Permit::pause`]). Where a task keeps it and waits for another of its query that has none,
//! nobody goes on, which the ledger notices: then the oldest that waits is let through all the
//! same ([`super::ledger`]).
//!
//! The sizes are those of the RAPIDS Accelerator for Apache Spark (`GpuSemaphore`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::error::MemoryError;
use super::ledger::{Doing, Task, Verdict};

/// Device memory that one permit stands for, in bytes.
const UNIT: u64 = 32 << 20;

/// Tasks at one time, as long as nothing is known of them.
const GUESSED_TASKS: u64 = 4;

/// Batches of that many a task is guessed to have at one time.
const GUESSED_BATCHES: u64 = 4;

/// Measurements that are kept of a stage.
const SAMPLES: usize = 200;

/// With fewer measurements the guess stands for those that are missing.
const ENOUGH_SAMPLES: usize = 4;

/// The estimate is that percentile of the measurements.
const PERCENTILE: usize = 80;

/// Stages that are remembered.
const STAGES: usize = 100;

/// The permits of an executor, as part of its ledger.
pub struct Permits {
    total: u64,
    used: u64,
    need: Need,
    /// Tasks that have a permit.
    holders: BTreeMap<u64, Held>,
    /// What the tasks that wait need.
    waiting: BTreeMap<u64, u64>,
}

struct Held {
    units: u64,
    /// How often the task took it and did not give it back.
    times: usize,
}

/// What a task needs.
enum Need {
    One,
    Measured(Footprints),
}

impl Permits {
    /// So many tasks (`gpu.concurrent_tasks`).
    pub fn fixed(tasks: u64) -> Self {
        Self::new(tasks.max(1), Need::One)
    }

    /// As many as fit into a pool, by what they were seen to need. `batch` is the size of the
    /// batches that operators work on, in bytes.
    pub fn measured(pool: u64, batch: u64) -> Self {
        let tasks = (pool / (GUESSED_BATCHES * batch).max(1)).clamp(1, GUESSED_TASKS);
        let need = Need::Measured(Footprints { guess: pool / tasks, stages: Vec::new() });
        Self::new((pool / UNIT).max(1), need)
    }

    fn new(total: u64, need: Need) -> Self {
        Self { total, used: 0, need, holders: BTreeMap::new(), waiting: BTreeMap::new() }
    }

    /// Tasks that have one.
    pub(super) fn held(&self) -> usize {
        self.holders.len()
    }

    /// Gives a permit to a task that waits, if there is one.
    pub(super) fn admit(&mut self, task: u64) -> bool {
        let fits = self.used + self.waiting[&task] <= self.total;
        if fits {
            self.admit_beyond(task);
        }
        fits
    }

    /// Gives a permit to a task that waits, even if there is none.
    pub(super) fn admit_beyond(&mut self, task: u64) {
        let units = self.waiting.remove(&task).expect("a task that waits");
        self.used += units;
        self.holders.insert(task, Held { units, times: 1 });
    }

    /// Forgets a task, and remembers what it needed.
    pub(super) fn task_ended(&mut self, task: u64, stage: u64, device_bytes: u64) {
        self.waiting.remove(&task);
        let held = self.holders.remove(&task);
        self.used -= held.map_or(0, |held| held.units);
        if let Need::Measured(footprints) = &mut self.need
            && device_bytes > 0
        {
            footprints.add(stage, device_bytes);
        }
    }

    fn units(&self, stage: u64) -> u64 {
        match &self.need {
            Need::One => 1,
            Need::Measured(footprints) => (footprints.estimate(stage) / UNIT).clamp(1, self.total),
        }
    }
}

/// What tasks of each stage were seen to need of the device's memory, in bytes.
struct Footprints {
    guess: u64,
    /// The stage used last is the last.
    stages: Vec<(u64, VecDeque<u64>)>,
}

impl Footprints {
    fn add(&mut self, stage: u64, bytes: u64) {
        let known = self.stages.iter().position(|(known, _)| *known == stage);
        let (_, mut samples) =
            known.map_or((stage, VecDeque::new()), |known| self.stages.remove(known));
        samples.push_back(bytes);
        if samples.len() > SAMPLES {
            samples.pop_front();
        }
        if self.stages.len() == STAGES {
            self.stages.remove(0);
        }
        self.stages.push((stage, samples));
    }

    fn estimate(&self, stage: u64) -> u64 {
        let known = self.stages.iter().find(|(known, _)| *known == stage);
        let Some((_, samples)) = known else { return self.guess };
        let mut samples: Vec<_> = samples.iter().copied().collect();
        samples.resize(samples.len().max(ENOUGH_SAMPLES), self.guess);
        samples.sort_unstable();
        samples[(samples.len() * PERCENTILE).div_ceil(100) - 1]
    }
}

/// The right to use the GPU. Dropping gives it back.
pub struct Permit<'a> {
    task: &'a Task,
}

impl Task {
    /// Waits for a permit. A task that has one has another at once.
    pub fn acquire(&self) -> Result<Permit<'_>, MemoryError> {
        let mut state = self.shared.state.lock();
        if let Some(held) = state.permits.holders.get_mut(&self.number) {
            held.times += 1;
            return Ok(Permit { task: self });
        }
        if state.cancelled(self) {
            return Err(MemoryError::Cancelled);
        }
        let units = state.permits.units(self.stage);
        state.permits.waiting.insert(self.number, units);
        let wake = {
            let task = state.task(self.number);
            task.doing = Doing::WaitsForPermit;
            Arc::clone(&task.wake)
        };
        state.settle();
        loop {
            if let Doing::Told(verdict) = state.task(self.number).doing {
                state.task(self.number).doing = Doing::Runs;
                if verdict == Verdict::Granted {
                    return Ok(Permit { task: self });
                }
                state.permits.waiting.remove(&self.number);
                return Err(MemoryError::Cancelled);
            }
            wake.wait(&mut state);
        }
    }

    fn release(&self) {
        let mut state = self.shared.state.lock();
        let permits = &mut state.permits;
        let Some(held) = permits.holders.get_mut(&self.number) else { return };
        held.times -= 1;
        if held.times == 0 {
            permits.used -= held.units;
            permits.holders.remove(&self.number);
            state.settle();
        }
    }
}

impl Permit<'_> {
    /// Gives the permit back while something is waited for, and takes one again.
    ///
    /// What the task took more than once stays taken, and others wait.
    pub fn pause<R>(self, wait: impl FnOnce() -> R) -> Result<(Self, R), MemoryError> {
        let task = self.task;
        drop(self);
        let result = task.idle(wait);
        Ok((task.acquire()?, result))
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.task.release();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::memory::ledger::{Bytes, Kind, Ledger, Limits};

    #[test]
    fn a_stage_is_guessed_then_measured() {
        let mut footprints = Footprints { guess: 1000, stages: Vec::new() };
        assert_eq!(footprints.estimate(1), 1000);
        footprints.add(1, 10);
        // Three guesses and one measurement.
        assert_eq!(footprints.estimate(1), 1000);
        for bytes in [20, 30, 40, 50] {
            footprints.add(1, bytes);
        }
        assert_eq!(footprints.estimate(1), 40);
        assert_eq!(footprints.estimate(2), 1000);
        for _ in 0..SAMPLES {
            footprints.add(1, 7);
        }
        assert_eq!(footprints.estimate(1), 7);
        assert_eq!(footprints.stages[0].1.len(), SAMPLES);
    }

    #[test]
    fn the_stage_not_used_for_longest_is_forgotten() {
        let mut footprints = Footprints { guess: 1000, stages: Vec::new() };
        for stage in 0..STAGES as u64 {
            (0..5).for_each(|_| footprints.add(stage, 1));
        }
        footprints.add(0, 1);
        footprints.add(STAGES as u64, 1);
        assert_eq!(footprints.estimate(0), 1);
        assert_eq!(footprints.estimate(1), 1000);
    }

    #[test]
    fn permits_of_memory() {
        // 16 GiB and batches of 1 GiB: four tasks at first.
        let permits = Permits::measured(16 << 30, 1 << 30);
        assert_eq!((permits.total, permits.units(0)), (512, 128));
        // A pool of fewer batches: one task, with all of it.
        let permits = Permits::measured(3 << 30, 1 << 30);
        assert_eq!((permits.total, permits.units(0)), (96, 96));
        // Smaller than a unit.
        let permits = Permits::measured(1 << 20, 1 << 30);
        assert_eq!((permits.total, permits.units(0)), (1, 1));
    }

    fn ledger(permits: Permits) -> Ledger {
        let limits = Limits {
            bytes: Bytes::new(1 << 30, 0, 0),
            attachment_quota: 1 << 30,
            wait_timeout: Duration::from_mins(10),
        };
        Ledger::new(limits, permits)
    }

    fn until_waiting(ledger: &Ledger, tasks: usize) {
        while ledger.report().waiting_for_permit != tasks {
            thread::yield_now();
        }
    }

    #[test]
    fn no_more_tasks_than_permits_and_all_have_their_turn() {
        let ledger = ledger(Permits::fixed(3));
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for name in 0..8 {
                let query = ledger.attach(format!("a{name}")).query("q");
                let (now, most) = (&now, &most);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let task = query.task(0);
                        let _permit = task.acquire().unwrap();
                        let tasks = now.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(tasks, Ordering::SeqCst);
                        thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(most.into_inner() <= 3);
        let report = ledger.report();
        assert_eq!((report.permits, report.events.permits_beyond), (0, 0));
    }

    #[test]
    fn the_oldest_goes_first_whichever_attachment_it_is_of() {
        let ledger = ledger(Permits::fixed(1));
        let (greedy, modest) =
            (ledger.attach("greedy").query("g"), ledger.attach("modest").query("m"));
        let holder = greedy.task(0);
        let first = greedy.task(0);
        let second = modest.task(0);
        let third = greedy.task(0);
        let permit = holder.acquire().unwrap();
        let order = parking_lot::Mutex::new(Vec::new());
        thread::scope(|scope| {
            // They come in the opposite order of their age.
            for (waiting, (name, task)) in
                [("third", &third), ("second", &second), ("first", &first)].into_iter().enumerate()
            {
                let order = &order;
                scope.spawn(move || {
                    let _permit = task.acquire().unwrap();
                    order.lock().push(name);
                });
                until_waiting(&ledger, waiting + 1);
            }
            drop(permit);
        });
        assert_eq!(order.into_inner(), ["first", "second", "third"]);
    }

    #[test]
    fn a_task_takes_as_much_as_its_stage_was_seen_to_need() {
        // 1 GiB: 32 units, and tasks are guessed to need a quarter.
        let ledger = ledger(Permits::measured(1 << 30, 1 << 20));
        let query = ledger.attach("a").query("q");
        let small = 7;
        for _ in 0..20 {
            let task = query.task(small);
            let _permit = task.acquire().unwrap();
            drop(task.reserve(Kind::Device, 32 << 20, "x").unwrap());
        }
        let tasks: Vec<_> = (0..32).map(|_| query.task(small)).collect();
        let permits: Vec<_> = tasks.iter().map(|task| task.acquire().unwrap()).collect();
        assert_eq!(ledger.report().permits, 32);
        let one_more = query.task(small);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(one_more.acquire().unwrap()));
            until_waiting(&ledger, 1);
            drop(permits);
            waiting.join().unwrap();
        });
        assert_eq!(ledger.report().events.permits_beyond, 0);
    }

    #[test]
    fn a_task_that_has_a_permit_has_another_at_once() {
        let ledger = ledger(Permits::fixed(1));
        let query = ledger.attach("a").query("q");
        let task = query.task(0);
        let outer = task.acquire().unwrap();
        drop(task.acquire().unwrap());
        assert_eq!(ledger.report().permits, 1);
        drop(outer);
        assert_eq!(ledger.report().permits, 0);
    }

    #[test]
    fn a_permit_is_anothers_while_its_task_waits() {
        let ledger = ledger(Permits::fixed(1));
        let query = ledger.attach("a").query("q");
        let (consumer, producer) = (query.task(0), query.task(0));
        let permit = consumer.acquire().unwrap();
        let (_permit, work) = permit
            .pause(|| {
                thread::scope(|scope| {
                    let thread = scope.spawn(|| producer.acquire().map(|_| 7).unwrap());
                    thread.join().unwrap()
                })
            })
            .unwrap();
        assert_eq!(work, 7);
        assert_eq!(ledger.report().events.permits_beyond, 0);
    }

    #[test]
    fn a_query_that_waits_for_its_own_task_is_let_through() {
        let ledger = ledger(Permits::fixed(1));
        let query = ledger.attach("a").query("q");
        let (consumer, producer) = (query.task(0), query.task(0));
        // The permit is kept: that is clumsy, and must not be the end.
        let _permit = consumer.acquire().unwrap();
        let work = consumer.idle(|| {
            thread::scope(|scope| {
                scope.spawn(|| producer.acquire().map(|_| 7).unwrap()).join().unwrap()
            })
        });
        assert_eq!(work, 7);
        assert_eq!(ledger.report().events.permits_beyond, 1);
        assert_eq!(ledger.report().permits, 1);
    }
}
