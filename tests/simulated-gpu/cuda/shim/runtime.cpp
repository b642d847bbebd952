// The scheduler of a block's threads, and the way into and out of a kernel.

#include "runtime.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <initializer_list>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define UNSANITIZED __attribute__((no_sanitize_address))
#else
#define UNSANITIZED
#endif

#ifndef __x86_64__
#error "the fiber switch is written for x86-64 alone"
#endif

// Saves the callee-saved registers on this stack and the stack in *from, and goes on where `to` was
// left (System V ABI).
extern "C" void simulated_switch(void **from, void *to);
asm(R"(
.text
.p2align 4
.local simulated_switch
.type simulated_switch, @function
simulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simulated_switch, .-simulated_switch
)");

namespace simulated {

Thread *current;
Block block;

namespace {

constexpr unsigned MAX_THREADS = 1024;
constexpr size_t STACK = 256 << 10;
constexpr size_t PAGE = 4096;
// The most dynamic shared memory of any chip, and more.
constexpr size_t SHARED = 256 << 10;
constexpr int POISON = 0xa5;
// One atomic in so many lets another thread come first.
constexpr unsigned YIELD = 16;

enum class State : unsigned char { Unstarted, Ready, AtBarrier, AtWarp, Ended };

struct Fiber : Thread {
  unsigned number;
  State state;
  void *stack_pointer;
  char *stack;
  // What it waits with, and what it is given.
  Barrier barrier;
  int predicate;
  Collective kind;
  unsigned mask, source;
  unsigned long long value;
  Collected collected;
#ifdef __SANITIZE_ADDRESS__
  void *fake_stack;
#endif
};

Fiber fibers[MAX_THREADS];
unsigned threads, alive, at_barrier;
// Those that can go on, as a ring: none is in it twice.
unsigned short ready[MAX_THREADS];
unsigned ready_first, ready_count;
// Stacks that no fiber is on; the last one left is the first to be taken, for it is in the cache.
char *free_stacks[MAX_THREADS];
unsigned free_stack_count, stack_count;
char *shared;

const Kernel *kernel;
void **kernel_arguments;
uint64_t random_state;

void *main_stack_pointer;
sigjmp_buf escape;
pthread_t runner;
volatile sig_atomic_t running;
int failure;
char *failure_text;
size_t failure_size;
// Where the failure was.
uint3 failed_thread;

uint64_t next_random() {
  // splitmix64
  uint64_t z = random_state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

unsigned long gcd(unsigned long a, unsigned long b) { return b ? gcd(b, a % b) : a; }

// An order of 0..count, up to 2^63: number i is (first + i * step) mod count.
struct Order {
  uint64_t at, step, count;

  explicit Order(uint64_t count) : count(count) {
    at = next_random() % count;
    switch (next_random() % 4) {
      case 0:
        step = 1;
        break;
      case 1:
        step = count > 1 ? count - 1 : 1;
        break;
      default:
        do step = next_random() % count; while (gcd(step, count) != 1);
    }
  }
  uint64_t next() {
    uint64_t number = at;
    at += step;
    if (at >= count) at -= count;
    return number;
  }
};

UNSANITIZED void poison(void *start, size_t size) {
  // No function that the sanitizer has its hands on: redzones are written too.
  asm volatile("rep stosb" : "+D"(start), "+c"(size) : "a"(POISON) : "memory");
}

Fiber *self() { return static_cast<Fiber *>(current); }

void make_ready(Fiber *fiber) {
  fiber->state = State::Ready;
  ready[(ready_first + ready_count++) % MAX_THREADS] = (unsigned short)(fiber->number);
}

char *new_stack() {
  void *memory = mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) abort();
  // Deeper than a stack is a fault, not another's stack.
  mprotect(memory, PAGE, PROT_NONE);
  ++stack_count;
  return static_cast<char *>(memory);
}

void run_threads();

// Puts a fiber on a stack, such that a switch to it begins it.
UNSANITIZED void prepare(Fiber *fiber) {
  fiber->stack = free_stack_count ? free_stacks[--free_stack_count] : new_stack();
  // Tops at the same offset would meet in the same lines of the cache.
  size_t colour = (reinterpret_cast<uintptr_t>(fiber->stack) / STACK * 192) % PAGE;
  void **top = reinterpret_cast<void **>(fiber->stack + STACK - PAGE - 64 + colour / 64 * 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void *>(&run_threads);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber->stack_pointer = top;
}

#ifdef __SANITIZE_ADDRESS__
void *main_fake_stack;
const void *main_stack;
size_t main_stack_size;
// Before a switch; `save` is null where this stack is done with.
void leaving(void **save, const void *bottom, size_t size) {
  __sanitizer_start_switch_fiber(save, bottom, size);
}
void arrived(void *fake_stack) {
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
}
#endif

void switch_to_main(Fiber *from, bool for_good) {
#ifdef __SANITIZE_ADDRESS__
  leaving(for_good ? nullptr : &from->fake_stack, main_stack, main_stack_size);
#endif
  (void)for_good;
  simulated_switch(&from->stack_pointer, main_stack_pointer);
#ifdef __SANITIZE_ADDRESS__
  arrived(from->fake_stack);
#endif
}

void switch_to(Fiber *from, Fiber *to, bool for_good) {
  current = to;
  if (to == from) return;
#ifdef __SANITIZE_ADDRESS__
  leaving(for_good ? nullptr : &from->fake_stack, to->stack, STACK);
#endif
  (void)for_good;
  simulated_switch(&from->stack_pointer, to->stack_pointer);
#ifdef __SANITIZE_ADDRESS__
  arrived(from->fake_stack);
#endif
}

Fiber *take_ready() {
  if (!ready_count) return nullptr;
  Fiber *next = &fibers[ready[ready_first]];
  ready_first = (ready_first + 1) % MAX_THREADS;
  --ready_count;
  return next;
}

// The thread that runs waits: on to the next. Comes back when it has been made ready and taken.
void wait() {
  Fiber *from = self();
  Fiber *next = take_ready();
  if (!next) {
    // All wait: the main stack says so.
    switch_to_main(from, false);
    return;
  }
  if (next->state == State::Unstarted) prepare(next);
  switch_to(from, next, false);
}

void finish_barrier_if_complete() {
  if (!at_barrier || at_barrier < alive) return;
  int count = 0, waiting = int(at_barrier);
  for (unsigned i = 0; i < threads; ++i) {
    if (fibers[i].state == State::AtBarrier) count += fibers[i].predicate != 0;
  }
  at_barrier = 0;
  Order order(threads);
  for (unsigned i = 0; i < threads; ++i) {
    Fiber &fiber = fibers[order.next()];
    if (fiber.state != State::AtBarrier) continue;
    switch (fiber.barrier) {
      case Barrier::Plain:
        break;
      case Barrier::Count:
        fiber.predicate = count;
        break;
      case Barrier::And:
        fiber.predicate = count == waiting;
        break;
      case Barrier::Or:
        fiber.predicate = count != 0;
        break;
    }
    make_ready(&fiber);
  }
}

// The lanes of a warp that exist and have not ended.
unsigned lanes_alive(unsigned first) {
  unsigned lanes = 0;
  for (unsigned lane = 0; lane < 32 && first + lane < threads; ++lane) {
    if (fibers[first + lane].state != State::Ended) lanes |= 1u << lane;
  }
  return lanes;
}

void finish_group_if_complete(Fiber *of) {
  unsigned first = of->number & ~31u, mask = of->mask;
  unsigned lanes = mask & lanes_alive(first);
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    Fiber &fiber = fibers[first + lane];
    if (fiber.state != State::AtWarp || fiber.mask != mask) return;
    if (fiber.kind != of->kind) {
      current = &fiber;
      fail(719, "the lanes of mask 0x%08x call different warp functions", mask);
    }
  }
  unsigned ballot = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (lanes >> lane & 1 && fibers[first + lane].value) ballot |= 1u << lane;
  }
  Order order(32);
  for (unsigned i = 0; i < 32; ++i) {
    unsigned lane = unsigned(order.next());
    if (!(lanes >> lane & 1)) continue;
    Fiber &fiber = fibers[first + lane];
    fiber.collected.lanes = lanes;
    switch (of->kind) {
      case Collective::Sync:
        break;
      case Collective::Shuffle:
        // Of a lane that takes no part, anything may come.
        memset(&fiber.collected.value, POISON, sizeof fiber.collected.value);
        if (lanes >> (fiber.source & 31) & 1) {
          fiber.collected.value = fibers[first + (fiber.source & 31)].value;
        }
        break;
      case Collective::Ballot:
        fiber.collected.value = ballot;
        break;
      case Collective::Match:
        fiber.collected.value = 0;
        for (unsigned other = 0; other < 32; ++other) {
          if (lanes >> other & 1 && fibers[first + other].value == fiber.value) {
            fiber.collected.value |= 1u << other;
          }
        }
        break;
    }
    make_ready(&fiber);
  }
}

void end_thread(Fiber *fiber) {
  fiber->state = State::Ended;
  --alive;
  finish_barrier_if_complete();
  // Others of the warp may have waited for this lane.
  unsigned first = fiber->number & ~31u;
  for (unsigned lane = 0; lane < 32 && first + lane < threads; ++lane) {
    Fiber &other = fibers[first + lane];
    if (other.state == State::AtWarp) finish_group_if_complete(&other);
  }
}

// What runs on a stack: threads, one after the other, for as long as the next one to run is new.
void run_threads() {
#ifdef __SANITIZE_ADDRESS__
  arrived(nullptr);
#endif
  for (;;) {
    kernel->run(kernel_arguments);
    Fiber *ended = self();
    end_thread(ended);
    Fiber *next = take_ready();
    if (next && next->state == State::Unstarted) {
      next->stack = ended->stack;
      current = next;
      continue;
    }
    free_stacks[free_stack_count++] = ended->stack;
    if (next) {
      switch_to(ended, next, true);
    } else {
      switch_to_main(ended, true);
    }
    __builtin_unreachable();
  }
}

void run_block() {
  alive = threads;
  at_barrier = ready_first = ready_count = 0;
  Order order(threads);
  for (unsigned i = 0; i < threads; ++i) {
    Fiber &fiber = fibers[i];
    fiber.state = State::Unstarted;
    ready[i] = (unsigned short)(order.next());
  }
  ready_count = threads;
  Fiber *first = take_ready();
  prepare(first);
  current = first;
#ifdef __SANITIZE_ADDRESS__
  leaving(&main_fake_stack, first->stack, STACK);
#endif
  simulated_switch(&main_stack_pointer, first->stack_pointer);
#ifdef __SANITIZE_ADDRESS__
  arrived(main_fake_stack);
#endif
  if (!alive) return;
  unsigned warp = 0, example = 0;
  for (unsigned i = 0; i < threads; ++i) {
    if (fibers[i].state == State::AtWarp) ++warp;
    if (fibers[i].state != State::Ended) example = i;
  }
  current = &fibers[example];
  fail(702, "its threads wait for each other: %u at a barrier, %u in a warp function, %u have ended",
       at_barrier, warp, threads - alive);
}

struct sigaction old_actions[NSIG];

[[maybe_unused]] void on_signal(int signal, siginfo_t *info, void *context) {
  (void)context;
  if (!running || !pthread_equal(runner, pthread_self())) {
    // Not of a kernel: as if this handler weren't there; the instruction faults again.
    sigaction(signal, &old_actions[signal], nullptr);
    return;
  }
  if (signal == SIGFPE) fail(719, "integer division by zero, or of the least number by -1");
  fail(700, "it touches address %p, where there is no device memory", info->si_addr);
}

void catch_signals() {
#ifndef __SANITIZE_ADDRESS__
  // With the sanitizer it is the sanitizer that reports.
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(signal, &action, &old_actions[signal]);
#endif
}

void release_signals() {
#ifndef __SANITIZE_ADDRESS__
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(signal, &old_actions[signal], nullptr);
#endif
}

void reserve_shared() {
  // Behind it is nothing: who goes beyond the end faults.
  void *memory = mmap(nullptr, SHARED + PAGE, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) abort();
  mprotect(memory, SHARED, PROT_READ | PROT_WRITE);
  shared = static_cast<char *>(memory);
}

}  // namespace

