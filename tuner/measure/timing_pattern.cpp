#include "tuner/measure/timing_pattern.hpp"

#include <algorithm>

#include "runtime/reference/element_bits.hpp"
#include "runtime/reference/oracle.hpp"

namespace attune {

std::vector<std::byte> timing_pattern(DType dtype, std::uint64_t seed) {
  constexpr std::int64_t kValues = (1 << 20) - 3;
  AttentionSpec spec{.dtype = dtype, .head_dim_qk = 1, .head_dim_v = 1};
  return encode(dtype, random_problem(spec, {.q_len = kValues}, seed).q);
}

Status repeat_pattern(Device& device, void* to, std::size_t bytes,
                      std::span<const std::byte> pattern) {
  for (std::size_t at = 0; at < bytes; at += pattern.size()) {
    ATT_CHECK(device.copy_to_device(static_cast<std::byte*>(to) + at, pattern.data(),
                                    std::min(pattern.size(), bytes - at)));
  }
  return ok_status();
}

}  // namespace attune
