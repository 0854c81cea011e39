// Typed trees -> the functions of a kernel's head, as text that NVRTC, Clang and any C++ compiler
// read. Only what the tree holds reaches the text: numbers, slots and operators, never a user's
// name.
#pragma once

#include <string>

#include "generator/expr/ast.hpp"

namespace attune::expr {

struct HeadExpressions {
  Expr mask;   // null: every key is live
  Expr score;  // null: the identity
  Expr sink;   // null: none
  // Of a mask by runs (generator/expr/runs.hpp): it is `by_runs` where `runs_are_told`, and tensors
  // of `run_slots` ascend there. Null: none.
  Expr runs_are_told, by_runs;
  std::vector<int> run_slots;
  // Of the raw product, for score_core(); 1 where only the launch knows it.
  float softmax_scale = 1;
  // Of floats, each by itself: for what several kernels are to agree on to the bit.
  bool rounds_products = false;
};

// The templates that the functions need beside those of every head, as lines of `#include`.
// Thread-safe.
std::string support_includes(const HeadExpressions& expressions, const Environment& environment);

// Definitions of mask, score, score_core, sink, classify_tile and kv_bounds, as
// templates/kernels/head.cuh shows them, for the inside of namespace att and behind struct Context.
// Ends in a newline. Thread-safe.
std::string emit_functions(const HeadExpressions& expressions, const Environment& environment);

}  // namespace attune::expr
