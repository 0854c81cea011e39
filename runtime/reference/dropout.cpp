#include <cmath>

#include "runtime/reference/oracle.hpp"
#include "runtime/reference/philox.hpp"

namespace attune {

// One Philox call serves the 16 elements that one thread of a matrix accumulator owns in a block of
// 16 queries x 32 keys: byte i of word w is byte 4 w + i.
bool dropped(std::uint64_t seed, std::uint64_t offset, unsigned drop_below, int heads, int b, int h,
             int q_idx, int kv_idx) {
  const auto q = static_cast<std::uint32_t>(q_idx);
  const auto k = static_cast<std::uint32_t>(kv_idx);
  const std::array<std::uint32_t, 2> key = {
      static_cast<std::uint32_t>(seed),
      static_cast<std::uint32_t>(seed >> 32) + static_cast<std::uint32_t>(offset >> 32)};
  const std::array<std::uint32_t, 4> counter = {
      (k / 32) * 4 + (k % 8) / 2, (q / 16) * 8 + q % 8,
      static_cast<std::uint32_t>(b) * static_cast<std::uint32_t>(heads) +
          static_cast<std::uint32_t>(h),
      static_cast<std::uint32_t>(offset)};
  const std::uint32_t byte = ((q % 16) / 8) * 8 + ((k % 32) / 8) * 2 + k % 2;
  const std::uint32_t word = philox4x32<7>(counter, key)[byte / 4];
  return (word >> (8 * (byte % 4)) & 0xFF) < drop_below;
}

unsigned dropout_drop_below(double probability) {
  return static_cast<unsigned>(std::lround(probability * 256));
}

}  // namespace attune
