// What an aggregate adds up, and how: the same for few groups, more, and many.
#pragma once

#include "column.cuh"
#include "int128.cuh"
#include "order.cuh"

// The rows that are aggregated. `ids` is null if there is one group.
struct Input {
    Column column;
    const u32* ids;
    u32 rows;
    u32 groups;
};
static_assert(sizeof(Input) == 72, "creel_gpu::aggregate::Input");

__device__ inline u32 group_of(const Input& input, u32 row) { return input.ids ? input.ids[row] : 0; }

// Calls each(row, group) for every row that has a value; rows are dealt out over the whole grid.
template <class Each>
__device__ void for_each(const Input& input, Each each) {
    u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 at = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; at < input.rows;
         at += step) {
        u32 row = static_cast<u32>(at);
        if (is_valid(input.column, row)) each(row, group_of(input, row));
    }
}

// An aggregate: a State with an identity, `add` for one thread alone, `merge` for many at once.
// Additions commute and associate exactly, so their order never changes the result.
struct Count {
    using State = u64;
    static __device__ State identity() { return 0; }
    static __device__ State of(const Column&, u32) { return 1; }
    static __device__ void add(State& state, State value) { state += value; }
    static __device__ void merge(State* state, State value) { atomicAdd(state, value); }
};

// Integers, wrapping as DataFusion's SUM; a decimal of 64 bits too.
struct SumI64 {
    using State = u64;
    static __device__ State identity() { return 0; }
    static __device__ State of(const Column& column, u32 row) {
        return static_cast<u64>(integer(column, row));
    }
    static __device__ void add(State& state, State value) { state += value; }
    static __device__ void merge(State* state, State value) { atomicAdd(state, value); }
};

struct Wide {
    u64 low;
    u64 high;
};

// There is no atomic addition of 128 bits: two of 64, the carry seen in what the first found there.
__device__ inline void atomic_add(Wide* sum, u128 value) {
    u64 low = static_cast<u64>(value), high = static_cast<u64>(value >> 64);
    u64 before = low == 0 ? 0 : atomicAdd(&sum->low, low);
    u64 carry = before + low < before;
    if (high + carry != 0) atomicAdd(&sum->high, high + carry);
}

struct SumI128 {
    using State = Wide;
    static __device__ State identity() { return Wide{0, 0}; }
    static __device__ State of(const Column& column, u32 row) {
        i128 wide = column.layout == Layout::I128 ? value<i128>(column, row)
                                                  : static_cast<i128>(integer(column, row));
        return Wide{static_cast<u64>(wide), static_cast<u64>(static_cast<u128>(wide) >> 64)};
    }
    static __device__ void add(State& state, State value) {
        u64 low = state.low + value.low;
        state.high += value.high + (low < value.low);
        state.low = low;
    }
    static __device__ void merge(State* state, State value) {
        atomic_add(state, static_cast<u128>(value.high) << 64 | value.low);
    }
};

// All that fits into 64 bits, as keys of `order.cuh`.
__device__ inline u64 key_of(const Column& column, u32 row) {
    switch (column.layout) {
        case Layout::F32: return total_key(value<float>(column, row));
        case Layout::F64: return total_key(value<double>(column, row));
        default: return order_key(integer(column, row));
    }
}

struct Min {
    using State = u64;
    static __device__ State identity() { return ~0ull; }
    static __device__ State of(const Column& column, u32 row) { return key_of(column, row); }
    static __device__ void add(State& state, State key) { state = key < state ? key : state; }
    static __device__ void merge(State* state, State key) {
        // Most rows are no new minimum: an old value read here is only larger.
        if (key < *state) atomicMin(state, key);
    }
};

struct Max {
    using State = u64;
    static __device__ State identity() { return 0; }
    static __device__ State of(const Column& column, u32 row) { return key_of(column, row); }
    static __device__ void add(State& state, State key) { state = key > state ? key : state; }
    static __device__ void merge(State* state, State key) {
        if (key > *state) atomicMax(state, key);
    }
};

