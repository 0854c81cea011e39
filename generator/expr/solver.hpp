// A mask solved for one position: where can a key (or a query) be live at all? Internal to the mask
// compiler (docs/mask_compiler.md).
#pragma once

#include <optional>
#include <vector>

#include "generator/expr/lowering.hpp"

namespace attune::expr {

// Positions [begin, end) within [0, length]; none when begin >= end.
struct PositionBounds {
  StepId begin, end;
};

class Solver {
 public:
  // `unknown` is kKvIdx or kQIdx.
  Solver(Lowering& lowering, Variable unknown);

  // Outside the bounds the mask is false over the whole box of the other position.
  PositionBounds solve(const Expr& mask) { return solve(mask, true); }
  // Whether inside them it is true throughout. Known after solve().
  bool exact() const { return exact_; }

 private:
  // Ends inclusive; absent: unlimited.
  struct Range {
    std::optional<StepId> first, last;
  };

  PositionBounds solve(const Expr& e, bool wanted);
  PositionBounds comparison(const Expr& e, bool wanted);
  PositionBounds everything() const { return {zero_, length_}; }
  PositionBounds given_up();
  PositionBounds where(StepId condition);
  PositionBounds intersection(PositionBounds a, PositionBounds b);
  PositionBounds hull(PositionBounds a, PositionBounds b);
  // Positions at which the form, or the term, can lie in `target`; null: any.
  std::optional<Range> positions(const Affine& form, Range target);
  std::optional<Range> positions_of_term(const Expr& term, Range target);
  Range divided(Range target, StepId divisor);
  StepId ceil_divide(StepId a, StepId b);

  Lowering& lowering_;
  IntervalProgram& p_;
  Variable unknown_;
  StepId zero_, length_;
  std::vector<StepId> guards_;  // of the comparison at hand
  bool exact_ = true;
};

}  // namespace attune::expr
