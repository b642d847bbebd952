// The integer types, by width. NVRTC has no <stdint.h>; 64 bits are `long long`, as CUDA's atomics
// take them.
#pragma once

using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using i128 = __int128;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using u128 = unsigned __int128;

// Lanes of a warp, and the mask of them all. Every warp of every kernel is whole.
constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xFFFFFFFFu;

// For what is long and rare: called, where inlining it once for each row of a thread and each type
// would make the driver compile for many seconds.
#define OUT_OF_LINE __device__ __attribute__((noinline))
