// Decimals: 128-bit integers whose overflow is noticed, as Arrow's `add_checked` and the like.
// Each returns false where the true result has no 128 bits; `out` is then the wrapped one.
#pragma once

#include "types.cuh"

__device__ inline bool fits_i64(i128 value) { return value == static_cast<i64>(value); }

__device__ inline u128 magnitude(i128 value) {
    return value < 0 ? -static_cast<u128>(value) : static_cast<u128>(value);
}

__device__ inline i128 smallest_i128() { return static_cast<i128>(static_cast<u128>(1) << 127); }

__device__ inline bool add_checked(i128 a, i128 b, i128& out) {
    out = static_cast<i128>(static_cast<u128>(a) + static_cast<u128>(b));
    return ((a ^ out) & (b ^ out)) >= 0;
}

__device__ inline bool sub_checked(i128 a, i128 b, i128& out) {
    out = static_cast<i128>(static_cast<u128>(a) - static_cast<u128>(b));
    return ((a ^ b) & (a ^ out)) >= 0;
}

// By halves: high × high must be zero, and the sum of the mixed products fit above 64 bits.
static OUT_OF_LINE bool product_fits(i128 a, i128 b) {
    u128 x = magnitude(a), y = magnitude(b);
    u64 x1 = static_cast<u64>(x >> 64), x0 = static_cast<u64>(x);
    u64 y1 = static_cast<u64>(y >> 64), y0 = static_cast<u64>(y);
    if (x1 != 0 && y1 != 0) return false;
    u128 mixed = static_cast<u128>(x1) * y0 + static_cast<u128>(x0) * y1;
    if (mixed >> 64) return false;
    u128 low = static_cast<u128>(x0) * y0;
    u128 product = (mixed << 64) + low;
    if (product < low) return false;
    u128 limit = static_cast<u128>(1) << 127;
    return ((a < 0) != (b < 0)) ? product <= limit : product < limit;
}

__device__ inline bool mul_checked(i128 a, i128 b, i128& out) {
    out = static_cast<i128>(static_cast<u128>(a) * static_cast<u128>(b));
    return (fits_i64(a) && fits_i64(b)) || product_fits(a, b);
}

// Towards zero. `b` is neither 0 nor, with the smallest `a`, -1.
static OUT_OF_LINE i128 quotient(i128 a, i128 b) { return a / b; }

// Divided by a positive power of ten, rounded half away from zero.
__device__ inline i128 divide_rounded(i128 value, i128 divisor) {
    i128 whole = quotient(value, divisor);
    i128 rest = value - whole * divisor;
    i128 half = divisor >> 1;
    if (value >= 0) return rest >= half ? whole + 1 : whole;
    return rest <= -half ? whole - 1 : whole;
}
