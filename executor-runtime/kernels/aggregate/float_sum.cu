// Sums of floats that are the same in every run.
//
// Few groups: a tree of fixed shape. Threads add their rows in order, warps and blocks their threads
// by halves, and `sum_f64_total` the blocks; the host makes the grid by the number of rows alone.
// More groups: order can't be fixed, so additions are made exact (`accumulate.cuh`): a first pass
// for each group's largest exponent, a second that adds whole numbers of 128 bits.
//
// Bytes moved for each row: the value and 4 of the id; twice for more groups.
#include "accumulate.cuh"
#include "block.cuh"

constexpr u32 THREADS = 256;
constexpr u32 FEW = 8;

// A block's sum by halves; only thread 0 has it.
__device__ inline double block_sum(double sum, double* scratch) {
#pragma unroll
    for (u32 step = WARP / 2; step > 0; step /= 2) sum += __shfl_down_sync(ALL_LANES, sum, step);
    if (lane() == 0) scratch[warp()] = sum;
    __syncthreads();
    sum = threadIdx.x < THREADS / WARP ? scratch[threadIdx.x] : 0.0;
    if (warp() == 0) {
#pragma unroll
        for (u32 step = WARP / 2; step > 0; step /= 2) {
            sum += __shfl_down_sync(ALL_LANES, sum, step);
        }
    }
    __syncthreads();
    return sum;
}

// partials[group][block] = the block's sum.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_f64_few(Input input, double* partials) {
    __shared__ double scratch[THREADS / WARP];
    double sums[FEW];
#pragma unroll
    for (u32 group = 0; group < FEW; group++) sums[group] = 0.0;
    for_each(input, [&](u32 row, u32 mine) {
        double value = float_of(input.column, row);
#pragma unroll
        for (u32 group = 0; group < FEW; group++) {
            if (group == mine) sums[group] += value;
        }
    });
#pragma unroll
    for (u32 group = 0; group < FEW; group++) {
        if (group >= input.groups) break;
        double sum = block_sum(sums[group], scratch);
        if (threadIdx.x == 0) partials[group * gridDim.x + blockIdx.x] = sum;
    }
}

// sums[group] = its partials. One block for each group.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_f64_total(const double* partials, u32 blocks, double* sums) {
    __shared__ double scratch[THREADS / WARP];
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < blocks; i += THREADS) sum += partials[blockIdx.x * blocks + i];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// largest[group] = its largest exponent, and whether it has what isn't finite.
extern "C" __global__ void __launch_bounds__(THREADS)
    exponents_shared(Input input, u32* largest) {
    extern __shared__ u64 dynamic[];
    u32* block = reinterpret_cast<u32*>(dynamic);
    for (u32 group = threadIdx.x; group < input.groups; group += THREADS) block[group] = 0;
    __syncthreads();
    for_each(input, [&](u32 row, u32 group) {
        Exponent::merge(&block[group], Exponent::of(input.column, row));
    });
    __syncthreads();
    for (u32 group = threadIdx.x; group < input.groups; group += THREADS) {
        u32 found = block[group];
        Exponent::merge(&largest[group], found & EXPONENT_BITS);
        if (found & ~EXPONENT_BITS) Exponent::merge(&largest[group], found & ~EXPONENT_BITS);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    exponents_global(Input input, u32* largest) {
    for_each(input, [&](u32 row, u32 group) {
        Exponent::merge(&largest[group], Exponent::of(input.column, row));
    });
}

// sums[group] = its rows in fixed point, of `largest`.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_f64_shared(Input input, const u32* largest, Wide* sums) {
    extern __shared__ u64 dynamic[];
    Wide* block = reinterpret_cast<Wide*>(dynamic);
    for (u32 group = threadIdx.x; group < input.groups; group += THREADS) block[group] = Wide{0, 0};
    __syncthreads();
    for_each(input, [&](u32 row, u32 group) {
        atomic_add(&block[group], fixed_point(float_of(input.column, row), largest[group]));
    });
    __syncthreads();
    for (u32 group = threadIdx.x; group < input.groups; group += THREADS) {
        atomic_add(&sums[group], static_cast<u128>(block[group].high) << 64 | block[group].low);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sum_f64_global(Input input, const u32* largest, Wide* sums) {
    for_each(input, [&](u32 row, u32 group) {
        atomic_add(&sums[group], fixed_point(float_of(input.column, row), largest[group]));
    });
}

// out[group] = the sum as a double.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_f64_finish(const Wide* sums, const u32* largest, u32 groups, double* out) {
    u32 group = blockIdx.x * THREADS + threadIdx.x;
    if (group < groups) out[group] = double_of(sums[group], largest[group]);
}
