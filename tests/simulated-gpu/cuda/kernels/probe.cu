// Kernels that try what a kernel may do, and what it may not.

using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

constexpr u32 ALL = 0xffffffff;

// out[i] = a[i] + b[i]
extern "C" __global__ void add(float *__restrict__ out, const float *__restrict__ a,
                               const float *__restrict__ b, u32 n) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __ldg(a + i) + b[i];
}

// Reverses each block of 256, by shared memory.
extern "C" __global__ void __launch_bounds__(256) reverse_blocks(u32 *data) {
  __shared__ u32 tile[256];
  u32 at = blockIdx.x * 256;
  tile[threadIdx.x] = data[at + threadIdx.x];
  __syncthreads();
  data[at + threadIdx.x] = tile[255 - threadIdx.x];
}

// Inclusive prefix sums of each block, in as many words of dynamic shared memory.
extern "C" __global__ void block_prefix_sums(u64 *data) {
  extern __shared__ u64 sums[];
  u32 t = threadIdx.x;
  sums[t] = data[blockIdx.x * blockDim.x + t];
  __syncthreads();
  for (u32 step = 1; step < blockDim.x; step *= 2) {
    u64 before = t >= step ? sums[t - step] : 0;
    __syncthreads();
    sums[t] += before;
    __syncthreads();
  }
  data[blockIdx.x * blockDim.x + t] = sums[t];
}

// What warp functions give, 16 words for each thread.
extern "C" __global__ void warp_functions(u32 *out) {
  u32 lane = threadIdx.x % 32, mine = threadIdx.x * 10;
  u32 *row = out + threadIdx.x * 16;
  row[0] = __shfl_sync(ALL, mine, 5);
  row[1] = __shfl_up_sync(ALL, mine, 3);
  row[2] = __shfl_down_sync(ALL, mine, 3);
  row[3] = __shfl_xor_sync(ALL, mine, 16);
  row[4] = __shfl_sync(ALL, mine, 1, 8);
  row[5] = __ballot_sync(ALL, lane % 3 == 0);
  row[6] = __any_sync(ALL, lane == 31);
  row[7] = __all_sync(ALL, lane != 31);
  row[8] = __match_any_sync(ALL, lane / 4);
  row[9] = 0;
  // Halves of a warp, each in its own time.
  if (lane < 16) {
    row[9] = __ballot_sync(0x0000ffff, lane % 2);
  } else {
    row[9] = __ballot_sync(0xffff0000, 1);
  }
  row[10] = __syncthreads_count(threadIdx.x % 2);
  row[11] = __syncthreads_and(threadIdx.x < blockDim.x);
  row[12] = __syncthreads_or(threadIdx.x == 7);
  i64 wide = __shfl_down_sync(ALL, (i64)mine << 32, 1);
  row[13] = (u32)(wide >> 32);
  // Lanes that have ended are not waited for.
  if (lane >= 30) return;
  row[14] = __ballot_sync(ALL, 1);
  __syncthreads();
  row[15] = __activemask();
}

// All threads of all blocks change the same words.
extern "C" __global__ void atomics(u32 *words, u64 *wide, float *sum, double *wide_sum) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(words + 0, i);
  atomicSub(words + 1, 1u);
  atomicMin(words + 2, i);
  atomicMax(words + 3, i);
  atomicOr(words + 4, 1u << i % 32);
  atomicAnd(words + 5, ~(1u << i % 32));
  atomicXor(words + 6, 1u);
  atomicInc(words + 7, 99u);
  for (u32 old = words[8], seen;; old = seen) {
    seen = atomicCAS(words + 8, old, old + 2);
    if (seen == old) break;
  }
  atomicAdd(wide + 0, (u64)i << 32);
  atomicMax(wide + 1, (u64)i << 32);
  atomicExch(wide + 2, 7ull);
  atomicAdd(sum, 1.0f);
  atomicAdd(wide_sum, 0.5);
}

// A lock in device memory, with one thread of a warp after the other in it.
extern "C" __global__ void locked_count(u32 *lock, volatile u32 *count) {
  for (bool done = false; !done;) {
    if (atomicCAS(lock, 0u, 1u) == 0) {
      *count = *count + 1;
      __threadfence();
      atomicExch(lock, 0u);
      done = true;
    }
  }
}

struct Plan {
  u64 factor;
  const u64 *terms;
  u32 count;
  unsigned char divide;
};

// An argument by value, 128-bit integers, and what has no operator.
extern "C" __global__ void arguments(u64 *out, Plan plan, double scale, unsigned char flag) {
  unsigned __int128 product = 1;
  for (u32 i = 0; i < plan.count; ++i) product = product * plan.factor + plan.terms[i];
  out[0] = (u64)product;
  out[1] = (u64)(product >> 64);
  out[2] = __umul64hi(plan.factor, plan.factor);
  out[3] = (u64)__double_as_longlong(scale);
  out[4] = (u64)__popcll(plan.factor) << 32 | (u32)__clzll((i64)plan.factor);
  out[5] = (u64)__ffs(48) << 32 | __brev(1u);
  out[6] = flag;
  double2 pair = make_double2(scale, 2.0);
  out[7] = (u64)(pair.x * pair.y) + (plan.divide ? plan.factor / plan.terms[0] : 0);
}

// Waits for a while, then writes.
extern "C" __global__ void slow_write(u32 *out, u32 value, u32 turns) {
  u32 state = value;
  for (u32 i = 0; i < turns; ++i) state = state * 1664525 + 1013904223;
  *out = state == 1 ? state : value;
}

// Writes where it is told to.
extern "C" __global__ void write_at(unsigned char *base, i64 offset) { base[offset] = 1; }

// Reads where it is told to, in shared memory of 64 words.
extern "C" __global__ void read_shared_at(u32 *out, int index) {
  extern __shared__ u32 words[];
  __shared__ u32 fixed[64];
  fixed[threadIdx.x % 64] = words[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = index < 64 ? fixed[index] : words[index - 64];
}

// Half of the threads wait at a barrier for those that wait for them elsewhere.
extern "C" __global__ void wait_for_each_other(u32 *out) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    out[threadIdx.x] = __ballot_sync(ALL, 1);
  }
}

extern "C" __global__ void trap() { __trap(); }

// Wrong: no barrier between what a thread writes and what another reads.
extern "C" __global__ void without_barrier(u32 *data) {
  __shared__ u32 tile[256];
  tile[threadIdx.x] = data[threadIdx.x];
  data[threadIdx.x] = tile[255 - threadIdx.x];
}

// Wrong: shared memory is read that nobody has written.
extern "C" __global__ void unwritten_shared(u32 *out) {
  __shared__ u32 words[32];
  if (threadIdx.x < 16) words[threadIdx.x] = 0;
  __syncthreads();
  out[threadIdx.x] = words[threadIdx.x];
}

// The blocks in the order in which they run.
extern "C" __global__ void block_order(u32 *next, u32 *order) {
  order[atomicAdd(next, 1u)] = blockIdx.x;
}
