//! Who gets memory, who waits, and who is told what.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use creel_settings::{PoolKind, PoolSizing};

use super::*;
use crate::memory::double::Double;
use crate::memory::error::{Cause, MemoryError, Recovery};
use crate::memory::pool::DevicePool;
use crate::memory::sizing::PoolSize;
use crate::memory::upstream::Stream;

const PATIENT: Duration = Duration::from_mins(10);

fn ledger_of(device: u64, quota: u64, wait_timeout: Duration) -> Ledger {
    let bytes = Bytes::new(device, 1000, 1000);
    Ledger::new(Limits { bytes, attachment_quota: quota, wait_timeout }, Permits::fixed(100))
}

fn ledger(device: u64) -> Ledger {
    ledger_of(device, device, PATIENT)
}

/// Blocks until so many tasks wait for memory.
fn until_waiting(ledger: &Ledger, tasks: usize) {
    while ledger.report().waiting != tasks {
        thread::yield_now();
    }
}

#[test]
fn bytes_are_counted_for_each_account_and_come_back() {
    let ledger = ledger(100);
    let (one, other) = (ledger.attach("a1"), ledger.attach("a2"));
    let (q1, q2) = (one.query("q1"), other.query("q2"));
    let task = q1.task(0);
    let mut held = task.reserve(Kind::Device, 60, "hashes").unwrap();
    let host = q2.try_reserve(Kind::Host, 1000, "spilled").unwrap();
    assert!(q2.try_reserve(Kind::Device, 41, "keys").is_none());
    assert!(q2.try_reserve(Kind::Host, 1, "keys").is_none());
    assert_eq!(ledger.report().used, Bytes::new(60, 0, 1000));
    assert_eq!((one.used(), q2.used()), (Bytes::new(60, 0, 0), Bytes::new(0, 0, 1000)));
    held.shrink_to(10);
    assert_eq!(task.peak(), Bytes::new(60, 0, 0));
    drop((held, host, task));
    q1.finish().unwrap();
    q2.finish().unwrap();
    let report = ledger.report();
    assert_eq!((report.used, report.peak), (Bytes::default(), Bytes::new(60, 0, 1000)));
    assert_eq!(report.events.grants, 2);
}

#[test]
fn what_can_never_fit_names_the_holders() {
    let ledger = ledger_of(100, 80, PATIENT);
    let one = ledger.attach("attachment 1 (pid 11)");
    let other = ledger.attach("attachment 2 (pid 22)");
    let (q1, q2) = (one.query("q1"), other.query("q2"));
    let _small = q1.try_reserve(Kind::Device, 5, "keys").unwrap();
    let _large = q1.try_reserve(Kind::Device, 35, "a hash table").unwrap();
    let _most = q2.try_reserve(Kind::Device, 50, "a batch").unwrap();

    let error = q2.task(0).reserve(Kind::Device, 101, "more").unwrap_err();
    assert_eq!(error.recovery(), Recovery::Split);
    assert_eq!(
        error.to_string(),
        "101 bytes of device memory can't be had: there are 100 in all; held by query q2 of \
         attachment 2 (pid 22) (50 bytes, most for a batch), query q1 of attachment 1 (pid 11) \
         (40 bytes, most for a hash table); a smaller step may fit"
    );
    let error = q2.task(0).reserve(Kind::Device, 81, "more").unwrap_err().to_string();
    assert!(error.contains("may hold 80 (gpu.memory.attachment_quota)"), "{error}");
    assert!(!error.contains("q1"), "others are not to blame: {error}");
    assert_eq!(ledger.report().events.refusals, 2);
}

#[test]
fn a_task_waits_until_others_give_back() {
    let ledger = ledger(100);
    let query = ledger.attach("a").query("q");
    let (runs, waits) = (query.task(0), query.task(0));
    let held = runs.reserve(Kind::Device, 60, "x").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waits.reserve(Kind::Device, 60, "y").map(|it| it.bytes()));
        until_waiting(&ledger, 1);
        assert_eq!(ledger.report().used.of(Kind::Device), 60);
        drop(held);
        assert_eq!(waiting.join().unwrap().unwrap(), 60);
    });
    assert_eq!(ledger.report().events.waits, 1);
}

