#include "generator/plan/sm90a_parts.hpp"

#include "generator/plan/wgmma.hpp"

namespace attune {

TensorMapRecipe slab_map(TensorMapRecipe::Tensor tensor, int rows) {
  return {.tensor = tensor,
          .box_columns = kSlabColumns,
          .box_rows = rows,
          .swizzle_bytes = kSlabRowBytes};
}

std::string wgmma_product(const AttentionSpec& spec, std::string_view name, int columns,
                          int head_dim, bool rows_in_registers) {
  return wgmma_function({.name = name,
                         .element = wgmma_element(spec.dtype),
                         .columns = columns,
                         .steps = whole_steps(head_dim) / 16,
                         .accumulates = false,
                         .a_in_registers = rows_in_registers,
                         .transposes_b = false});
}

std::string wgmma_gradient(const AttentionSpec& spec, std::string_view name, int head_dim, int rows,
                           bool left_in_registers) {
  return wgmma_function({.name = name,
                         .element = wgmma_element(spec.dtype),
                         .columns = whole_steps(head_dim),
                         .steps = rows / 16,
                         .accumulates = true,
                         .a_in_registers = left_in_registers,
                         .transposes_b = true,
                         .transposes_a = true});
}

}  // namespace attune
