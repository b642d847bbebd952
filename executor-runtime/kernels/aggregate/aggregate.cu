// Aggregates of groups, one of three ways as the host knows their number:
//
//   few     up to FEW: in each thread's registers, then warp, block and grid; no two threads meet
//   shared  as many as shared memory holds: atomics there, then one merge for each block
//   global  any number: atomics on the results
//
// `states` is the result, one State for each group, which the host has set to the identity (all
// bits 0; for min all 1). Null rows are left out. Whether a group had any row at all says the count.
//
// Bytes moved for each row: the value and 4 of the id read. Global adds an atomic on a state.
#include "accumulate.cuh"
#include "block.cuh"

constexpr u32 THREADS = 256;
constexpr u32 FEW = 8;

__device__ inline u64 shuffle_down(u64 value, u32 step) {
    return __shfl_down_sync(ALL_LANES, value, step);
}
__device__ inline double shuffle_down(double value, u32 step) {
    return __shfl_down_sync(ALL_LANES, value, step);
}
__device__ inline Wide shuffle_down(Wide value, u32 step) {
    return Wide{shuffle_down(value.low, step), shuffle_down(value.high, step)};
}

// The warp's states in one; only lane 0 has it.
template <class Of>
__device__ typename Of::State warp_total(typename Of::State state) {
#pragma unroll
    for (u32 step = WARP / 2; step > 0; step /= 2) Of::add(state, shuffle_down(state, step));
    return state;
}

// The block's states of a group in one; only thread 0 has it. `scratch`: a State for each warp.
template <class Of>
__device__ typename Of::State block_total(typename Of::State state, typename Of::State* scratch) {
    typename Of::State total = warp_total<Of>(state);
    if (lane() == 0) scratch[warp()] = total;
    __syncthreads();
    total = threadIdx.x < THREADS / WARP ? scratch[threadIdx.x] : Of::identity();
    if (warp() == 0) total = warp_total<Of>(total);
    __syncthreads();
    return total;
}

template <class Of>
__device__ void few(const Input& input, typename Of::State* states) {
    __shared__ typename Of::State scratch[THREADS / WARP];
    // Only indexed by what the compiler knows: so they are registers.
    typename Of::State mine[FEW];
#pragma unroll
    for (u32 group = 0; group < FEW; group++) mine[group] = Of::identity();
    for_each(input, [&](u32 row, u32 its_group) {
        typename Of::State value = Of::of(input.column, row);
#pragma unroll
        for (u32 group = 0; group < FEW; group++) {
            Of::add(mine[group], group == its_group ? value : Of::identity());
        }
    });
#pragma unroll
    for (u32 group = 0; group < FEW; group++) {
        if (group >= input.groups) break;
        typename Of::State total = block_total<Of>(mine[group], scratch);
        if (threadIdx.x == 0) Of::merge(&states[group], total);
    }
}

// Shared memory: a State for each group.
template <class Of>
__device__ void shared(const Input& input, typename Of::State* states) {
    extern __shared__ u64 dynamic[];
    typename Of::State* block = reinterpret_cast<typename Of::State*>(dynamic);
    for (u32 group = threadIdx.x; group < input.groups; group += THREADS) {
        block[group] = Of::identity();
    }
    __syncthreads();
    for_each(input, [&](u32 row, u32 group) {
        Of::merge(&block[group], Of::of(input.column, row));
    });
    __syncthreads();
    for (u32 group = threadIdx.x; group < input.groups; group += THREADS) {
        Of::merge(&states[group], block[group]);
    }
}

template <class Of>
__device__ void global(const Input& input, typename Of::State* states) {
    for_each(input, [&](u32 row, u32 group) {
        Of::merge(&states[group], Of::of(input.column, row));
    });
}

extern "C" __global__ void __launch_bounds__(THREADS) count_few(Input input, u64* states) {
    few<Count>(input, states);
}
extern "C" __global__ void __launch_bounds__(THREADS) count_shared(Input input, u64* states) {
    shared<Count>(input, states);
}
extern "C" __global__ void __launch_bounds__(THREADS) count_global(Input input, u64* states) {
    global<Count>(input, states);
}
extern "C" __global__ void __launch_bounds__(THREADS) sum_i64_few(Input input, u64* states) {
    few<SumI64>(input, states);
}
extern "C" __global__ void __launch_bounds__(THREADS) sum_i64_shared(Input input, u64* states) {
    shared<SumI64>(input, states);
}
extern "C" __global__ void __launch_bounds__(THREADS) sum_i64_global(Input input, u64* states) {
    global<SumI64>(input, states);
}
extern "C" __global__ void __launch_bounds__(THREADS) sum_i128_few(Input input, Wide* states) {
    few<SumI128>(input, states);
}
extern "C" __global__ void __launch_bounds__(THREADS) sum_i128_shared(Input input, Wide* states) {
    shared<SumI128>(input, states);
}
extern "C" __global__ void __launch_bounds__(THREADS) sum_i128_global(Input input, Wide* states) {
    global<SumI128>(input, states);
}
extern "C" __global__ void __launch_bounds__(THREADS) min_few(Input input, u64* states) {
    few<Min>(input, states);
}
extern "C" __global__ void __launch_bounds__(THREADS) min_shared(Input input, u64* states) {
    shared<Min>(input, states);
}
extern "C" __global__ void __launch_bounds__(THREADS) min_global(Input input, u64* states) {
    global<Min>(input, states);
}
extern "C" __global__ void __launch_bounds__(THREADS) max_few(Input input, u64* states) {
    few<Max>(input, states);
}
extern "C" __global__ void __launch_bounds__(THREADS) max_shared(Input input, u64* states) {
    shared<Max>(input, states);
}
extern "C" __global__ void __launch_bounds__(THREADS) max_global(Input input, u64* states) {
    global<Max>(input, states);
}