#[test]
fn the_oldest_is_first_and_none_passes_it() {
    let ledger = ledger(100);
    let query = ledger.attach("a").query("q");
    let (runs, old, young) = (query.task(0), query.task(0), query.task(0));
    let held = runs.reserve(Kind::Device, 60, "x").unwrap();
    let (told, order) = mpsc::channel();
    thread::scope(|scope| {
        let (ledger, told) = (&ledger, &told);
        let old = &old;
        scope.spawn(move || {
            let held = old.reserve(Kind::Device, 80, "y").unwrap();
            told.send("old").unwrap();
            drop(held);
        });
        until_waiting(ledger, 1);
        // It fits, but somebody older waits; of another kind of memory nobody does.
        let host = young.reserve(Kind::Host, 30, "z").unwrap();
        let young = &young;
        scope.spawn(move || {
            let _host = host;
            let held = young.reserve(Kind::Device, 30, "z").unwrap();
            told.send("young").unwrap();
            drop(held);
        });
        until_waiting(ledger, 2);
        drop(held);
        // Lest all but two wait: the runner is done.
        drop(runs);
    });
    assert_eq!([order.recv().unwrap(), order.recv().unwrap()], ["old", "young"]);
    assert_eq!(ledger.report().events.retries, 0);
}

#[test]
fn when_all_wait_the_youngest_gives_back() {
    let ledger = ledger(100);
    let query = ledger.attach("a").query("q");
    let (old, young) = (query.task(0), query.task(0));
    thread::scope(|scope| {
        let old_held = old.reserve(Kind::Device, 45, "x").unwrap();
        let young_held = young.reserve(Kind::Device, 45, "x").unwrap();
        let (old, young) = (&old, &young);
        scope.spawn(move || {
            let more = old.reserve(Kind::Device, 45, "x").unwrap();
            drop((old_held, more));
        });
        scope.spawn(move || {
            let error = young.reserve(Kind::Device, 45, "x").unwrap_err();
            assert_eq!(error.recovery(), Recovery::Retry, "{error}");
            drop(young_held);
            let all = young.reserve(Kind::Device, 90, "x").unwrap();
            drop(all);
        });
    });
    let Events { retries, splits, .. } = ledger.report().events;
    assert_eq!((retries, splits), (1, 0));
}

#[test]
fn one_that_fits_goes_on_before_anybody_is_told_to_retry() {
    let ledger = ledger(100);
    let query = ledger.attach("a").query("q");
    let (old, young) = (query.task(0), query.task(0));
    thread::scope(|scope| {
        let (old, young) = (&old, &young);
        let young_held = young.reserve(Kind::Device, 40, "x").unwrap();
        scope.spawn(move || drop(old.reserve(Kind::Device, 80, "x").unwrap()));
        until_waiting(&ledger, 1);
        // Behind the older one, but only this one can go on.
        let more = young.reserve(Kind::Device, 20, "x").unwrap();
        drop((young_held, more));
    });
    assert_eq!(ledger.report().events.retries, 0);
}

#[test]
fn a_task_that_stays_alone_is_told_to_split_and_then_why_it_fails() {
    let ledger = ledger(100);
    let query = ledger.attach("a").query("q");
    let _kept = query.try_reserve(Kind::Device, 70, "a result").unwrap();
    let task = query.task(0);
    let first = task.reserve(Kind::Device, 40, "x").unwrap_err();
    assert_eq!(first.recovery(), Recovery::Retry);
    for _ in 0..2 {
        let next = task.reserve(Kind::Device, 40, "x").unwrap_err();
        assert_eq!(next.recovery(), Recovery::Split);
        let said = next.to_string();
        assert!(said.contains("70 of 100 are in use, and all who hold them wait"), "{said}");
        assert!(said.contains("query q of a (70 bytes, most for a result)"), "{said}");
    }
    drop(task.reserve(Kind::Device, 30, "x").unwrap());
    // What it was given is no step yet.
    assert_eq!(task.reserve(Kind::Device, 40, "x").unwrap_err().recovery(), Recovery::Split);
    task.progressed();
    assert_eq!(task.reserve(Kind::Device, 40, "x").unwrap_err().recovery(), Recovery::Retry);
}

