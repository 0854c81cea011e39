#include "tests/unit/cache/allocations.hpp"

#include <cstdlib>
#include <new>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ATTUNE_THREAD_SANITIZER
#endif
#endif

namespace {
thread_local long allocations = 0;
}  // namespace

#ifdef ATTUNE_THREAD_SANITIZER
// The sanitizer's own operator new cannot be replaced: it calls this instead.
extern "C" void __sanitizer_malloc_hook(const volatile void*, std::size_t) { ++allocations; }
#else
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace attune::cache_testing {

long allocations_of_this_thread() { return allocations; }

}  // namespace attune::cache_testing
