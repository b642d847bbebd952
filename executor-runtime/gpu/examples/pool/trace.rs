//! Traces of allocations and frees, made from a seed.

use std::collections::BTreeMap;

/// Operations of a trace.
pub(crate) const OPERATIONS: usize = 1_000_000;

/// One operation; slots are reused.
#[derive(Clone, Copy)]
pub(crate) enum Operation {
    /// Takes that many bytes into a slot.
    Allocate { slot: usize, bytes: u64 },
    /// Frees a slot.
    Free { slot: usize },
}

/// A trace: its operations, and what it has in use at the most.
pub(crate) struct Trace {
    pub(crate) operations: Vec<Operation>,
    pub(crate) slots: usize,
    /// In bytes, as rounded to 256.
    #[allow(dead_code, reason = "the heaps of processes have no size to compare with")]
    pub(crate) peak: u64,
}

/// What a trace is like.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// As queries have it: columns of batches of a few widths, that live as long as their batch;
    /// scratch space, that lives for one step; hash tables, that live long.
    Queries,
    /// Sizes from 256 bytes to 64 MiB, as many of each magnitude, freed in no order.
    Random,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Queries, Self::Random];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Queries => "queries",
            Self::Random => "random",
        }
    }

    /// A trace that keeps about `load` bytes in use, once it has reached them.
    pub(crate) fn trace(self, load: u64, seed: u64) -> Trace {
        let mut random = Random(seed | 1);
        let mut writer = Writer::default();
        match self {
            Self::Queries => queries(&mut writer, load, &mut random),
            Self::Random => {
                while writer.operations.len() < OPERATIONS {
                    let bytes = magnitude(&mut random, 8, 26);
                    writer.make_room(load, bytes, |writer| random.below(writer.live.len() as u64));
                    writer.allocate(bytes);
                }
            }
        }
        Trace { operations: writer.operations, slots: writer.slots, peak: writer.peak }
    }
}

/// Several queries in turn, each a series of steps: scratch, a batch, perhaps a hash table.
fn queries(writer: &mut Writer, load: u64, random: &mut Random) {
    const QUERIES: usize = 8;
    const WIDTHS: [u64; 6] = [1, 2, 4, 8, 16, 24];
    /// Batches that a query has at one time.
    const BATCHES: usize = 6;
    let mut batches: Vec<Vec<Vec<usize>>> = vec![Vec::new(); QUERIES];
    let mut tables: Vec<Vec<usize>> = vec![Vec::new(); QUERIES];
    while writer.operations.len() < OPERATIONS {
        let query = random.below(QUERIES as u64) as usize;
        let rows = [65_536, 131_072, 1_000_000, 1 << 20][random.below(4) as usize]
            - random.below(2) * random.below(50_000);
        let mut step = Vec::new();
        let mut columns = Vec::new();
        for _ in 0..2 + random.below(10) {
            columns.push(rows * WIDTHS[random.below(6) as usize]);
            // Its validity bitmap.
            columns.push(rows / 8);
        }
        let scratch: Vec<_> = (0..4 + random.below(8)).map(|_| magnitude(random, 8, 20)).collect();
        let table = (random.below(40) == 0).then(|| magnitude(random, 20, 29));
        let wanted = columns.iter().chain(&scratch).sum::<u64>() + table.unwrap_or(0);
        while writer.in_use + wanted > load {
            // The query with most batches goes on, and so gives back.
            let most = (0..QUERIES).max_by_key(|query| batches[*query].len()).unwrap_or(0);
            if batches[most].is_empty() {
                let Some(full) = tables.iter_mut().find(|tables| !tables.is_empty()) else { break };
                full.drain(..).for_each(|id| writer.free(id));
            } else {
                batches[most].remove(0).into_iter().for_each(|id| writer.free(id));
            }
        }
        for bytes in scratch {
            step.push(writer.allocate(bytes));
        }
        batches[query].push(columns.into_iter().map(|bytes| writer.allocate(bytes)).collect());
        for id in step {
            writer.free(id);
        }
        if let Some(bytes) = table {
            tables[query].push(writer.allocate(bytes));
        }
        // Its end.
        if random.below(200) == 0 {
            tables[query].drain(..).for_each(|id| writer.free(id));
        }
        if batches[query].len() > BATCHES * 8 {
            batches[query].remove(0).into_iter().for_each(|id| writer.free(id));
        }
    }
}

/// A size between two powers of two, as many of each magnitude.
fn magnitude(random: &mut Random, from: u64, to: u64) -> u64 {
    let power = from + random.below(to - from);
    (1 << power) + random.below(1 << power)
}

#[derive(Default)]
struct Writer {
    operations: Vec<Operation>,
    slots: usize,
    vacant: Vec<usize>,
    /// Ids in use, in no order, and where each is.
    live: Vec<usize>,
    pieces: BTreeMap<usize, (usize, u64, usize)>,
    next: usize,
    in_use: u64,
    peak: u64,
}

impl Writer {
    fn allocate(&mut self, bytes: u64) -> usize {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        });
        self.operations.push(Operation::Allocate { slot, bytes });
        let rounded = bytes.next_multiple_of(256);
        self.in_use += rounded;
        self.peak = self.peak.max(self.in_use);
        self.next += 1;
        self.pieces.insert(self.next, (slot, rounded, self.live.len()));
        self.live.push(self.next);
        self.next
    }

    fn free(&mut self, id: usize) {
        let (slot, rounded, at) = self.pieces.remove(&id).expect("an id in use");
        self.live.swap_remove(at);
        if let Some(moved) = self.live.get(at) {
            self.pieces.get_mut(moved).expect("an id in use").2 = at;
        }
        self.operations.push(Operation::Free { slot });
        self.in_use -= rounded;
        self.vacant.push(slot);
    }

    fn make_room(&mut self, load: u64, bytes: u64, mut which: impl FnMut(&Self) -> u64) {
        while self.in_use + bytes > load {
            let id = self.live[which(self) as usize];
            self.free(id);
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        // Knuth's MMIX constants; the high bits are the good ones.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * u128::from(below)) >> 64) as u64
    }
}