/// A task that was told to retry already and holds 70 of 100, and a younger one that holds none.
fn holder_and_younger(ledger: &Ledger, query: &Query) -> (Task, Reservation, Task) {
    let old = query.task(0);
    let kept = query.try_reserve(Kind::Device, 80, "x").unwrap();
    assert_eq!(old.reserve(Kind::Device, 40, "x").unwrap_err().recovery(), Recovery::Retry);
    drop(kept);
    let held = old.reserve(Kind::Device, 70, "x").unwrap();
    assert_eq!(ledger.report().events.retries, 1);
    (old, held, query.task(0))
}

#[test]
fn one_that_split_and_waits_again_cannot_help_but_who_holds_can() {
    let ledger = ledger(100);
    let query = ledger.attach("a").query("q");
    let (old, held, young) = holder_and_younger(&ledger, &query);
    thread::scope(|scope| {
        scope.spawn(|| {
            let error = old.reserve(Kind::Device, 40, "x").unwrap_err();
            assert_eq!(error.recovery(), Recovery::Split, "{error}");
            drop(held);
        });
        until_waiting(&ledger, 1);
        // Ends here, lest the other waits for it if this fails.
        let young = young;
        for told in [Recovery::Retry, Recovery::Split] {
            // What it is given on the way is no step.
            let _little = young.reserve(Kind::Device, 1, "x").unwrap();
            assert_eq!(young.reserve(Kind::Device, 40, "x").unwrap_err().recovery(), told);
        }
        drop(young.reserve(Kind::Device, 40, "x").unwrap());
    });
    assert_eq!(ledger.report().events.splits, 2);
}

#[test]
fn one_that_cannot_split_is_told_when_nobody_can() {
    let ledger = ledger(100);
    let query = ledger.attach("a").query("q");
    let (old, held, young) = holder_and_younger(&ledger, &query);
    let splits = || ledger.report().events.splits;
    thread::scope(|scope| {
        let old = scope.spawn(|| {
            for _ in 0..3 {
                let error = old.reserve(Kind::Device, 40, "x").unwrap_err();
                assert_eq!(error.recovery(), Recovery::Split, "{error}");
            }
            old.on_last_try();
            drop(old.reserve(Kind::Device, 40, "x").unwrap());
        });
        until_waiting(&ledger, 1);
        assert_eq!(young.reserve(Kind::Device, 40, "x").unwrap_err().recovery(), Recovery::Retry);
        young.on_last_try();
        assert_eq!(young.reserve(Kind::Device, 40, "x").unwrap_err().recovery(), Recovery::Split);
        assert_eq!(splits(), 4);
        drop(held);
        old.join().unwrap();
    });
    // A step that is done is none of these.
    young.progressed();
    let _kept = query.try_reserve(Kind::Device, 100, "x").unwrap();
    drop(old);
    assert_eq!(young.reserve(Kind::Device, 40, "x").unwrap_err().recovery(), Recovery::Retry);
}

