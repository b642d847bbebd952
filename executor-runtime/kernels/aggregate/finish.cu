// From states to columns, and extremes of what doesn't fit into 64 bits.
#include "accumulate.cuh"
#include "block.cuh"

constexpr u32 THREADS = 256;
constexpr u32 NO_ROW = 0xFFFFFFFFu;

// Minima or maxima as values again. `layout` is the column's; Bool makes a bitmap.
extern "C" __global__ void __launch_bounds__(THREADS)
    extremes_finish(const u64* keys, u32 groups, u32 layout, void* out) {
    u32 group = blockIdx.x * THREADS + threadIdx.x;
    u64 key = group < groups ? keys[group] : order_key(0ll);
    if (static_cast<Layout>(layout) == Layout::Bool) {
        u32 word = __ballot_sync(ALL_LANES, i64_of_key(key) == 1);
        if (group % WARP == 0 && group < groups) static_cast<u32*>(out)[group / WARP] = word;
        return;
    }
    if (group >= groups) return;
    switch (static_cast<Layout>(layout)) {
        case Layout::I8: static_cast<i8*>(out)[group] = static_cast<i8>(i64_of_key(key)); break;
        case Layout::I16: static_cast<i16*>(out)[group] = static_cast<i16>(i64_of_key(key)); break;
        case Layout::I32: static_cast<i32*>(out)[group] = static_cast<i32>(i64_of_key(key)); break;
        case Layout::F32: static_cast<float*>(out)[group] = f32_of_key(key); break;
        case Layout::F64: static_cast<double*>(out)[group] = f64_of_key(key); break;
        default: static_cast<i64*>(out)[group] = i64_of_key(key);
    }
}

// A bitmap of the groups that had a value.
extern "C" __global__ void __launch_bounds__(THREADS)
    counts_finish(const u64* counts, u32 groups, u32* validity) {
    u32 group = blockIdx.x * THREADS + threadIdx.x;
    u32 word = __ballot_sync(ALL_LANES, group < groups && counts[group] != 0);
    if (group % WARP == 0 && group < groups) validity[group / WARP] = word;
}

// Whether row `a` is nearer to the extreme than `b`; among equals, the first is.
__device__ inline bool precedes(const Column& column, u32 a, u32 b, bool largest) {
    i32 order;
    if (column.layout == Layout::I128) {
        i128 left = value<i128>(column, a), right = value<i128>(column, b);
        order = left < right ? -1 : left > right;
    } else {
        order = compare(text(column, a), text(column, b));
    }
    if (order == 0) return a < b;
    return largest ? order > 0 : order < 0;
}

// rows[group] = the row of its least (or largest) decimal of 128 bits or string, which the host has
// set to NO_ROW.
extern "C" __global__ void __launch_bounds__(THREADS)
    extreme_rows(Input input, u32 largest, u32* rows) {
    for_each(input, [&](u32 row, u32 group) {
        u32 seen = rows[group];
        while (seen == NO_ROW || precedes(input.column, row, seen, largest != 0)) {
            u32 found = atomicCAS(&rows[group], seen, row);
            if (found == seen) break;
            seen = found;
        }
    });
}
