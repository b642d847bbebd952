// What NVRTC has built in, for g++: qualifiers, vector types, built-in variables and functions.
//
// A kernel's source is included behind this header, inside an unnamed namespace, so that no name of
// one source meets a name of another.
#pragma once

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

// Qualifiers

#ifdef SIMULATED_LIST_KERNELS
#define __global__ __simulated_kernel__
#else
#define __global__
#endif
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// One instance for the block that runs; each source has a section, which is poisoned for each block.
#define __shared__ static __attribute__((section(SIMULATED_SHARED)))

// Built-in variables

#define threadIdx (::simulated::current->index)
#define blockIdx (::simulated::block.index)
#define blockDim (::simulated::block.size)
#define gridDim (::simulated::block.grid)
#define warpSize 32

// Vector types

#define SIMULATED_VECTORS(base, type, a2, a4)                                                    \
  struct type##1 {                                                                               \
    base x;                                                                                      \
  };                                                                                             \
  struct __attribute__((aligned(a2))) type##2 {                                                  \
    base x, y;                                                                                   \
  };                                                                                             \
  SIMULATED_VECTOR3_##type(base) struct __attribute__((aligned(a4))) type##4 {                   \
    base x, y, z, w;                                                                             \
  };                                                                                             \
  inline type##1 make_##type##1(base x) { return {x}; }                                          \
  inline type##2 make_##type##2(base x, base y) { return {x, y}; }                               \
  inline type##3 make_##type##3(base x, base y, base z) { return {x, y, z}; }                    \
  inline type##4 make_##type##4(base x, base y, base z, base w) { return {x, y, z, w}; }
#define SIMULATED_VECTOR3(base, type) \
  struct type##3 {                    \
    base x, y, z;                     \
  };
#define SIMULATED_VECTOR3_char(base) SIMULATED_VECTOR3(base, char)
#define SIMULATED_VECTOR3_uchar(base) SIMULATED_VECTOR3(base, uchar)
#define SIMULATED_VECTOR3_short(base) SIMULATED_VECTOR3(base, short)
#define SIMULATED_VECTOR3_ushort(base) SIMULATED_VECTOR3(base, ushort)
#define SIMULATED_VECTOR3_int(base) SIMULATED_VECTOR3(base, int)
#define SIMULATED_VECTOR3_uint(base)  // of the built-in variables: in runtime.h
#define SIMULATED_VECTOR3_long(base) SIMULATED_VECTOR3(base, long)
#define SIMULATED_VECTOR3_ulong(base) SIMULATED_VECTOR3(base, ulong)
#define SIMULATED_VECTOR3_longlong(base) SIMULATED_VECTOR3(base, longlong)
#define SIMULATED_VECTOR3_ulonglong(base) SIMULATED_VECTOR3(base, ulonglong)
#define SIMULATED_VECTOR3_float(base) SIMULATED_VECTOR3(base, float)
#define SIMULATED_VECTOR3_double(base) SIMULATED_VECTOR3(base, double)

SIMULATED_VECTORS(signed char, char, 2, 4)
SIMULATED_VECTORS(unsigned char, uchar, 2, 4)
SIMULATED_VECTORS(short, short, 4, 8)
SIMULATED_VECTORS(unsigned short, ushort, 4, 8)
SIMULATED_VECTORS(int, int, 8, 16)
SIMULATED_VECTORS(unsigned, uint, 8, 16)
SIMULATED_VECTORS(long, long, 16, 16)
SIMULATED_VECTORS(unsigned long, ulong, 16, 16)
SIMULATED_VECTORS(long long, longlong, 16, 16)
SIMULATED_VECTORS(unsigned long long, ulonglong, 16, 16)
SIMULATED_VECTORS(float, float, 8, 16)
SIMULATED_VECTORS(double, double, 16, 16)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Block and warp

inline void __syncthreads() { simulated::barrier(simulated::Barrier::Plain, 0); }
inline int __syncthreads_count(int predicate) {
  return simulated::barrier(simulated::Barrier::Count, predicate);
}
inline int __syncthreads_and(int predicate) {
  return simulated::barrier(simulated::Barrier::And, predicate);
}
inline int __syncthreads_or(int predicate) {
  return simulated::barrier(simulated::Barrier::Or, predicate);
}

inline void __syncwarp(unsigned mask = 0xffffffff) {
  simulated::collect(simulated::Collective::Sync, mask, 0, 0);
}
inline unsigned __activemask() { return simulated::active_lanes(); }
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return unsigned(simulated::collect(simulated::Collective::Ballot, mask, predicate != 0, 0).value);
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  simulated::Collected votes =
      simulated::collect(simulated::Collective::Ballot, mask, predicate != 0, 0);
  return votes.value == votes.lanes;
}