int barrier(Barrier kind, int predicate) {
  Fiber *fiber = self();
  fiber->state = State::AtBarrier;
  fiber->barrier = kind;
  fiber->predicate = predicate;
  ++at_barrier;
  finish_barrier_if_complete();
  wait();
  return fiber->predicate;
}

Collected collect(Collective kind, unsigned mask, unsigned long long value, unsigned source) {
  Fiber *fiber = self();
  if (!(mask >> fiber->lane & 1)) {
    fail(719, "lane %u is not in the mask 0x%08x of its warp function", fiber->lane, mask);
  }
  fiber->state = State::AtWarp;
  fiber->kind = kind;
  fiber->mask = mask;
  fiber->value = value;
  fiber->source = source;
  finish_group_if_complete(fiber);
  wait();
  return fiber->collected;
}

unsigned active_lanes() { return lanes_alive(self()->number & ~31u); }

void yield() {
  if (!ready_count) return;
  make_ready(self());
  wait();
}

void maybe_yield() {
  if (ready_count && next_random() % YIELD == 0) yield();
}

void fail(int code, const char *format, ...) {
  failure = code;
  failed_thread = current->index;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(failure_text, failure_size, format, arguments);
  va_end(arguments);
  siglongjmp(escape, 1);
}

// Defined behind the sources.
extern const Module *const modules[] __attribute__((visibility("hidden")));
extern const unsigned module_count __attribute__((visibility("hidden")));

}  // namespace simulated

