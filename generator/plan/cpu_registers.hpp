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

// The share of the multiply-add peak that kernels reached with it.
double product_share(const RegisterBlock& block);
// The same of products whose rows are those of a head dim, which the block's may not divide.
double product_share(const RegisterBlock& block, int head_dim);

// fp32 operations of one thread in a clock, as processors are designed: a power of two, of which
// clocks that fall under wide vectors leave three fifths at least. What was measured differs from
// process to process, and a search that is repeated must ask for the same candidates.
double flops_per_clock(const DeviceFacts& device);

// Clocks of what every item repeats for `rows` rows of `dims` elements that it walks: they are
// brought together where the layout or the dtype asks for it.
double copy_clocks(const AttentionSpec& spec, double rows, double dims);

}  // namespace attune
