// Typed tree -> interval program. Internal to the mask compiler (docs/mask_compiler.md).
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "generator/expr/ast.hpp"
#include "generator/expr/interval_program.hpp"

namespace attune::expr {

// Inclusive ends of an int32 expression over the box.
struct IntBounds {
  StepId lo, hi;
};
// The same of a float32 one; NaN at either end: anything, NaN included.
struct RealBounds {
  StepId lo, hi;
};
// A bool over the box: true everywhere; true somewhere, for all that is known. must implies may.
struct Truth {
  StepId must, may;
};

// q * q_idx + kv * kv_idx + rest + the multiples of `terms`, in unbounded integers, equal to an
// int32 expression wherever all `guards` hold (none: everywhere).
struct Affine {
  StepId q, kv, rest;  // uniform over the box
  std::vector<std::pair<std::int64_t, Expr>> terms;
  std::vector<StepId> guards;
};

// The parts of the tree that are equal at every point of the box are computed as they stand.
class Lowering {
 public:
  // With `q_is_point` the box has one query, so whatever does not depend on kv_idx is uniform.
  explicit Lowering(IntervalProgram& program, bool q_is_point = false)
      : p_(program), q_is_point_(q_is_point) {}

  // From here on the box has every position of the variable, kQIdx or kKvIdx.
  void cover_all(Variable variable);

  Truth truth(const Expr& e);
  IntBounds int_bounds(const Expr& e);
  RealBounds real_bounds(const Expr& e);

  Affine affine(const Expr& e);
  // Null when the difference has more than int64 can be sure to hold.
  std::optional<Affine> affine_difference(const Expr& a, const Expr& b);
  IntBounds affine_bounds(const Affine& a);  // int64
  // A comparison of int32 whose side is min, max, abs or `x if c else y`, as the and/or of simpler
  // ones that is true at the same points, so that what can be affine is; null when there is nothing
  // to take apart.
  Expr expand(const Expr& e);
  StepId all_of(const std::vector<StepId>& conditions);

  bool is_uniform(const Expr& e) const;
  IntBounds positions(Variable variable);  // of the box
  bool is_zero(StepId id) const { return p_.is_constant(id, 0); }
  IntervalProgram& program() { return p_; }

 private:
  Truth negated(Truth t);
  Truth both(Truth a, Truth b);
  Truth either(Truth a, Truth b);
  Truth choose(Truth condition, Truth then, Truth otherwise);
  Truth compare(const Expr& e);
  Truth compare_ints(Op op, const Expr& a, const Expr& b);
  Truth compare_reals(Op op, const Expr& a, const Expr& b);

  IntBounds int_operation(const Expr& e);
  IntBounds within_int32(IntBounds bounds, const std::vector<StepId>& guards);
  IntBounds corners(StepId (IntervalProgram::*op)(StepId, StepId), IntBounds a, IntBounds b);
  IntBounds quotient(IntBounds a, IntBounds b);
  IntBounds remainder(IntBounds a, IntBounds b);
  IntBounds magnitude(IntBounds a);
  IntBounds bits(Op op, IntBounds a, IntBounds b);
  StepId range_of_load(const Expr& e);

  RealBounds real_operation(const Expr& e);
  RealBounds wave(Op op, RealBounds a);
  RealBounds widened(RealBounds bounds, bool coarse = false);
  RealBounds real_corners(StepOp op, RealBounds a, RealBounds b);
  StepId is_ordered(RealBounds bounds);  // neither end is NaN

  std::optional<Affine> affine_operation(const Expr& e);
  bool is_small(const Affine& a) const;
  static void add_term(Affine& a, std::int64_t factor, const Expr& term);

  IntervalProgram& p_;
  bool q_is_point_;
  bool all_queries_ = false, all_keys_ = false;
  // min(a, b) < max(c, d) becomes four comparisons: a bound on what nesting can make of that.
  int expansions_left_ = 256;
  std::vector<std::pair<Expr, IntBounds>> int_known_;
  std::vector<std::pair<Expr, RealBounds>> real_known_;
  std::vector<std::pair<Expr, Truth>> truth_known_;
};

bool depends_on(const Expr& e, Variable variable);
bool depends_on_position(const Expr& e);  // on q_idx or kv_idx
bool contains_load(const Expr& e);
bool contains_division(const Expr& e);  // of int32

}  // namespace attune::expr
