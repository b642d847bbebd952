// One order for all values that fit into 64 bits: unsigned keys that compare as the values do.
//
// Floats take the total order of IEEE 754 (NaN above infinity), with -0 made +0 first, which is how
// DataFusion compares and groups them. `total_key` tells -0 from +0, as its MIN and MAX do.
#pragma once

#include "types.cuh"

constexpr u64 SIGN = 1ull << 63;

__device__ inline u64 order_key(i64 value) { return static_cast<u64>(value) ^ SIGN; }

__device__ inline u64 total_key(double value) {
    u64 bits = static_cast<u64>(__double_as_longlong(value));
    return bits & SIGN ? ~bits : bits | SIGN;
}

__device__ inline u64 total_key(float value) {
    u32 bits = static_cast<u32>(__float_as_int(value));
    return bits & 0x80000000u ? static_cast<u32>(~bits) : bits | 0x80000000u;
}

__device__ inline u64 order_key(double value) { return total_key(value == 0.0 ? 0.0 : value); }

__device__ inline u64 order_key(float value) { return total_key(value == 0.0f ? 0.0f : value); }

__device__ inline i64 i64_of_key(u64 key) { return static_cast<i64>(key ^ SIGN); }

__device__ inline double f64_of_key(u64 key) {
    return __longlong_as_double(static_cast<i64>(key & SIGN ? key ^ SIGN : ~key));
}

__device__ inline float f32_of_key(u64 key) {
    u32 bits = static_cast<u32>(key);
    return __int_as_float(static_cast<i32>(bits & 0x80000000u ? bits ^ 0x80000000u : ~bits));
}
