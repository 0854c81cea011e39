#include "tests/unit/cache/allocations.hpp"

#include <cstdlib>
#include <new>

namespace {
thread_local long allocations = 0;
}  // namespace

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

namespace attune::cache_testing {

long allocations_of_this_thread() { return allocations; }

}  // namespace attune::cache_testing
