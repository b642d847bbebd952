// Exclusive prefix sums, by reduce and scan: sums of tiles, their own prefix sums by one block, and
// the tiles again with what is before them. No block waits for another.
//
// Bytes moved for each element: 4 read twice, 4 written once.
#include "block.cuh"

// Threads of a block, and elements of a tile.
constexpr u32 THREADS = 256;
constexpr u32 EACH = 8;
constexpr u32 TILE = THREADS * EACH;

__device__ inline u64 load(const u32* values, u64 count, u64 at) { return at < count ? values[at] : 0; }

// sums[tile] = the tile's sum. One block for each tile.
extern "C" __global__ void __launch_bounds__(THREADS)
    scan_reduce(const u32* values, u64 count, u64* sums) {
    __shared__ u64 scratch[WARP + 1];
    u64 first = static_cast<u64>(blockIdx.x) * TILE;
    u64 sum = 0, total;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) sum += load(values, count, first + i * THREADS + threadIdx.x);
    block_exclusive_sum(sum, total, scratch);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

// Each sum becomes that of those before it; the sum of all goes to `total`. One block.
extern "C" __global__ void __launch_bounds__(THREADS)
    scan_spine(u64* sums, u64 count, u64* total) {
    __shared__ u64 scratch[WARP + 1];
    u64 before = 0;
    for (u64 first = 0; first < count; first += THREADS) {
        u64 at = first + threadIdx.x, of_block;
        u64 sum = block_exclusive_sum(at < count ? sums[at] : 0, of_block, scratch);
        if (at < count) sums[at] = before + sum;
        before += of_block;
    }
    if (threadIdx.x == 0) *total = before;
}

// offsets[i] = the sum of values before i; `count + 1` of them. One block for each tile, and one if
// there is none. The host has seen that the total fits.
extern "C" __global__ void __launch_bounds__(THREADS)
    scan_offsets(const u32* values, u64 count, const u64* sums, const u64* total, i32* offsets) {
    __shared__ u64 scratch[WARP + 1];
    u64 before = count > 0 ? sums[blockIdx.x] : 0;
    u64 first = static_cast<u64>(blockIdx.x) * TILE;
    for (u32 i = 0; i < EACH; i++) {
        u64 at = first + i * THREADS + threadIdx.x, of_block;
        u64 sum = block_exclusive_sum(load(values, count, at), of_block, scratch);
        if (at < count) offsets[at] = static_cast<i32>(before + sum);
        before += of_block;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) offsets[count] = static_cast<i32>(*total);
}
