// A thread's rows, worked on together: so dispatch is paid once for all of them, and their loads
// are under way at once.
//
// Row k of a thread is `first + k * THREADS`: a warp's rows lie side by side, which coalesces
// its loads and makes its ballot a word of a bitmap. Values of temporaries ("slots") are in shared
// memory, one column of a slot for each thread, so nobody waits; what is one bit for each row
// (null, true, faulted) is in registers, four bits for each slot.
#pragma once

#include "instruction.cuh"

constexpr u32 THREADS = 128;
constexpr u32 ROWS = 4;
constexpr u32 EVERY_ROW = (1u << ROWS) - 1;
constexpr u32 SLOTS = 64 / ROWS;

template <class T>
struct Lanes {
    T value[ROWS];
    u32 valid;
    // Rows whose value failed to be computed. They are not valid. A fault is a value like null:
    // it is raised only if it reaches an output, so CASE and AND keep what they guard from it.
    u32 fault;
};

struct Bits {
    u32 truth;
    u32 valid;
    u32 fault;

    __device__ u32 is_true() const { return truth & valid; }
    __device__ u32 is_false() const { return ~truth & valid; }
};

struct Frame {
    const Constant* constants;
    const u8* text;
    const Column* columns;
    u64* slots;
    u32 stride;  // of a slot's values: 8-byte words
    u32 row[ROWS];  // of the source; where there is none, another's, so that it can be loaded
    u32 present;
    u64 valid;
    u64 truth;
    u64 fault;
    Fault kind;  // of the last fault
};

__device__ inline u32 operand_index(u16 operand) { return operand & 0x3FFF; }
__device__ inline Operand operand_kind(u16 operand) { return static_cast<Operand>(operand >> 14); }

__device__ inline u32 bits_of(u64 flags, u32 slot) {
    return static_cast<u32>(flags >> (slot * ROWS)) & EVERY_ROW;
}

__device__ inline void set_bits(u64& flags, u32 slot, u32 bits) {
    flags &= ~(static_cast<u64>(EVERY_ROW) << (slot * ROWS));
    flags |= static_cast<u64>(bits & EVERY_ROW) << (slot * ROWS);
}

__device__ inline u64* slot_word(const Frame& frame, u32 slot) {
    return frame.slots + (slot * ROWS * THREADS + threadIdx.x) * frame.stride;
}

__device__ inline void unpack(const u64* word, i64& value) { value = static_cast<i64>(*word); }
__device__ inline void unpack(const u64* word, float& value) {
    value = __int_as_float(static_cast<i32>(*word));
}
__device__ inline void unpack(const u64* word, double& value) {
    value = __longlong_as_double(static_cast<i64>(*word));
}
__device__ inline void unpack(const u64* word, i128& value) {
    value = static_cast<i128>((static_cast<u128>(word[1]) << 64) | word[0]);
}
__device__ inline void unpack(const u64* word, Text& value) {
    value = Text{reinterpret_cast<const u8*>(word[0]), static_cast<i32>(word[1]), 0};
}

__device__ inline void pack(u64* word, i64 value) { *word = static_cast<u64>(value); }
__device__ inline void pack(u64* word, float value) {
    *word = static_cast<u32>(__float_as_int(value));
}
__device__ inline void pack(u64* word, double value) {
    *word = static_cast<u64>(__double_as_longlong(value));
}
__device__ inline void pack(u64* word, i128 value) {
    word[0] = static_cast<u64>(value);
    word[1] = static_cast<u64>(static_cast<u128>(value) >> 64);
}
__device__ inline void pack(u64* word, Text value) {
    word[0] = reinterpret_cast<u64>(value.bytes);
    word[1] = static_cast<u64>(value.length);
}

// The layout is looked at once for all rows. A null's value is read too, and may be anything.
template <class Stored, class T>
__device__ void read_as(const Frame& frame, const Column& column, T (&out)[ROWS]) {
#pragma unroll
    for (u32 k = 0; k < ROWS; k++) out[k] = value<Stored>(column, frame.row[k]);
}

