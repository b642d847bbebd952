// Rows as keys of one or several columns: their hashes, and whether two are the same. Null is a
// value like others; -0 is +0, and a NaN is itself, bit for bit.
#pragma once

#include "column.cuh"
#include "order.cuh"

// Mixes all bits into all (the finaliser of MurmurHash3, by A. Appleby; public domain).
__device__ inline u64 mix(u64 bits) {
    bits ^= bits >> 33;
    bits *= 0xFF51AFD7ED558CCDull;
    bits ^= bits >> 33;
    bits *= 0xC4CEB9FE1A85EC53ull;
    return bits ^ (bits >> 33);
}

__device__ inline bool is_string(Layout layout) { return layout >= Layout::String; }

// A fixed-width value as 128 bits, alike where values are.
__device__ inline u128 fixed(const Column& column, u32 row) {
    switch (column.layout) {
        case Layout::F32: return order_key(value<float>(column, row));
        case Layout::F64: return order_key(value<double>(column, row));
        case Layout::I128: return value<u128>(column, row);
        default: return static_cast<u128>(static_cast<i128>(integer(column, row)));
    }
}

__device__ inline u64 hash_of(Text text) {
    u64 hash = static_cast<u64>(text.length);
    for (i32 i = 0; i < text.length; i += 8) {
        u64 word = 0;
        for (i32 k = 0; k < 8 && i + k < text.length; k++) {
            word |= static_cast<u64>(text.bytes[i + k]) << (8 * k);
        }
        hash = mix(hash ^ word) + 0x9E3779B97F4A7C15ull;
    }
    return hash;
}

__device__ inline u32 hash_of(const Column* keys, u32 count, u32 row) {
    u64 hash = 0;
    for (u32 i = 0; i < count; i++) {
        const Column& key = keys[i];
        u64 bits = 0x5851F42D4C957F2Dull;  // null
        if (is_valid(key, row)) {
            if (is_string(key.layout)) {
                bits = hash_of(text(key, row));
            } else {
                u128 wide = fixed(key, row);
                bits = static_cast<u64>(wide) ^ mix(static_cast<u64>(wide >> 64));
            }
        }
        hash = mix(hash ^ bits) + 0x9E3779B97F4A7C15ull;
    }
    return static_cast<u32>(hash >> 32);
}

__device__ inline bool same_keys(const Column* keys, u32 count, u32 a, u32 b) {
    for (u32 i = 0; i < count; i++) {
        const Column& key = keys[i];
        bool valid = is_valid(key, a);
        if (valid != is_valid(key, b)) return false;
        if (!valid) continue;
        if (is_string(key.layout) ? !equal(text(key, a), text(key, b))
                                  : fixed(key, a) != fixed(key, b)) {
            return false;
        }
    }
    return true;
}
