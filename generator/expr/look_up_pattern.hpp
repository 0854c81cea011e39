// How the element that a look-up reads depends on query and key: what decides how a gradient that
// many pairs add to is summed.
#pragma once

#include "generator/expr/ast.hpp"

namespace attune::expr {

struct LookUpPattern {
  bool varies_by_query = false, varies_by_key = false;
  // It varies by both, and is the same for (q_idx, kv_idx) and (q_idx + 1, kv_idx + 1).
  bool is_distance = false;
  // Dims from here on have indices that depend on the position.
  int first_position_dim = 0;
  // Elements that one (b, h) can reach, a block of consecutive ones, when all of those dims are
  // numbers: 1 if there are none; 0 when it is not known or more than kMostBins.
  int bins = 0;
  // Different pairs of (q_idx, kv_idx) have different elements, whatever the heads; and so have
  // different b, different h.
  bool own_by_pair = false, own_by_batch = false, own_by_head = false;
  bool is_exclusive() const { return own_by_pair && own_by_batch && own_by_head; }

  static constexpr int kMostBins = 1 << 20;
};

// Sound: what is said to be a distance is one, and what to have its own element. Thread-safe.
LookUpPattern look_up_pattern(const Expr& look_up, const Environment& environment);

}  // namespace attune::expr
