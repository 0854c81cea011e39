// Random data behind random expressions: sizes, scalars, tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/expr/evaluator.hpp"
#include "generator/expr/intervals.hpp"

namespace attune::expr {

// One (batch, head) of a problem, with the tensors of random_environment().
struct World {
  int batch = 2, heads = 4, kv_heads = 2;
  int b = 0, h = 0, q_len = 1, kv_len = 1;
  std::vector<double> scalars;
  std::vector<TensorValues> tensors;

  Point point(int q_idx, int kv_idx, double score = 0) const;
  // The callback looks at every element. The world must outlive the box.
  TileBox box(int q0, int q1, int k0, int k1) const;
};

World random_world(const std::vector<std::uint32_t>& tape, int longest);

}  // namespace attune::expr