namespace simulated {

template <typename T>
unsigned long long bits(T value) {
  static_assert(sizeof(T) <= 8, "warp functions take up to 8 bytes");
  unsigned long long result = 0;
  memcpy(&result, &value, sizeof value);
  return result;
}

template <typename T>
T of_bits(unsigned long long bits) {
  T value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename T>
T shuffle(unsigned mask, T value, unsigned source) {
  return of_bits<T>(collect(Collective::Shuffle, mask, bits(value), source).value);
}

}  // namespace simulated

template <typename T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  unsigned lane = simulated::current->lane, first = lane & ~unsigned(width - 1);
  return simulated::shuffle(mask, value, first + (unsigned(source) & unsigned(width - 1)));
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  unsigned lane = simulated::current->lane, first = lane & ~unsigned(width - 1);
  return simulated::shuffle(mask, value, lane - first < delta ? lane : lane - delta);
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  unsigned lane = simulated::current->lane, last = lane | unsigned(width - 1);
  return simulated::shuffle(mask, value, last - lane < delta ? lane : lane + delta);
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  unsigned lane = simulated::current->lane, last = lane | unsigned(width - 1);
  unsigned source = lane ^ unsigned(lanes);
  return simulated::shuffle(mask, value, source > last ? lane : source);
}
template <typename T>
inline unsigned __match_any_sync(unsigned mask, T value) {
  using namespace simulated;
  return unsigned(collect(Collective::Match, mask, bits(value), 0).value);
}
template <typename T>
inline unsigned __match_all_sync(unsigned mask, T value, int *predicate) {
  using namespace simulated;
  Collected same = collect(Collective::Match, mask, bits(value), 0);
  *predicate = same.value == same.lanes;
  return *predicate ? same.lanes : 0;
}

inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  simulated::maybe_yield();
}
inline void __threadfence_block() { __threadfence(); }
inline void __threadfence_system() { __threadfence(); }
inline void __nanosleep(unsigned) { simulated::yield(); }
[[noreturn]] inline void __trap() { simulated::fail(719, "__trap"); }
inline long long clock64() { return (long long)(__builtin_ia32_rdtsc()); }

// Atomics. Each is also a place where another thread of the block may come first.

#define SIMULATED_ATOMIC(T)                                                                 \
  inline T atomicExch(T *address, T value) {                                                \
    simulated::maybe_yield();                                                               \
    T old;                                                                                  \
    __atomic_exchange(address, &value, &old, __ATOMIC_RELAXED);                             \
    return old;                                                                             \
  }
#define SIMULATED_ATOMIC_UPDATE(T, name, expression)                                        \
  inline T name(T *address, T value) {                                                      \
    simulated::maybe_yield();                                                               \
    T old, next;                                                                            \
    __atomic_load(address, &old, __ATOMIC_RELAXED);                                         \
    do {                                                                                    \
      next = expression;                                                                    \
    } while (!__atomic_compare_exchange(address, &old, &next, false, __ATOMIC_RELAXED,      \
                                        __ATOMIC_RELAXED));                                 \
    return old;                                                                             \
  }
#define SIMULATED_ATOMIC_INTEGER(T)                                                         \
  SIMULATED_ATOMIC(T)                                                                       \
  SIMULATED_ATOMIC_UPDATE(T, atomicMin, value < old ? value : old)                          \
  SIMULATED_ATOMIC_UPDATE(T, atomicMax, value > old ? value : old)                          \
  SIMULATED_ATOMIC_UPDATE(T, atomicAnd, old &value)                                         \
  SIMULATED_ATOMIC_UPDATE(T, atomicOr, old | value)                                         \
  SIMULATED_ATOMIC_UPDATE(T, atomicXor, old ^ value)                                        \
  inline T atomicCAS(T *address, T expected, T value) {                                     \
    simulated::maybe_yield();                                                               \
    __atomic_compare_exchange(address, &expected, &value, false, __ATOMIC_RELAXED,          \
                              __ATOMIC_RELAXED);                                            \
    return expected;                                                                        \
  }

SIMULATED_ATOMIC_INTEGER(int)
SIMULATED_ATOMIC_INTEGER(unsigned)
SIMULATED_ATOMIC_INTEGER(long long)
SIMULATED_ATOMIC_INTEGER(unsigned long long)
SIMULATED_ATOMIC(float)
SIMULATED_ATOMIC_UPDATE(int, atomicAdd, int(unsigned(old) + unsigned(value)))
SIMULATED_ATOMIC_UPDATE(unsigned, atomicAdd, old + value)
SIMULATED_ATOMIC_UPDATE(unsigned long long, atomicAdd, old + value)
SIMULATED_ATOMIC_UPDATE(float, atomicAdd, old + value)
SIMULATED_ATOMIC_UPDATE(double, atomicAdd, old + value)
SIMULATED_ATOMIC_UPDATE(int, atomicSub, int(unsigned(old) - unsigned(value)))
SIMULATED_ATOMIC_UPDATE(unsigned, atomicSub, old - value)
SIMULATED_ATOMIC_UPDATE(unsigned, atomicInc, old >= value ? 0 : old + 1)
SIMULATED_ATOMIC_UPDATE(unsigned, atomicDec, old == 0 || old > value ? value : old - 1)
inline unsigned short atomicCAS(unsigned short *address, unsigned short expected,
                                unsigned short value) {
  simulated::maybe_yield();
  __atomic_compare_exchange(address, &expected, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

#define SIMULATED_SCOPES(name)                                                              \
  template <typename T>                                                                     \
  inline T name##_block(T *address, T value) {                                              \
    return name(address, value);                                                            \
  }                                                                                         \
  template <typename T>                                                                     \
  inline T name##_system(T *address, T value) {                                             \
    return name(address, value);                                                            \
  }
