// The order of a matrix' elements on the host and in device memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "templates/params.h"

namespace attune {

// [batch, heads, seq, dim] on the host; on the device by strides that leave no gap.
struct Arrangement {
  std::int64_t batch = 0, heads = 0, seq = 0, dim = 0;
  att::Strides strides{};

  std::int64_t elements() const { return batch * heads * seq * dim; }
  std::vector<double> to_device(std::span<const double> host) const;
  std::vector<double> to_host(std::span<const double> device) const;
};

}  // namespace attune