#[test]
fn a_quota_holds_its_attachment_alone() {
    let ledger = ledger_of(100, 50, PATIENT);
    let (one, other) = (ledger.attach("one"), ledger.attach("other"));
    let (q1, q2) = (one.query("q1"), other.query("q2"));
    let (own, others) = (q1.task(0), q2.task(0));
    let held = own.reserve(Kind::Device, 40, "x").unwrap();
    // The other runs, but can't help: the own tasks alone can.
    let error = own.reserve(Kind::Device, 20, "x").unwrap_err();
    assert_eq!(error.recovery(), Recovery::Retry, "{error}");
    let error = own.reserve(Kind::Device, 20, "x").unwrap_err();
    assert_eq!(error.recovery(), Recovery::Split);
    assert!(error.to_string().contains("40 of 50 are in use"), "{error}");

    // One that waits for its quota is in nobody's way.
    let sibling = q1.task(0);
    thread::scope(|scope| {
        scope.spawn(|| drop(own.reserve(Kind::Device, 20, "x").unwrap()));
        until_waiting(&ledger, 1);
        drop(others.reserve(Kind::Device, 50, "y").unwrap());
        drop(held);
    });
    drop(sibling);

    // All of the attachment wait, one of them only behind another: that one is let through.
    let sibling = q1.task(0);
    let held = sibling.reserve(Kind::Device, 30, "x").unwrap();
    thread::scope(|scope| {
        scope.spawn(|| drop(own.reserve(Kind::Device, 40, "x").unwrap()));
        until_waiting(&ledger, 1);
        let retries = ledger.report().events.retries;
        drop(sibling.reserve(Kind::Device, 10, "x").unwrap());
        assert_eq!(ledger.report().events.retries, retries);
        drop(held);
    });
}

#[derive(Default)]
struct Batches {
    asked: Mutex<Vec<(Kind, u64, Whose)>>,
    held: Mutex<Vec<Reservation>>,
}

impl Spiller for Batches {
    fn spill(&self, kind: Kind, bytes: u64, whose: Whose) -> u64 {
        self.asked.lock().push((kind, bytes, whose));
        let spilled = {
            let mut held = self.held.lock();
            let of = |held: &Reservation| match whose {
                Whose::Query(number) => held.query().number() == number,
                Whose::Attachment(number) => held.query().attachment().number() == number,
                Whose::All => true,
            };
            let at = held.iter().position(|held| held.kind() == kind && of(held));
            at.map(|at| held.remove(at))
        };
        spilled.map_or(0, |spilled| spilled.bytes())
    }
}

#[test]
fn own_batches_are_spilled_then_those_of_others_then_it_waits() {
    let ledger = ledger_of(100, 90, PATIENT);
    let spiller = Arc::new(Batches::default());
    ledger.set_spiller(Arc::clone(&spiller) as Arc<dyn Spiller>);
    let (one, other) = (ledger.attach("one"), ledger.attach("other"));
    let (q1, q2, q3) = (one.query("q1"), one.query("q2"), other.query("q3"));
    let batch = |query: &Query, bytes| {
        spiller.held.lock().push(query.try_reserve(Kind::Device, bytes, "a batch").unwrap());
    };
    batch(&q3, 20);
    batch(&q2, 30);
    batch(&q1, 25);
    let (query, attachment) = (Whose::Query(q1.number()), Whose::Attachment(one.number()));
    let asked = || std::mem::take(&mut *spiller.asked.lock());
    let task = q1.task(0);

    let _a = task.reserve(Kind::Device, 25, "x").unwrap();
    assert_eq!(asked(), []);
    let _b = task.reserve(Kind::Device, 20, "x").unwrap();
    assert_eq!(asked(), [(Kind::Device, 20, query)]);
    // 25 + 20 own, 30 of the same attachment, 20 of the other: over the quota and the limit.
    let _c = task.reserve(Kind::Device, 20, "x").unwrap();
    assert_eq!(asked(), [(Kind::Device, 15, query), (Kind::Device, 5, attachment)]);
    // 65 own and 20 of the other: only the limit.
    let _d = task.reserve(Kind::Device, 20, "x").unwrap();
    assert_eq!(asked(), [(Kind::Device, 5, query), (Kind::Device, 5, Whose::All)]);
    assert_eq!(spiller.held.lock().len(), 0);
    let error = task.reserve(Kind::Device, 20, "x").unwrap_err();
    assert_eq!(error.recovery(), Recovery::Retry);
    assert_eq!(ledger.report().events.waits, 1);
}

