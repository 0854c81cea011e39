#include "runtime/engine/kernel_table.hpp"

namespace attune {

// The spec's words are a hash already; sizes are packed, as far as they fit, and mixed in by a
// multiply and a shift (multiplicative hashing with the golden ratio, Knuth, TAOCP 3, 6.4).
std::uint64_t hash(const KernelKey& key) noexcept {
  const auto word = [](std::int64_t size) { return static_cast<std::uint64_t>(size); };
  const ProblemShape& shape = key.shape;
  std::uint64_t h =
      key.spec.high ^ key.spec.low ^
      (static_cast<std::uint64_t>(key.pass) << 8 | static_cast<std::uint64_t>(key.grain));
  for (const std::uint64_t sizes :
       {word(shape.kv_heads) << 48 ^ word(shape.heads) << 32 ^ word(shape.batch),
        word(shape.q_len) << 32 ^ word(shape.kv_len)}) {
    h = (h ^ sizes) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
  }
  return h;
}

}  // namespace attune
