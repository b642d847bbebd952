// Which rows belong together: a group for each distinct key, numbered as they first appear.
//
// ```text
//   hash_rows ─▶ group_insert ─▶ group_leaders ─▶ filter_count … filter_rows ─▶ group_number ─▶ group_ids
//   hashes       table, places   first rows       leaders: a row per group      table: ids      id per row
// ```
//
// The table holds hash and row of each key, in 64 bits, so one compare-and-swap serves for keys of
// any width, and the key is compared where it lies. Its row is the first with the key, whoever came
// first: so groups have the same numbers in every run.
//
// Bytes moved for each row: keys and 4 of hash read, 4 written, an entry and a key of the table read
// (from cache if groups are few); then 4 read and an entry, 1/8 written; then 4 read, an entry, 4
// written.
#include "hash/keys.cuh"

constexpr u32 THREADS = 256;
constexpr u64 EMPTY = ~0ull;

// places[row] = the entry of the row's key. `slots` is a power of two; the host has filled the table
// with EMPTY. `groups` counts entries: beyond `limit` the table is too full, rows that find
// no key give up, and the host starts again with a larger one.
extern "C" __global__ void __launch_bounds__(THREADS)
    group_insert(const Column* keys, u32 count, u32 rows, const u32* hashes, u64* table, u32 slots,
                 u32 limit, u32* groups, u32* places) {
    u32 row = blockIdx.x * THREADS + threadIdx.x;
    if (row >= rows) return;
    u32 hash = hashes[row];
    u64 mine = static_cast<u64>(hash) << 32 | row;
    u32 place = hash & (slots - 1);
    for (u32 probes = 0;; probes++) {
        // Blocks that run at once may all insert before one is counted, and fill the table.
        if (probes % 32 == 31 && *static_cast<volatile u32*>(groups) > limit) return;
        // What is read here may be old: an entry that is there by now is found by the swap.
        u64 entry = table[place];
        if (entry == EMPTY) {
            if (*static_cast<volatile u32*>(groups) > limit) return;
            entry = atomicCAS(&table[place], EMPTY, mine);
            if (entry == EMPTY) {
                atomicAdd(groups, 1u);
                break;
            }
        }
        if (entry >> 32 == hash && same_keys(keys, count, static_cast<u32>(entry), row)) {
            if (row < static_cast<u32>(entry)) atomicMin(&table[place], mine);
            break;
        }
        place = (place + 1) & (slots - 1);
    }
    places[row] = place;
}

// A bitmap of the rows that stand for their group.
extern "C" __global__ void __launch_bounds__(THREADS)
    group_leaders(const u64* table, const u32* places, u32 rows, u32* leaders) {
    u32 row = blockIdx.x * THREADS + threadIdx.x;
    bool leads = row < rows && static_cast<u32>(table[places[row]]) == row;
    u32 word = __ballot_sync(ALL_LANES, leads);
    if (row % WARP == 0 && row < rows) leaders[row / WARP] = word;
}

// The table's entries become the numbers of their groups. `leaders`: the row of each group.
extern "C" __global__ void __launch_bounds__(THREADS)
    group_number(const u32* leaders, u32 groups, const u32* places, u64* table) {
    u32 group = blockIdx.x * THREADS + threadIdx.x;
    if (group < groups) table[places[leaders[group]]] = group;
}

// ids[row] = its group; `ids` may be `places`.
extern "C" __global__ void __launch_bounds__(THREADS)
    group_ids(const u64* table, const u32* places, u32 rows, u32* ids) {
    u32 row = blockIdx.x * THREADS + threadIdx.x;
    if (row < rows) ids[row] = static_cast<u32>(table[places[row]]);
}
