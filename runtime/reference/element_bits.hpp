// Numbers to and from the bytes that kernels read and write.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "generator/spec/spec.hpp"

namespace attune {

// `values` must be representable in the dtype, as round_to() makes them.
std::vector<std::byte> encode(DType dtype, std::span<const double> values);
std::vector<double> decode(DType dtype, std::span<const std::byte> bytes);
// Of an auxiliary tensor; a bool is 1 or 0, whatever byte stands for it.
std::vector<double> decode(expr::TensorType type, std::span<const std::byte> bytes);

}  // namespace attune
