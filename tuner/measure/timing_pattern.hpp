// Values for timing: a few MiB, repeated over a tensor of any size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "generator/spec/spec.hpp"
#include "runtime/device/device.hpp"

namespace attune {

// Normal ones in the dtype: more than stay in a cache close to a processor; a prime number of them,
// so that no two rows of a tensor are equal and a kernel that mixes them up is found out.
std::vector<std::byte> timing_pattern(DType dtype, std::uint64_t seed);

// Writes the pattern into memory of the device, again and again.
Status repeat_pattern(Device& device, void* to, std::size_t bytes,
                      std::span<const std::byte> pattern);

}  // namespace attune
