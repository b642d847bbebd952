// From a predicate's bitmap to the rows it selects: counts of tiles, `scan_spine`, rows.
//
// Bytes moved for each row: 1/8 for each bitmap, twice, and 4 for each selected row.
#include "block.cuh"

// Threads of a block; each takes a word, 32 rows.
constexpr u32 THREADS = 256;

// The word's rows where the predicate is true; rows past the end are not.
__device__ inline u32 selected(const u32* truth, const u32* validity, u32 rows, u32 word) {
    u64 first = static_cast<u64>(word) * WARP;
    if (first >= rows) return 0;
    u32 bits = truth[word];
    if (validity) bits &= validity[word];
    u64 left = rows - first;
    return left < WARP ? bits & ((1u << left) - 1) : bits;
}

// counts[tile] = rows that the tile selects. One block for each `THREADS * 32` rows.
extern "C" __global__ void __launch_bounds__(THREADS)
    filter_count(const u32* truth, const u32* validity, u32 rows, u64* counts) {
    __shared__ u64 scratch[WARP + 1];
    u32 word = blockIdx.x * THREADS + threadIdx.x;
    u64 total;
    block_exclusive_sum(__popc(selected(truth, validity, rows, word)), total, scratch);
    if (threadIdx.x == 0) counts[blockIdx.x] = total;
}

// selection[before the tile + i] = the tile's i-th selected row, in order. The same blocks.
extern "C" __global__ void __launch_bounds__(THREADS)
    filter_rows(const u32* truth, const u32* validity, u32 rows, const u64* before,
                u32* selection) {
    __shared__ u64 scratch[WARP + 1];
    u32 word = blockIdx.x * THREADS + threadIdx.x;
    u32 bits = selected(truth, validity, rows, word);
    u64 total;
    u32 at = static_cast<u32>(before[blockIdx.x] +
                              block_exclusive_sum(__popc(bits), total, scratch));
    // The warp writes word after word, so that its rows lie side by side.
    u32 first_word = word - lane();
    for (u32 i = 0; i < WARP; i++) {
        u32 its_bits = __shfl_sync(ALL_LANES, bits, i);
        u32 its_place = __shfl_sync(ALL_LANES, at, i);
        if (its_bits >> lane() & 1) {
            u32 below = its_bits & ((1u << lane()) - 1);
            selection[its_place + __popc(below)] = (first_word + i) * WARP + lane();
        }
    }
}
