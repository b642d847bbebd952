// Rows of a column by their indices: out[i] = in[indices[i]]. The index NO_ROW gives null.
//
// Bytes moved for each row: 4, the value read (a sector of 32 bytes if indices jump), and written.
#include "column.cuh"

constexpr u32 THREADS = 256;
constexpr u32 NO_ROW = 0xFFFFFFFFu;

// Values of any width of a power of two; `T` is only something of that size.
template <class T>
__device__ void gather(const T* values, const u32* indices, u32 count, T* out) {
    u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= count) return;
    u32 row = indices[at];
    out[at] = row == NO_ROW ? T{} : values[row];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gather_8(const u8* values, const u32* indices, u32 count, u8* out) {
    gather(values, indices, count, out);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_16(const u16* values, const u32* indices, u32 count, u16* out) {
    gather(values, indices, count, out);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_32(const u32* values, const u32* indices, u32 count, u32* out) {
    gather(values, indices, count, out);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_64(const u64* values, const u32* indices, u32 count, u64* out) {
    gather(values, indices, count, out);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_128(const u128* values, const u32* indices, u32 count, u128* out) {
    gather(values, indices, count, out);
}

// A bitmap's bits: of a Bool column, or of validity (then `words` may be null: all are valid).
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_bits(const u32* words, u32 first, const u32* indices, u32 count, u32* out) {
    u32 at = blockIdx.x * THREADS + threadIdx.x;
    u32 row = at < count ? indices[at] : NO_ROW;
    bool is_set = row != NO_ROW && (!words || bit(words, first, row));
    u32 word = __ballot_sync(ALL_LANES, is_set);
    if (at % WARP == 0 && at < count) out[at / WARP] = word;
}

// Bits of a bitmap behind those of another: `count` from bit `first` of `words` (null: all are set)
// to bit `to_first` of `out`, whose other bits stay. A thread writes one word of `out`, alone. Both
// firsts are less than 32.
extern "C" __global__ void __launch_bounds__(THREADS)
    append_bits(const u32* words, u32 first, u32 count, u32* out, u32 to_first) {
    u64 end = static_cast<u64>(to_first) + count;
    u64 at = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    u64 begin = at * WARP;
    if (begin >= end) return;
    u32 low = at == 0 ? to_first : 0;
    u32 bits = static_cast<u32>(end - begin < WARP ? end - begin : WARP) - low;
    u32 value = ALL_LANES;
    if (words) {
        u64 from = first + begin + low - to_first;
        u32 shift = from % WARP;
        value = words[from / WARP] >> shift;
        if (shift + bits > WARP) value |= words[from / WARP + 1] << (WARP - shift);
    }
    u32 mask = (ALL_LANES >> (WARP - bits)) << low;
    out[at] = mask == ALL_LANES ? value : (out[at] & ~mask) | (value << low & mask);
}

// Where a string column's rows are: what `text_lengths` and `text_bytes` make a column of.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather_texts(const Column* column, const u32* indices, u32 count, Text* out) {
    u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= count) return;
    u32 row = indices[at];
    out[at] = row != NO_ROW && is_valid(*column, row) ? text(*column, row) : Text{};
}

extern "C" __global__ void __launch_bounds__(THREADS)
    text_lengths(const Text* texts, u32 count, u32* lengths) {
    u32 at = blockIdx.x * THREADS + threadIdx.x;
    if (at < count) lengths[at] = static_cast<u32>(texts[at].length);
}

// bytes[offsets[i]..] = the i-th string. A lane copies a short one by itself; the warp together one
// that is long.
extern "C" __global__ void __launch_bounds__(THREADS)
    text_bytes(const Text* texts, u32 count, const i32* offsets, u8* bytes) {
    constexpr i32 LONG = 32;
    u32 at = blockIdx.x * THREADS + threadIdx.x;
    Text mine = at < count ? texts[at] : Text{};
    i32 to = at < count ? offsets[at] : 0;
    if (mine.length < LONG) {
        for (i32 i = 0; i < mine.length; i++) bytes[to + i] = mine.bytes[i];
    }
    u32 left = __ballot_sync(ALL_LANES, mine.length >= LONG);
    while (left) {
        u32 owner = static_cast<u32>(__ffs(static_cast<i32>(left)) - 1);
        left &= left - 1;
        i32 length = __shfl_sync(ALL_LANES, mine.length, owner);
        i32 target = __shfl_sync(ALL_LANES, to, owner);
        u64 address = __shfl_sync(ALL_LANES, reinterpret_cast<u64>(mine.bytes), owner);
        const u8* source = reinterpret_cast<const u8*>(address);
        for (i32 i = static_cast<i32>(threadIdx.x % WARP); i < length; i += WARP) {
            bytes[target + i] = source[i];
        }
    }
}