#[test]
fn a_query_that_is_cancelled_waits_no_more() {
    let ledger = ledger(100);
    let attachment = ledger.attach("a");
    let (query, other) = (attachment.query("q"), attachment.query("other"));
    let (task, runs) = (query.task(0), other.task(0));
    let held = runs.reserve(Kind::Device, 100, "x").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| task.reserve(Kind::Device, 1, "x"));
        until_waiting(&ledger, 1);
        query.cancel();
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, MemoryError::Cancelled), "{error}");
    });
    drop(held);
    assert!(matches!(task.reserve(Kind::Device, 1, "x"), Err(MemoryError::Cancelled)));
    assert!(matches!(task.acquire().err(), Some(MemoryError::Cancelled)));
    drop(runs.reserve(Kind::Device, 1, "x").unwrap());
}

#[test]
fn waiting_has_an_end() {
    let ledger = ledger_of(100, 100, Duration::from_millis(20));
    let query = ledger.attach("a").query("q");
    let (task, runs) = (query.task(0), query.task(0));
    let _held = runs.reserve(Kind::Device, 100, "a cross join").unwrap();
    let error = task.reserve(Kind::Device, 1, "x").unwrap_err();
    assert_eq!(error.recovery(), Recovery::Fail);
    let said = error.to_string();
    assert!(said.contains("not given back in 0.02 s") && said.contains("a cross join"), "{said}");
    let MemoryError::Refused(refusal) = error else { panic!("{error}") };
    assert_eq!(refusal.cause, Cause::TimedOut(Duration::from_millis(20)));
}

#[test]
fn what_a_query_leaves_is_named_with_its_line() {
    let ledger = ledger(1 << 20);
    let query = ledger.attach("a").query("q7");
    let task = query.task(0);
    let left = task.reserve(Kind::Device, 77, "a hash table").unwrap();
    let line = line!() - 1;
    let error = query.clone().finish().unwrap_err().to_string();
    assert!(error.starts_with("query q7 has ended and did not give back 77 bytes of device"));
    assert!(
        error.contains("a hash table") && error.contains(&format!("tests.rs:{line}:")),
        "{error}"
    );
    drop(left);
    query.finish().unwrap();
}

fn small_pool(bytes: u64) -> Arc<DevicePool> {
    let size = PoolSize {
        sizing: PoolSizing::Current,
        pool: PoolKind::Default,
        initial: bytes,
        maximum: bytes,
        warnings: Vec::new(),
    };
    DevicePool::new(&size, &Arc::new(Double::new(bytes)), None).unwrap()
}

#[test]
fn ledger_and_pool_agree() {
    let pool = small_pool(4096);
    let ledger = ledger(4096);
    let query = ledger.attach("a").query("q");
    let task = query.task(0);
    let buffer = task.allocate(&pool, 1000, Stream(1), "x").unwrap();
    assert_eq!((buffer.bytes(), buffer.reserved()), (1000, 1024));
    assert_eq!((ledger.report().used.of(Kind::Device), pool.statistics().live), (1024, 1024));
    drop(buffer);
    assert_eq!((ledger.report().used.of(Kind::Device), pool.statistics().live), (0, 0));
    // Memory of the pool that is accounted to the query and not reserved.
    let leaked = pool.allocate_for(10, Stream(1), &query.inner.pooled).unwrap();
    let error = query.clone().finish().unwrap_err().to_string();
    assert!(error.contains("256 bytes of the pool that no reservation"), "{error}");
    drop(leaked);
    query.finish().unwrap();
}

struct Pieces(Mutex<Vec<DeviceBuffer>>);

impl Spiller for Pieces {
    fn spill(&self, _: Kind, _: u64, whose: Whose) -> u64 {
        if whose != Whose::All {
            return 0;
        }
        std::mem::take(&mut *self.0.lock()).iter().map(DeviceBuffer::reserved).sum()
    }
}

