#include "generator/expr/solver.hpp"

#include <algorithm>

#include "generator/expr/arithmetic.hpp"
#include "generator/expr/build.hpp"

namespace attune::expr {
namespace {

Op opposite(Op op) {
  switch (op) {
    case Op::kEqual:
      return Op::kNotEqual;
    case Op::kNotEqual:
      return Op::kEqual;
    case Op::kLess:
      return Op::kGreaterEqual;
    case Op::kLessEqual:
      return Op::kGreater;
    case Op::kGreater:
      return Op::kLessEqual;
    default:  // kGreaterEqual
      return Op::kLess;
  }
}

}  // namespace

Solver::Solver(Lowering& lowering, Variable unknown)
    : lowering_(lowering),
      p_(lowering.program()),
      unknown_(unknown),
      zero_(p_.integer(0)),
      length_(p_.uniform(
          make_variable(unknown == Variable::kKvIdx ? Variable::kKvLen : Variable::kQLen))) {
  lowering.cover_all(unknown);
}

PositionBounds Solver::given_up() {
  exact_ = false;
  return everything();
}

PositionBounds Solver::where(StepId condition) {
  return {p_.select(condition, zero_, length_), p_.select(condition, length_, zero_)};
}

PositionBounds Solver::intersection(PositionBounds a, PositionBounds b) {
  return {p_.max(a.begin, b.begin), p_.min(a.end, b.end)};
}

PositionBounds Solver::hull(PositionBounds a, PositionBounds b) {
  // With a common end the union is a range, empty or not.
  if (a.begin == b.begin) return {a.begin, p_.max(a.end, b.end)};
  if (a.end == b.end) return {p_.min(a.begin, b.begin), a.end};
  exact_ = false;
  const auto normal = [&](PositionBounds x) {
    const StepId any = p_.less(x.begin, x.end);
    return PositionBounds{p_.select(any, x.begin, length_), p_.select(any, x.end, zero_)};
  };
  const PositionBounds x = normal(a), y = normal(b);
  return {p_.min(x.begin, y.begin), p_.max(x.end, y.end)};
}

PositionBounds Solver::solve(const Expr& e, bool wanted) {
  if (!depends_on(e, unknown_)) {
    const Truth t = lowering_.truth(e);
    return where(wanted ? t.may : p_.negation(t.must));
  }
  switch (e->op) {
    case Op::kNot:
      return solve(e->args[0], !wanted);
    case Op::kAnd:
    case Op::kOr: {
      const PositionBounds a = solve(e->args[0], wanted), b = solve(e->args[1], wanted);
      return (e->op == Op::kAnd) == wanted ? intersection(a, b) : hull(a, b);
    }
    case Op::kSelect: {
      const Expr& condition = e->args[0];
      return hull(intersection(solve(condition, true), solve(e->args[1], wanted)),
                  intersection(solve(condition, false), solve(e->args[2], wanted)));
    }
    case Op::kLoad:
      return given_up();
    default:
      return comparison(e, wanted);
  }
}

PositionBounds Solver::comparison(const Expr& e, bool wanted) {
  if (e->args[0]->type != Type::kInt32) return given_up();
  if (const Expr simpler = lowering_.expand(e)) return solve(simpler, wanted);
  const Op op = wanted ? e->op : opposite(e->op);
  if (op == Op::kNotEqual) return given_up();
  const auto difference = lowering_.affine_difference(e->args[0], e->args[1]);
  if (!difference) return given_up();
  Range target;
  if (op == Op::kEqual || op == Op::kGreaterEqual) target.first = zero_;
  if (op == Op::kEqual || op == Op::kLessEqual) target.last = zero_;
  if (op == Op::kLess) target.last = p_.integer(-1);
  if (op == Op::kGreater) target.first = p_.integer(1);
  guards_ = difference->guards;
  const auto range = positions(*difference, target);
  if (!range) return given_up();
  PositionBounds bounds = everything();
  const auto within = [&](StepId id) { return p_.narrow(p_.min(p_.max(id, zero_), length_)); };
  if (range->first) bounds.begin = within(*range->first);
  if (range->last) bounds.end = within(p_.add(*range->last, p_.integer(1)));
  if (guards_.empty()) return bounds;
  // Where the comparison may wrap, nothing is known.
  exact_ = false;
  const StepId holds = lowering_.all_of(guards_);
  return {p_.select(holds, bounds.begin, zero_), p_.select(holds, bounds.end, length_)};
}

StepId Solver::ceil_divide(StepId a, StepId b) {
  return p_.subtract(zero_, p_.floor_divide(p_.subtract(zero_, a), b));
}

// x with divisor * x in `target`; the divisor's sign is known and it is not 0.
Solver::Range Solver::divided(Range target, StepId divisor) {
  if (p_[divisor].hi < 0) {
    std::swap(target.first, target.last);
    divisor = p_.subtract(zero_, divisor);
    if (target.first) target.first = p_.subtract(zero_, *target.first);
    if (target.last) target.last = p_.subtract(zero_, *target.last);
  }
  if (target.first) target.first = ceil_divide(*target.first, divisor);
  if (target.last) target.last = p_.floor_divide(*target.last, divisor);
  return target;
}

std::optional<Solver::Range> Solver::positions(const Affine& form, Range target) {
  Affine others = form;
  StepId& coefficient = unknown_ == Variable::kKvIdx ? others.kv : others.q;
  StepId factor = coefficient;
  coefficient = zero_;
  Expr term;
  for (auto it = others.terms.begin(); it != others.terms.end();) {
    if (!depends_on(it->second, unknown_)) {
      ++it;
      continue;
    }
    // Two places the unknown stands in cannot be told apart.
    if (term || !lowering_.is_zero(factor)) return std::nullopt;
    term = it->second;
    factor = p_.integer(it->first);
    it = others.terms.erase(it);
  }
  if (p_[factor].lo <= 0 && p_[factor].hi >= 0) return std::nullopt;
  const IntBounds rest = lowering_.affine_bounds(others);
  if (rest.lo != rest.hi && !others.terms.empty()) exact_ = false;
  if (target.first) target.first = p_.subtract(*target.first, rest.hi);
  if (target.last) target.last = p_.subtract(*target.last, rest.lo);
  const Range solved = divided(target, factor);
  return term ? positions_of_term(term, solved) : solved;
}

std::optional<Solver::Range> Solver::positions_of_term(const Expr& term, Range target) {
  if (term->op != Op::kFloorDivide) return std::nullopt;
  const Expr& divisor = term->args[1];
  if (divisor->op != Op::kInt || divisor->int_value <= 0) return std::nullopt;
  // first <= x // n <= last is first * n <= x <= last * n + n - 1. The quotient is an int32, so its
  // ends may be taken into int32 first, and the products stay small.
  const auto bounded = [&](StepId id) {
    const StepId inside = p_.max(p_.min(id, p_.integer(kInt32Max)), p_.integer(kInt32Min));
    exact_ &= inside == id;
    return inside;
  };
  const StepId n = p_.integer(divisor->int_value);
  if (target.first) target.first = p_.multiply(bounded(*target.first), n);
  if (target.last)
    target.last = p_.add(p_.multiply(bounded(*target.last), n), p_.integer(divisor->int_value - 1));
  const Affine inner = lowering_.affine(term->args[0]);
  guards_.insert(guards_.end(), inner.guards.begin(), inner.guards.end());
  return positions(inner, target);
}

}  // namespace attune::expr