__device__ inline double float_of(const Column& column, u32 row) {
    return column.layout == Layout::F32 ? value<float>(column, row) : value<double>(column, row);
}

// A double is a whole number of 53 bits times a power of two.
struct Parts {
    u64 mantissa;
    u32 exponent;  // 1 to 2046; of the mantissa's last bit, biased
    bool negative;
};

__device__ inline Parts parts_of(double value) {
    u64 bits = static_cast<u64>(__double_as_longlong(value));
    u32 exponent = static_cast<u32>(bits >> 52) & 0x7FF;
    u64 fraction = bits & ((1ull << 52) - 1);
    bool normal = exponent != 0;
    return Parts{normal ? fraction | 1ull << 52 : fraction, normal ? exponent : 1,
                 (bits & SIGN) != 0};
}

// Sums of doubles that don't depend on the order of addition: whole numbers of 128 bits, in units
// of the largest exponent of the group less FRACTION bits. 53 + 42 + 31 bits (of 2^31 rows) and a
// sign fit, and what falls below is 2^-95 of the largest value for each row.
constexpr u32 FRACTION = 42;

// What a group's floats are, by its largest exponent in the lower bits; 0 if it has none.
constexpr u32 EXPONENT_BITS = 0x7FF;
constexpr u32 HAS_NAN = 1u << 16;
constexpr u32 HAS_INFINITY = 1u << 17;
constexpr u32 HAS_NEGATIVE_INFINITY = 1u << 18;

struct Exponent {
    using State = u32;
    static __device__ State identity() { return 0; }
    static __device__ State of(const Column& column, u32 row) {
        double value = float_of(column, row);
        if (value != value) return HAS_NAN;
        Parts parts = parts_of(value);
        if (parts.exponent != EXPONENT_BITS) return parts.exponent;
        return parts.negative ? HAS_NEGATIVE_INFINITY : HAS_INFINITY;
    }
    static __device__ void merge(State* state, State value) {
        if (value > EXPONENT_BITS) {
            if ((*state & value) == 0) atomicOr(state, value);
            return;
        }
        // The upper bits may be set meanwhile, so the swap is tried again.
        u32 seen = *state;
        while (value > (seen & EXPONENT_BITS)) {
            u32 found = atomicCAS(state, seen, (seen & ~EXPONENT_BITS) | value);
            if (found == seen) break;
            seen = found;
        }
    }
};

// The double in units of the group's exponent; 0 for what isn't finite.
__device__ inline u128 fixed_point(double value, u32 largest) {
    Parts parts = parts_of(value);
    if (parts.exponent == EXPONENT_BITS) return 0;
    u32 below = (largest & EXPONENT_BITS) - parts.exponent;
    u128 whole = static_cast<u128>(parts.mantissa) << FRACTION;
    whole = below < 128 ? whole >> below : 0;
    return parts.negative ? -whole : whole;
}

// Multiplied by two to the power of `exponent`, which may be too small for a double itself, but is
// below 1024.
__device__ inline double scaled(double value, i32 exponent) {
    if (exponent < -1000) {
        value *= __longlong_as_double(23ll << 52);  // 2^-1000
        exponent += 1000;
    }
    return value * __longlong_as_double(static_cast<i64>(exponent + 1023) << 52);
}

// The sum as a double, rounded once.
__device__ inline double double_of(Wide sum, u32 largest) {
    bool infinity = largest & HAS_INFINITY, negative = largest & HAS_NEGATIVE_INFINITY;
    if (largest & HAS_NAN || (infinity && negative)) {
        return __longlong_as_double(0x7FF8000000000000ll);
    }
    if (infinity) return __longlong_as_double(0x7FF0000000000000ll);
    if (negative) return __longlong_as_double(static_cast<i64>(0xFFF0000000000000ull));
    i128 whole = static_cast<i128>(static_cast<u128>(sum.high) << 64 | sum.low);
    return scaled(static_cast<double>(whole),
                  static_cast<i32>(largest & EXPONENT_BITS) - 1075 - static_cast<i32>(FRACTION));
}