SIMULATED_SCOPES(atomicAdd)
SIMULATED_SCOPES(atomicExch)
SIMULATED_SCOPES(atomicMin)
SIMULATED_SCOPES(atomicMax)
SIMULATED_SCOPES(atomicAnd)
SIMULATED_SCOPES(atomicOr)
SIMULATED_SCOPES(atomicXor)

// Loads and stores with a cache hint

#define SIMULATED_LOAD(name)             \
  template <typename T>                  \
  inline T name(const T *address) {      \
    return *address;                     \
  }
#define SIMULATED_STORE(name)            \
  template <typename T>                  \
  inline void name(T *address, T value) { \
    *address = value;                    \
  }
SIMULATED_LOAD(__ldg)
SIMULATED_LOAD(__ldca)
SIMULATED_LOAD(__ldcg)
SIMULATED_LOAD(__ldcs)
SIMULATED_LOAD(__ldcv)
SIMULATED_LOAD(__ldlu)
SIMULATED_STORE(__stcg)
SIMULATED_STORE(__stcs)
SIMULATED_STORE(__stwb)
SIMULATED_STORE(__stwt)

// Integers

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)(x)) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned long long __brevll(unsigned long long x) {
  x = (x >> 1 & 0x5555555555555555) | (x & 0x5555555555555555) << 1;
  x = (x >> 2 & 0x3333333333333333) | (x & 0x3333333333333333) << 2;
  x = (x >> 4 & 0x0f0f0f0f0f0f0f0f) | (x & 0x0f0f0f0f0f0f0f0f) << 4;
  return __builtin_bswap64(x);
}
inline unsigned __brev(unsigned x) { return unsigned(__brevll(x) >> 32); }
inline int __mulhi(int a, int b) { return int((long long)(a)*b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return unsigned((unsigned long long)(a)*b >> 32);
}
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)(a)*b >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)(a)*b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((unsigned long long)(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((unsigned long long)(high) << 32 | low) >> (shift & 31));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  unsigned long long bytes = (unsigned long long)(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    unsigned code = selector >> (4 * i) & 0xf;
    unsigned byte = unsigned(bytes >> (8 * (code & 7)) & 0xff);
    if (code & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}

#define SIMULATED_MINMAX(T)                               \
  inline T min(T a, T b) { return b < a ? b : a; }        \
  inline T max(T a, T b) { return a < b ? b : a; }
SIMULATED_MINMAX(int)
SIMULATED_MINMAX(unsigned)
SIMULATED_MINMAX(long)
SIMULATED_MINMAX(unsigned long)
SIMULATED_MINMAX(long long)
SIMULATED_MINMAX(unsigned long long)
// Of a NaN and a number, the number.
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// Floating point

template <typename To, typename From>
inline To simulated_cast(From value) {
  static_assert(sizeof(To) == sizeof(From), "a cast of bits keeps the size");
  return simulated::of_bits<To>(simulated::bits(value));
}
inline int __float_as_int(float x) { return simulated_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return simulated_cast<unsigned>(x); }
inline float __int_as_float(int x) { return simulated_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return simulated_cast<float>(x); }
inline long long __double_as_longlong(double x) { return simulated_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return simulated_cast<double>(x); }
inline int __double2hiint(double x) { return int(simulated::bits(x) >> 32); }
inline int __double2loint(double x) { return int(simulated::bits(x)); }
inline double __hiloint2double(int high, int low) {
  return simulated::of_bits<double>((unsigned long long)(unsigned(high)) << 32 | unsigned(low));
}

#define SIMULATED_ROUNDED(T, prefix, infix, fused)                          \
  inline T __##prefix##add_rn(T a, T b) { return a + b; }                   \
  inline T __##prefix##sub_rn(T a, T b) { return a - b; }                   \
  inline T __##prefix##mul_rn(T a, T b) { return a * b; }                   \
  inline T __##prefix##div_rn(T a, T b) { return a / b; }                   \
  inline T __##infix##_rn(T a, T b, T c) { return fused(a, b, c); }
SIMULATED_ROUNDED(double, d, fma, ::fma)
SIMULATED_ROUNDED(float, f, fmaf, ::fmaf)
