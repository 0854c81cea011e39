#include "runtime/device/workspace.hpp"

#include "runtime/support/problem_layout.hpp"

namespace attune {

ProblemShape shape_of(const att::ForwardParams& params) {
  return {.batch = params.batch,
          .heads = params.heads,
          .kv_heads = params.kv_heads,
          .q_len = params.q_len,
          .kv_len = params.kv_len};
}

RangeGeometry range_geometry(const expr::TensorDecl& tensor, const ProblemShape& shape) {
  RangeGeometry geometry;
  for (std::size_t i = 0; i < tensor.dims.size(); ++i) {
    const int size = static_cast<int>(dim_size(tensor.dims[i], shape));
    if (i + 1 < tensor.dims.size()) {
      geometry.rows *= size;
    } else {
      geometry.length = size;
    }
  }
  geometry.pairs = geometry.rows * ((geometry.length + att::kRangeBlock - 1) / att::kRangeBlock);
  geometry.bytes = (static_cast<std::size_t>(geometry.pairs) * 8 + 15) / 16 * 16;
  return geometry;
}

std::size_t workspace_bytes(const AttentionSpec& spec, const LaunchRecipe& recipe,
                            const ProblemShape& shape) {
  std::size_t bytes = recipe.needs_scheduler_counter ? kCounterBytes : 0;
  for (const int slot : recipe.range_slots) {
    const auto& tensor = spec.environment.tensors[static_cast<std::size_t>(slot)];
    bytes += range_geometry(tensor, shape).bytes;
  }
  return bytes;
}

}  // namespace attune
