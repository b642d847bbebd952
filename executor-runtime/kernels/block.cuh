// Sums and prefix sums over a block. The block is a whole number of warps, at most 32, and all its
// threads take part.
#pragma once

#include "types.cuh"

__device__ inline u32 lane() { return threadIdx.x % WARP; }
__device__ inline u32 warp() { return threadIdx.x / WARP; }

// What lanes before this one add up to.
__device__ inline u64 warp_exclusive_sum(u64 value, u64& total) {
    u64 sum = value;
    for (u32 step = 1; step < WARP; step *= 2) {
        u64 before = __shfl_up_sync(ALL_LANES, sum, step);
        if (lane() >= step) sum += before;
    }
    total = __shfl_sync(ALL_LANES, sum, WARP - 1);
    return sum - value;
}

// What threads before this one add up to; `total` is the whole block's. `scratch` is 33 words of
// shared memory, free again when it returns.
__device__ inline u64 block_exclusive_sum(u64 value, u64& total, u64* scratch) {
    u64 of_warp;
    u64 before = warp_exclusive_sum(value, of_warp);
    u32 warps = blockDim.x / WARP;
    if (lane() == 0) scratch[warp()] = of_warp;
    __syncthreads();
    if (warp() == 0) {
        u64 of_block;
        u64 warps_before = warp_exclusive_sum(lane() < warps ? scratch[lane()] : 0, of_block);
        scratch[lane()] = warps_before;
        if (lane() == 0) scratch[WARP] = of_block;
    }
    __syncthreads();
    u64 result = scratch[warp()] + before;
    total = scratch[WARP];
    __syncthreads();
    return result;
}
