// The interval programs of a mask: what the host runs and a kernel's head carries.
#pragma once

#include <memory>
#include <vector>

#include "generator/expr/interval_program.hpp"

namespace attune::expr {

struct MaskProgram {
  IntervalProgram program;
  std::vector<StepId> results;
};

// results: must, may. Over the box [q0, q1) x [k0, k1).
std::shared_ptr<const MaskProgram> classify_program(const Expr& mask);
// results: begin, end. Over the queries [q0, q1).
std::shared_ptr<const MaskProgram> kv_bounds_program(const Expr& mask);
// results: begin, end. Over the keys [k0, k1): queries outside have no live key among them.
std::shared_ptr<const MaskProgram> q_bounds_program(const Expr& mask);
// results: begin, end of the live keys of the one query q_idx (kQFirst): the mask is exactly
// begin <= kv_idx < end. Null when the mask is not of that kind. Never run on the host.
std::shared_ptr<const MaskProgram> row_bounds_program(const Expr& mask);

// A mask of more steps is too long to be worth analysing in a kernel: its programs know nothing.
constexpr std::size_t kMostSteps = 2000;

}  // namespace attune::expr
