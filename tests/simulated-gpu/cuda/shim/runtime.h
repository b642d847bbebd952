// How a kernel runs on the host: the types that the shim's header, the runtime and the driver share.
//
// A kernel's threads are fibers of one OS thread. A block runs until all of its threads have ended,
// then the next one begins; one kernel runs at a time in a process.
//
//   simulated_launch ── for each block, in the seed's order
//        │  fills shared memory with poison
//        ▼
//   ready: t5 t0 t3 …  ──▶ a thread runs until it waits (barrier, warp function) or ends,
//        ▲                 and switches to the next that is ready
//        └── those whose wait is over, in the seed's order
#pragma once

#include <stddef.h>

struct uint3 {
  unsigned x, y, z;
};

namespace simulated {

// A thread of the block that runs.
struct Thread {
  uint3 index;
  unsigned lane;
};

// The block that runs.
struct Block {
  uint3 index;
  uint3 size;
  uint3 grid;
  void *dynamic_shared;
};

extern Thread *current __attribute__((visibility("hidden")));
extern Block block __attribute__((visibility("hidden")));

enum class Collective : unsigned { Sync, Shuffle, Ballot, Match };

// What a warp function comes to, for one lane.
struct Collected {
  // Shuffle: the source's value. Ballot: the lanes whose value is not 0. Match: the lanes of the
  // same value.
  unsigned long long value;
  // The lanes that took part.
  unsigned lanes;
};

enum class Barrier : unsigned { Plain, Count, And, Or };

// Waits for all lanes of `mask` that have not ended.
Collected collect(Collective kind, unsigned mask, unsigned long long value, unsigned source);
// Waits for all threads of the block that have not ended; what becomes of their predicates.
int barrier(Barrier kind, int predicate);
// The lanes of the warp that have not ended.
unsigned active_lanes();
// Now and then, lets another thread of the block run.
void maybe_yield();
// Lets the other threads of the block run.
void yield();
// Ends the kernel with an error of the driver API.
[[noreturn]] void fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

// An argument of a kernel.
struct Argument {
  unsigned size;
  unsigned alignment;
  unsigned pointer;
};

// A kernel as the driver finds it.
struct Kernel {
  const char *name;
  void (*run)(void **arguments);
  const Argument *arguments;
  unsigned argument_count;
};

// The kernels of a source file, and where their shared memory is.
struct Module {
  const char *name;
  const Kernel *kernels;
  unsigned kernel_count;
  char *shared_start;
  char *shared_end;
};

}  // namespace simulated
