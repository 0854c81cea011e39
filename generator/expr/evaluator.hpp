// The meaning of an expression: fp64 for floats, wrapping int32 for integers. Oracle, property
// tests and mask pictures use it; no kernel does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generator/expr/ast.hpp"

namespace attune::expr {

// One tensor's values, row-major over `sizes`, int32 and bool widened to double exactly.
struct TensorValues {
  std::vector<std::int64_t> sizes;
  std::vector<double> values;
};

// The point at which to evaluate, and the data behind scalars and tensors.
struct Point {
  double score = 0;
  std::int32_t b = 0, h = 0, h_kv = 0, q_idx = 0, kv_idx = 0, q_len = 1, kv_len = 1;
  std::int32_t q_first = 0, kv_first = 0;  // of packed sequences, the tokens before
  std::span<const double> scalars;         // by slot; constants may hold anything
  std::span<const TensorValues> tensors;   // by slot
};

// Bools are 0 or 1. Thread-safe.
double evaluate(const Expr& expression, const Point& point);

// Where in its tensor, row-major, a look-up reads: indices are clamped into their dims.
std::int64_t look_up_offset(const Expr& look_up, const Point& point);

}  // namespace attune::expr
