// A column in device memory, as the host describes it (`creel_gpu::column::Column`).
//
// A bitmap is an array of 32-bit words, the lowest bit first, as Arrow's is in bytes; its first bit
// may be any, so a sliced array needs no copy. Words are read whole: the host allocates them so.
#pragma once

#include "text.cuh"
#include "types.cuh"

// How values lie in memory. A dictionary's keys are never negative: read as unsigned, they serve
// for Arrow's signed and unsigned key types.
enum class Layout : u8 {
    Bool,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
    I128,
    String,
    Dictionary8,
    Dictionary16,
    Dictionary32,
    Dictionary64,
    Text,
};

struct Column {
    // Fixed width: the values. Dictionary: the keys. String: nothing.
    const void* values;
    // Null: no row is null.
    const u32* validity;
    // String: one more than rows. Dictionary: one more than its values.
    const i32* offsets;
    const u8* bytes;
    // Null: no value of the dictionary is null.
    const u32* dictionary_validity;
    // Where in its bitmap the first row is: Bool's values, validity, dictionary's validity.
    u32 values_bit;
    u32 validity_bit;
    u32 dictionary_validity_bit;
    Layout layout;
    u8 unused[3];
};
static_assert(sizeof(Column) == 56, "creel_gpu::column::Column");

__device__ inline bool bit(const u32* words, u32 first, u32 row) {
    u32 at = first + row;
    return (words[at >> 5] >> (at & 31)) & 1;
}

template <class T>
__device__ T value(const Column& column, u32 row) {
    return static_cast<const T*>(column.values)[row];
}

__device__ inline u64 dictionary_key(const Column& column, u32 row) {
    switch (column.layout) {
        case Layout::Dictionary8: return value<u8>(column, row);
        case Layout::Dictionary16: return value<u16>(column, row);
        case Layout::Dictionary32: return value<u32>(column, row);
        default: return value<u64>(column, row);
    }
}

// Null by its row, or by the dictionary's value. A null row's key may be anything.
__device__ inline bool is_valid(const Column& column, u32 row) {
    if (column.validity && !bit(column.validity, column.validity_bit, row)) return false;
    return !column.dictionary_validity ||
           bit(column.dictionary_validity, column.dictionary_validity_bit,
               static_cast<u32>(dictionary_key(column, row)));
}

// Bool and integers; a decimal of 64 bits too.
__device__ inline i64 integer(const Column& column, u32 row) {
    switch (column.layout) {
        case Layout::Bool:
            return bit(static_cast<const u32*>(column.values), column.values_bit, row);
        case Layout::I8: return value<i8>(column, row);
        case Layout::I16: return value<i16>(column, row);
        case Layout::I32: return value<i32>(column, row);
        default: return value<i64>(column, row);
    }
}

// A valid row's only.
__device__ inline Text text(const Column& column, u32 row) {
    if (column.layout == Layout::Text) return value<Text>(column, row);
    u64 at = column.layout == Layout::String ? row : dictionary_key(column, row);
    i32 first = column.offsets[at];
    return Text{column.bytes + first, column.offsets[at + 1] - first, 0};
}
