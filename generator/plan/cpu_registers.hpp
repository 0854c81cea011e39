// The register block of the CPU family's products (templates/cpu/product.h), which the plans of
// both passes choose.
#pragma once

#include <vector>

#include "generator/plan/plan.hpp"

namespace attune {

struct RegisterBlock {
  int vector_bytes = 64;
  int unroll = 8;   // rows whose sums stay in registers, and
  int columns = 3;  // vectors beside each
  bool operator==(const RegisterBlock&) const = default;

  int lanes() const { return vector_bytes / 4; }
  int width() const { return columns * lanes(); }  // elements of a row
  int registers() const { return unroll * columns + columns + 1; }
};

// Those worth trying on the device, in a fixed order.
std::vector<RegisterBlock> register_blocks(const DeviceFacts& device);

// OK, or kUnsupported saying which limit of the device the block breaks.
Status check_registers(const RegisterBlock& block, const DeviceFacts& device);

// Clocks that one thread takes for products of so many fp32 operations, by what kernels reached
// with the block.
double product_clocks(const RegisterBlock& block, double flops, const DeviceFacts& device);
// The same of products whose rows are those of a head dim, which the block's may not divide.
double product_clocks(const RegisterBlock& block, double flops, const DeviceFacts& device,
                      int head_dim);

// Clocks of what every item repeats for `rows` rows of `dims` elements that it walks: they are
// brought together where the layout or the dtype asks for it.
double copy_clocks(const AttentionSpec& spec, double rows, double dims);

}  // namespace attune
