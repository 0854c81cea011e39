// Sizes and strides that follow from a spec and a shape.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/spec/shape.hpp"
#include "templates/params.h"

namespace attune {

// Sizes of an auxiliary tensor, one a declared dim.
inline std::vector<std::int64_t> tensor_sizes(const expr::TensorDecl& tensor,
                                              const ProblemShape& shape) {
  std::vector<std::int64_t> sizes;
  for (const expr::DimSize& dim : tensor.dims) sizes.push_back(dim_size(dim, shape));
  return sizes;
}

inline std::int64_t element_count(const std::vector<std::int64_t>& sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return count;
}

inline int tensor_element_bytes(expr::TensorType type) {
  return type == expr::TensorType::kBool ? 1 : 4;
}

// Strides, in elements, of a contiguous q, k, v or o in the spec's layout.
inline att::Strides contiguous_strides(Layout layout, std::int64_t seq, std::int64_t heads,
                                       std::int64_t dim) {
  if (layout == Layout::kBshd) return {seq * heads * dim, heads * dim, dim};
  return {seq * heads * dim, dim, seq * dim};
}

}  // namespace attune
