// What the driver needs to find and run a kernel, made of its signature.
#pragma once

#include "runtime.h"

namespace simulated {

template <size_t... I>
struct Indices {};
template <size_t N, size_t... I>
struct IndicesTo : IndicesTo<N - 1, N - 1, I...> {};
template <size_t... I>
struct IndicesTo<0, I...> {
  using Type = Indices<I...>;
};

template <typename T>
constexpr unsigned is_pointer = 0;
template <typename T>
constexpr unsigned is_pointer<T *> = 1;
template <typename T>
constexpr unsigned is_pointer<T *__restrict__> = 1;

template <typename F, F function>
struct Entry;

template <typename... A, void (*function)(A...)>
struct Entry<void (*)(A...), function> {
  // One more than there are: an array has at least one element.
  static constexpr Argument arguments[] = {
      {unsigned(sizeof(A)), unsigned(alignof(A)), is_pointer<A>}..., {0, 0, 0}};

  template <size_t... I>
  static void call([[maybe_unused]] void **values, Indices<I...>) {
    function(*static_cast<A *>(values[I])...);
  }
  static void run(void **values) { call(values, typename IndicesTo<sizeof...(A)>::Type()); }
};

template <typename F, F function, typename... A>
constexpr unsigned count(void (*)(A...)) {
  return sizeof...(A);
}

}  // namespace simulated

#define SIMULATED_KERNEL(name)                                                      \
  {                                                                                 \
    #name, &::simulated::Entry<decltype(&name), &name>::run,                        \
        ::simulated::Entry<decltype(&name), &name>::arguments,                      \
        ::simulated::count<decltype(&name), &name>(&name)                           \
  }
