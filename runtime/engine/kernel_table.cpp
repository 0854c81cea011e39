#include "runtime/engine/kernel_table.hpp"

namespace attune {

// The spec's words are a hash already; each size is mixed in by a multiply and a shift
// (multiplicative hashing with the golden ratio, Knuth, TAOCP 3, 6.4).
std::uint64_t hash(const KernelKey& key) noexcept {
  std::uint64_t h = key.spec.high ^ key.spec.low;
  for (const std::int64_t size :
       {key.shape.batch, key.shape.heads, key.shape.kv_heads, key.shape.q_len, key.shape.kv_len}) {
    h = (h ^ static_cast<std::uint64_t>(size)) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
  }
  return h;
}

}  // namespace attune