#[test]
fn a_pool_in_pieces_is_spilled_before_it_fails() {
    let pool = small_pool(4096);
    let ledger = ledger(8192);
    let query = ledger.attach("a").query("q");
    let task = query.task(0);
    let mut pieces: Vec<_> =
        (0..4).map(|_| task.allocate(&pool, 1024, Stream(1), "x").unwrap()).collect();
    pieces.remove(2);
    pieces.remove(0);
    // 2048 bytes are free, in two pieces.
    let error = task.allocate(&pool, 2048, Stream(1), "x").unwrap_err();
    assert!(matches!(error, MemoryError::PoolExhausted { largest: 1024, .. }), "{error}");
    assert_eq!(query.used().of(Kind::Device), 2048);
    ledger.set_spiller(Arc::new(Pieces(Mutex::new(pieces))));
    drop(task.allocate(&pool, 2048, Stream(1), "x").unwrap());
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn injected_failures_are_those_asked_for() {
    let ledger = ledger(100);
    let query = ledger.attach("a").query("q");
    let task = query.task(0);
    let outcomes = |injection| {
        ledger.inject(Some(injection));
        (0..7)
            .map(|_| task.reserve(Kind::Device, 1, "x").err().map(|error| error.recovery()))
            .collect::<Vec<_>>()
    };
    let (ok, retry, split) = (None, Some(Recovery::Retry), Some(Recovery::Split));
    assert_eq!(outcomes(Injection::every(3, Recovery::Retry)), [ok, ok, retry, ok, ok, retry, ok]);
    assert_eq!(outcomes(Injection::at(2, Recovery::Split)), [ok, split, ok, ok, ok, ok, ok]);
    ledger.inject(None);
    drop(task.reserve(Kind::Device, 1, "x").unwrap());
}

/// Every thread takes several reservations of several kinds, permits, and waits for siblings, in
/// a ledger far too small. All must end, whatever the order.
#[test]
fn nobody_waits_for_ever() {
    for round in 0..20_u64 {
        let limits =
            Limits { bytes: Bytes::new(100, 50, 50), attachment_quota: 80, wait_timeout: PATIENT };
        let ledger = Ledger::new(limits, Permits::fixed(2));
        let finished = AtomicUsize::new(0);
        thread::scope(|scope| {
            for attachment in 0..3_u64 {
                let attachment_account = ledger.attach(format!("a{attachment}"));
                for thread in 0..3_u64 {
                    let query = attachment_account.query(format!("q{attachment}.{thread}"));
                    let finished = &finished;
                    scope.spawn(move || {
                        let mut random = round * 31 + attachment * 7 + thread + 1;
                        let task = query.task(0);
                        for _ in 0..200 {
                            step(&task, &mut random);
                        }
                        drop(task);
                        query.finish().unwrap();
                        finished.fetch_add(1, Ordering::Relaxed);
                    });
                }
            }
        });
        assert_eq!(finished.into_inner(), 9);
        let report = ledger.report();
        assert_eq!((report.used, report.permits), (Bytes::default(), 0));
        assert!(report.peak.of(Kind::Device) <= 100);
    }
}

fn step(task: &Task, random: &mut u64) {
    let mut next = |below: u64| {
        *random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*random >> 33) % below
    };
    let _permit = (next(3) == 0).then(|| task.acquire().unwrap());
    let mut most = 60;
    'again: loop {
        let mut held = Vec::new();
        for _ in 0..=next(3) {
            let kind = Kind::ALL[next(3) as usize];
            match task.reserve(kind, 1 + next(most), "x") {
                Ok(reservation) => held.push(reservation),
                Err(error) => {
                    drop(held);
                    match error.recovery() {
                        Recovery::Retry => {}
                        Recovery::Split => most = (most / 2).max(1),
                        _ => panic!("{error}"),
                    }
                    continue 'again;
                }
            }
        }
        return task.progressed();
    }
}
