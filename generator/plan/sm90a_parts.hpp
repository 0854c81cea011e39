// What the plans of the sm90a family's kernels have in common.
#pragma once

#include <string>
#include <string_view>

#include "generator/plan/plan.hpp"

namespace attune {

// A step of a product that subtracts reads a row of halves, or rows of 16 bytes, again and again,
// and compute-sanitizer takes them for so many bytes: as much lies behind them.
constexpr int kReadAgainBytes = 2048;

// Matrices in shared memory, as TMA's 128-byte swizzle leaves them: slabs of 64 columns.
constexpr int kSlabColumns = 64;
constexpr int kSlabRowBytes = 128;
constexpr int slabs(int columns) { return (columns + kSlabColumns - 1) / kSlabColumns; }
// Boxes of a slab's columns and `rows` rows.
TensorMapRecipe slab_map(TensorMapRecipe::Tensor tensor, int rows);

// Functions of a backward kernel's head. A product of 64 rows with `columns` others over a head
// dim, the others in shared memory; and what is added to a gradient of 64 rows and `head_dim`
// columns, from `rows` rows of the other operand, the first one in registers, or as it lies in
// shared memory, transposed.
std::string wgmma_product(const AttentionSpec& spec, std::string_view name, int columns,
                          int head_dim, bool rows_in_registers = false);
std::string wgmma_gradient(const AttentionSpec& spec, std::string_view name, int head_dim, int rows,
                           bool left_in_registers = true);

}  // namespace attune