__device__ inline void read(const Frame& frame, const Column& column, u32, i64 (&out)[ROWS]) {
    switch (column.layout) {
        case Layout::I8: return read_as<i8>(frame, column, out);
        case Layout::I16: return read_as<i16>(frame, column, out);
        case Layout::I32: return read_as<i32>(frame, column, out);
        default: return read_as<i64>(frame, column, out);
    }
}
__device__ inline void read(const Frame& frame, const Column& column, u32, float (&out)[ROWS]) {
    read_as<float>(frame, column, out);
}
__device__ inline void read(const Frame& frame, const Column& column, u32, double (&out)[ROWS]) {
    read_as<double>(frame, column, out);
}
__device__ inline void read(const Frame& frame, const Column& column, u32, i128 (&out)[ROWS]) {
    if (column.layout == Layout::I128) return read_as<i128>(frame, column, out);
    read_as<i64>(frame, column, out);
}
// But a null's key or offset would lead elsewhere.
__device__ inline void read(const Frame& frame, const Column& column, u32 valid,
                            Text (&out)[ROWS]) {
#pragma unroll
    for (u32 k = 0; k < ROWS; k++) {
        out[k] = valid >> k & 1 ? text(column, frame.row[k]) : Text{};
    }
}

__device__ inline u32 read_bits(const Frame& frame, const u32* words, u32 first) {
    u32 bits = 0;
#pragma unroll
    for (u32 k = 0; k < ROWS; k++) bits |= static_cast<u32>(bit(words, first, frame.row[k])) << k;
    return bits;
}

__device__ inline u32 validity(const Frame& frame, const Column& column) {
    u32 valid = frame.present;
    if (column.validity) valid &= read_bits(frame, column.validity, column.validity_bit);
    if (column.dictionary_validity) {
        for (u32 k = 0; k < ROWS; k++) {
            if ((valid >> k & 1) && !is_valid(column, frame.row[k])) valid &= ~(1u << k);
        }
    }
    return valid;
}

// A constant of another type than the operands', or 0.
template <class T>
__device__ T factor(const Frame& frame, u16 operand) {
    T value{};
    if (operand_kind(operand) == Operand::Constant) {
        unpack(&frame.constants[operand_index(operand)].low, value);
    }
    return value;
}

template <class T>
__device__ void constant(const Frame& frame, u32 index, T& out) {
    unpack(&frame.constants[index].low, out);
}
__device__ inline void constant(const Frame& frame, u32 index, Text& out) {
    const Constant& at = frame.constants[index];
    out = Text{frame.text + at.low, static_cast<i32>(at.high), 0};
}

template <class T>
__device__ Lanes<T> fetch(const Frame& frame, u16 operand) {
    Lanes<T> lanes;
    u32 index = operand_index(operand);
    lanes.valid = EVERY_ROW;
    lanes.fault = 0;
    switch (operand_kind(operand)) {
        case Operand::Slot: {
            lanes.valid = bits_of(frame.valid, index);
            lanes.fault = bits_of(frame.fault, index);
            const u64* word = slot_word(frame, index);
#pragma unroll
            for (u32 k = 0; k < ROWS; k++, word += THREADS * frame.stride) {
                unpack(word, lanes.value[k]);
            }
            break;
        }
        case Operand::Column: {
            const Column& column = frame.columns[index];
            lanes.valid = validity(frame, column);
            read(frame, column, lanes.valid, lanes.value);
            break;
        }
        default: {
            T same{};
            if (operand_kind(operand) == Operand::Constant) {
                constant(frame, index, same);
            } else if (index == NULL_VALUE) {
                lanes.valid = 0;
            }
#pragma unroll
            for (u32 k = 0; k < ROWS; k++) lanes.value[k] = same;
        }
    }
    return lanes;
}

__device__ inline Bits fetch_bits(const Frame& frame, u16 operand) {
    u32 index = operand_index(operand);
    switch (operand_kind(operand)) {
        case Operand::Slot:
            return Bits{bits_of(frame.truth, index), bits_of(frame.valid, index),
                        bits_of(frame.fault, index)};
        case Operand::Column: {
            const Column& column = frame.columns[index];
            const u32* words = static_cast<const u32*>(column.values);
            return Bits{read_bits(frame, words, column.values_bit), validity(frame, column), 0};
        }
        case Operand::Constant:
            return Bits{frame.constants[index].low ? EVERY_ROW : 0, EVERY_ROW, 0};
        default: return Bits{0, index == NULL_VALUE ? 0 : EVERY_ROW, 0};
    }
}

template <class T>
__device__ void store(Frame& frame, u32 slot, const Lanes<T>& lanes) {
    set_bits(frame.valid, slot, lanes.valid & ~lanes.fault);
    set_bits(frame.fault, slot, lanes.fault);
    u64* word = slot_word(frame, slot);
#pragma unroll
    for (u32 k = 0; k < ROWS; k++, word += THREADS * frame.stride) pack(word, lanes.value[k]);
}

__device__ inline void store_bits(Frame& frame, u32 slot, Bits bits) {
    set_bits(frame.valid, slot, bits.valid & ~bits.fault);
    set_bits(frame.fault, slot, bits.fault);
    set_bits(frame.truth, slot, bits.truth);
}