using namespace simulated;

#define EXPORT extern "C" __attribute__((visibility("default")))

// The modules of this library.
EXPORT const Module *const *simulated_modules(unsigned *count) {
  *count = module_count;
  return modules;
}

// Runs a kernel to its end: 0, or an error of the driver API and a text that says what happened
// where. One at a time in a process; arguments are pointers to the values.
EXPORT int simulated_launch(const Module *module, const Kernel *what, const uint3 *grid,
                            const uint3 *size, unsigned dynamic_shared, void **arguments,
                            uint64_t seed, char *text, size_t text_size) {
  if (!shared) reserve_shared();
  kernel = what;
  kernel_arguments = arguments;
  random_state = seed;
  threads = size->x * size->y * size->z;
  block.size = *size;
  block.grid = *grid;
  size_t rounded = (size_t(dynamic_shared) + 15) / 16 * 16;
  block.dynamic_shared = shared + SHARED - rounded;
  failure = 0;
  failure_text = text;
  failure_size = text_size;
  for (unsigned i = 0; i < threads; ++i) {
    Fiber &fiber = fibers[i];
    fiber.number = i;
    fiber.lane = i % 32;
    fiber.index = {i % size->x, i / size->x % size->y, i / size->x / size->y};
  }
#ifdef __SANITIZE_ADDRESS__
  pthread_attr_t attributes;
  pthread_getattr_np(pthread_self(), &attributes);
  void *bottom;
  pthread_attr_getstack(&attributes, &bottom, &main_stack_size);
  pthread_attr_destroy(&attributes);
  main_stack = bottom;
  __asan_poison_memory_region(shared, SHARED);
  __asan_unpoison_memory_region(block.dynamic_shared, dynamic_shared);
#endif
  catch_signals();
  runner = pthread_self();
  uint64_t blocks = uint64_t(grid->x) * grid->y * grid->z;
  if (!sigsetjmp(escape, 1)) {
    running = 1;
    Order order(blocks);
    for (uint64_t i = 0; i < blocks; ++i) {
      uint64_t number = order.next();
      block.index = {unsigned(number % grid->x), unsigned(number / grid->x % grid->y),
                     unsigned(number / grid->x / grid->y)};
      poison(block.dynamic_shared, rounded);
      poison(module->shared_start, size_t(module->shared_end - module->shared_start));
      run_block();
    }
    running = 0;
  } else {
    running = 0;
    // What the threads left behind stays on stacks that are not used again.
    free_stack_count = 0;
    size_t length = strlen(text);
    snprintf(text + length, text_size - length, " (block %u,%u,%u thread %u,%u,%u)", block.index.x,
             block.index.y, block.index.z, failed_thread.x, failed_thread.y, failed_thread.z);
  }
  release_signals();
  return failure;
}

// Makes accesses to a range an error, where the sanitizer looks on.
EXPORT void simulated_forbid(void *start, size_t size) {
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(start, size);
#endif
  (void)start, (void)size;
}

// Ends that.
EXPORT void simulated_allow(void *start, size_t size) {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(start, size);
#endif
  (void)start, (void)size;
}
