#include "generator/expr/lowering.hpp"

#include <algorithm>

#include "generator/expr/arithmetic.hpp"
#include "generator/expr/build.hpp"
#include "generator/expr/static_range.hpp"

namespace attune::expr {
namespace {

Expr expanded(const Expr& e) {
  if (e->op == Op::kEqual || e->op == Op::kNotEqual || e->args[0]->type != Type::kInt32)
    return nullptr;
  for (const int side : {0, 1}) {
    const Expr& a = e->args[static_cast<std::size_t>(side)];
    const Expr& b = e->args[static_cast<std::size_t>(1 - side)];
    const auto with = [&](const Expr& x) {
      return side == 0 ? make_binary(e->op, x, b) : make_binary(e->op, b, x);
    };
    const bool from_above =  // a < b: true for max(x, y) when it is for both
        (e->op == Op::kLess || e->op == Op::kLessEqual) == (side == 0);
    switch (a->op) {
      case Op::kMin:
      case Op::kMax:
        return make_binary((a->op == Op::kMax) == from_above ? Op::kAnd : Op::kOr, with(a->args[0]),
                           with(a->args[1]));
      case Op::kAbs:
        if (may_wrap(a)) break;
        return make_binary(from_above ? Op::kAnd : Op::kOr, with(a->args[0]),
                           with(make_unary(Op::kNegate, a->args[0])));
      case Op::kSelect:
        return make_select(a->args[0], with(a->args[1]), with(a->args[2]));
      default:
        break;
    }
  }
  return nullptr;
}

}  // namespace

bool depends_on(const Expr& e, Variable variable) {
  if (e->op == Op::kVariable) return e->variable == variable;
  return std::ranges::any_of(e->args, [&](const Expr& a) { return depends_on(a, variable); });
}

bool depends_on_position(const Expr& e) {
  return depends_on(e, Variable::kQIdx) || depends_on(e, Variable::kKvIdx);
}

bool contains_load(const Expr& e) {
  return e->op == Op::kLoad || std::ranges::any_of(e->args, contains_load);
}

bool contains_division(const Expr& e) {
  return e->op == Op::kFloorDivide || e->op == Op::kModulo ||
         std::ranges::any_of(e->args, contains_division);
}

Expr Lowering::expand(const Expr& e) {
  if (expansions_left_ == 0) return nullptr;
  Expr simpler = expanded(e);
  if (simpler) --expansions_left_;
  return simpler;
}
bool Lowering::is_uniform(const Expr& e) const {
  if (depends_on(e, Variable::kKvIdx) || depends_on(e, Variable::kScore)) return false;
  return q_is_point_ || (!depends_on(e, Variable::kQIdx) && !contains_load(e));
}

void Lowering::cover_all(Variable variable) {
  (variable == Variable::kQIdx ? all_queries_ : all_keys_) = true;
}

IntBounds Lowering::positions(Variable variable) {
  const bool of_q = variable == Variable::kQIdx;
  if (of_q ? all_queries_ : all_keys_) {
    const StepId length = p_.uniform(make_variable(of_q ? Variable::kQLen : Variable::kKvLen));
    return {p_.integer(0), p_.subtract(length, p_.integer(1))};
  }
  if (of_q) return {p_.box_end(StepOp::kQFirst), p_.box_end(StepOp::kQLast)};
  return {p_.box_end(StepOp::kKvFirst), p_.box_end(StepOp::kKvLast)};
}

StepId Lowering::all_of(const std::vector<StepId>& conditions) {
  StepId all = p_.boolean(true);
  for (const StepId condition : conditions) all = p_.both(all, condition);
  return all;
}

// ---- Bools.

Truth Lowering::negated(Truth t) { return {p_.negation(t.may), p_.negation(t.must)}; }
Truth Lowering::both(Truth a, Truth b) { return {p_.both(a.must, b.must), p_.both(a.may, b.may)}; }
Truth Lowering::either(Truth a, Truth b) {
  return {p_.either(a.must, b.must), p_.either(a.may, b.may)};
}

Truth Lowering::choose(Truth condition, Truth then, Truth otherwise) {
  const Truth picked = either(both(condition, then), both(negated(condition), otherwise));
  return {p_.either(picked.must, p_.both(then.must, otherwise.must)), picked.may};
}

Truth Lowering::truth(const Expr& e) {
  for (const auto& [known, result] : truth_known_)
    if (known == e) return result;
  Truth result = {};
  if (is_uniform(e)) {
    const StepId value = p_.uniform(e);
    result = {value, value};
  } else {
    switch (e->op) {
      case Op::kNot:
        result = negated(truth(e->args[0]));
        break;
      case Op::kAnd:
        result = both(truth(e->args[0]), truth(e->args[1]));
        break;
      case Op::kOr:
        result = either(truth(e->args[0]), truth(e->args[1]));
        break;
      case Op::kSelect:
        result = choose(truth(e->args[0]), truth(e->args[1]), truth(e->args[2]));
        break;
      case Op::kLoad: {
        const StepId range = range_of_load(e), zero = p_.integer(0);
        result = {p_.less(zero, p_.range_end(StepOp::kRangeLo, range)),
                  p_.less(zero, p_.range_end(StepOp::kRangeHi, range))};
        break;
      }
      default:
        result = compare(e);
        break;
    }
  }
  truth_known_.emplace_back(e, result);
  return result;
}

Truth Lowering::compare(const Expr& e) {
  Op op = e->op;
  Expr a = e->args[0], b = e->args[1];
  if (a->type == Type::kBool) {
    const Truth x = truth(a), y = truth(b);
    const Truth same = either(both(x, y), both(negated(x), negated(y)));
    return op == Op::kEqual ? same : negated(same);
  }
  if (a->type == Type::kInt32) {
    if (const Expr simpler = expand(e)) return truth(simpler);
  }
  if (op == Op::kGreater || op == Op::kGreaterEqual) {
    std::swap(a, b);
    op = op == Op::kGreater ? Op::kLess : Op::kLessEqual;
  }
  const bool negate = op == Op::kNotEqual;
  if (negate) op = Op::kEqual;
  const Truth result = a->type == Type::kInt32 ? compare_ints(op, a, b) : compare_reals(op, a, b);
  return negate ? negated(result) : result;
}

Truth Lowering::compare_ints(Op op, const Expr& a, const Expr& b) {
  const auto shared = [&](Variable v) { return depends_on(a, v) && depends_on(b, v); };
  if (shared(Variable::kQIdx) || shared(Variable::kKvIdx)) {
    // Each side alone would count the shared variable twice; the difference counts it once.
    if (const auto difference = affine_difference(a, b)) {
      const IntBounds range = affine_bounds(*difference);
      const StepId zero = p_.integer(0);
      Truth result;
      if (op == Op::kEqual) {
        result = {p_.both(p_.equals(range.lo, zero), p_.equals(range.hi, zero)),
                  p_.both(p_.less_equal(range.lo, zero), p_.less_equal(zero, range.hi))};
      } else if (op == Op::kLess) {
        result = {p_.less(range.hi, zero), p_.less(range.lo, zero)};
      } else {
        result = {p_.less_equal(range.hi, zero), p_.less_equal(range.lo, zero)};
      }
      const StepId exact = all_of(difference->guards);
      return {p_.both(exact, result.must), p_.either(p_.negation(exact), result.may)};
    }
  }
  const IntBounds x = int_bounds(a), y = int_bounds(b);
  if (op == Op::kEqual)
    return {p_.both(p_.equals(x.lo, y.hi), p_.equals(x.hi, y.lo)),
            p_.both(p_.less_equal(x.lo, y.hi), p_.less_equal(y.lo, x.hi))};
  if (op == Op::kLess) return {p_.less(x.hi, y.lo), p_.less(x.lo, y.hi)};
  return {p_.less_equal(x.hi, y.lo), p_.less_equal(x.lo, y.hi)};
}

Truth Lowering::compare_reals(Op op, const Expr& a, const Expr& b) {
  const RealBounds x = real_bounds(a), y = real_bounds(b);
  const StepId ordered = p_.both(is_ordered(x), is_ordered(y));
  StepId always, never;
  if (op == Op::kEqual) {
    always = p_.both(p_.real_less_equal(x.hi, y.lo), p_.real_less_equal(y.hi, x.lo));
    never = p_.either(p_.real_less(x.hi, y.lo), p_.real_less(y.hi, x.lo));
  } else if (op == Op::kLess) {
    always = p_.real_less(x.hi, y.lo);
    never = p_.real_less_equal(y.hi, x.lo);
  } else {
    always = p_.real_less_equal(x.hi, y.lo);
    never = p_.real_less(y.hi, x.lo);
  }
  return {p_.both(ordered, always), p_.negation(p_.both(ordered, never))};
}

// ---- int32.

IntBounds Lowering::int_bounds(const Expr& e) {
  for (const auto& [known, result] : int_known_)
    if (known == e) return result;
  IntBounds result = {};
  if (is_uniform(e)) {
    const StepId value = p_.uniform(e);
    result = {value, value};
  } else {
    switch (e->op) {
      case Op::kVariable:
        result = positions(e->variable);
        break;
      case Op::kAdd:
      case Op::kSubtract:
      case Op::kNegate:
      case Op::kMultiply: {
        // An affine form that gave up is the expression itself as a term.
        const Affine form = affine(e);
        const bool gave_up = form.terms.size() == 1 && form.terms[0].second == e;
        result = gave_up ? int_operation(e) : within_int32(affine_bounds(form), form.guards);
        break;
      }
      default:
        result = int_operation(e);
        break;
    }
  }
  int_known_.emplace_back(e, result);
  return result;
}

// Bounds in int64 -> bounds of the int32 value: everything, should it wrap.
IntBounds Lowering::within_int32(IntBounds bounds, const std::vector<StepId>& guards) {
  std::vector<StepId> conditions = guards;
  const StepId least = p_.integer(kInt32Min), most = p_.integer(kInt32Max);
  conditions.push_back(p_.less_equal(least, bounds.lo));
  conditions.push_back(p_.less_equal(bounds.hi, most));
  const StepId fits = all_of(conditions);
  return {p_.select(fits, p_.narrow(bounds.lo), least),
          p_.select(fits, p_.narrow(bounds.hi), most)};
}

IntBounds Lowering::corners(StepId (IntervalProgram::*op)(StepId, StepId), IntBounds a,
                            IntBounds b) {
  const StepId ends[] = {(p_.*op)(a.lo, b.lo), (p_.*op)(a.lo, b.hi), (p_.*op)(a.hi, b.lo),
                         (p_.*op)(a.hi, b.hi)};
  return {p_.min(p_.min(ends[0], ends[1]), p_.min(ends[2], ends[3])),
          p_.max(p_.max(ends[0], ends[1]), p_.max(ends[2], ends[3]))};
}

IntBounds Lowering::magnitude(IntBounds a) {
  const StepId zero = p_.integer(0);
  const StepId lo = p_.max(zero, p_.max(a.lo, p_.subtract(zero, a.hi)));
  return {lo, p_.max(a.hi, p_.subtract(zero, a.lo))};
}

IntBounds Lowering::quotient(IntBounds a, IntBounds b) {
  if (b.lo == b.hi) {
    const StepId x = p_.floor_divide(a.lo, b.lo), y = p_.floor_divide(a.hi, b.lo);
    if (p_[b.lo].lo > 0) return {x, y};
    return {p_.min(x, y), p_.max(x, y)};
  }
  const IntBounds by_corners = corners(&IntervalProgram::floor_divide, a, b);
  const StepId zero = p_.integer(0);
  const StepId one_sign = p_.either(p_.less(zero, b.lo), p_.less(b.hi, zero));
  const StepId most = magnitude(a).hi;
  return {p_.select(one_sign, by_corners.lo, p_.subtract(zero, most)),
          p_.select(one_sign, by_corners.hi, most)};
}

IntBounds Lowering::remainder(IntBounds a, IntBounds b) {
  const StepId zero = p_.integer(0), one = p_.integer(1);
  const StepId lo = p_.min(p_.add(b.lo, one), zero);
  const StepId hi = p_.max(p_.subtract(b.hi, one), zero);
  if (p_[a.lo].lo >= 0 && p_[a.hi].hi < p_[b.lo].lo) return a;
  // One positive divisor: the range moves down by whole periods, unless it crosses a multiple.
  const StepId first = p_.floor_divide(a.lo, b.lo), last = p_.floor_divide(a.hi, b.lo);
  const StepId in_one_period =
      p_.both(p_.both(p_.less(zero, b.lo), p_.equals(b.lo, b.hi)), p_.equals(first, last));
  const StepId shift = p_.multiply(first, b.lo);
  return {p_.select(in_one_period, p_.narrow(p_.subtract(a.lo, shift)), lo),
          p_.select(in_one_period, p_.narrow(p_.subtract(a.hi, shift)), hi)};
}

IntBounds Lowering::int_operation(const Expr& e) {
  switch (e->op) {
    case Op::kLoad: {
      const StepId range = range_of_load(e);
      return {p_.range_end(StepOp::kRangeLo, range), p_.range_end(StepOp::kRangeHi, range)};
    }
    case Op::kSelect: {
      const Truth condition = truth(e->args[0]);
      const IntBounds then = int_bounds(e->args[1]), otherwise = int_bounds(e->args[2]);
      const StepId never = p_.negation(condition.may);
      return {p_.select(condition.must, then.lo,
                        p_.select(never, otherwise.lo, p_.min(then.lo, otherwise.lo))),
              p_.select(condition.must, then.hi,
                        p_.select(never, otherwise.hi, p_.max(then.hi, otherwise.hi)))};
    }
    case Op::kFloor: {
      const RealBounds a = real_bounds(e->args[0]);
      const StepId ordered = is_ordered(a);
      return {p_.select(ordered, p_.floor_to_int(a.lo), p_.integer(kInt32Min)),
              p_.select(ordered, p_.floor_to_int(a.hi), p_.integer(kInt32Max))};
    }
    default:
      break;
  }
  const IntBounds a = int_bounds(e->args[0]);
  if (e->op == Op::kAbs) return within_int32(magnitude(a), {});
  if (e->op == Op::kNegate) {
    const StepId zero = p_.integer(0);
    return within_int32({p_.subtract(zero, a.hi), p_.subtract(zero, a.lo)}, {});
  }
  const IntBounds b = int_bounds(e->args[1]);
  switch (e->op) {
    case Op::kAdd:
      return within_int32({p_.add(a.lo, b.lo), p_.add(a.hi, b.hi)}, {});
    case Op::kSubtract:
      return within_int32({p_.subtract(a.lo, b.hi), p_.subtract(a.hi, b.lo)}, {});
    case Op::kMultiply:
      return within_int32(corners(&IntervalProgram::multiply, a, b), {});
    case Op::kFloorDivide:
      return within_int32(quotient(a, b), {});
    case Op::kModulo:
      return remainder(a, b);
    case Op::kMin:
      return {p_.min(a.lo, b.lo), p_.min(a.hi, b.hi)};
    case Op::kMax:
      return {p_.max(a.lo, b.lo), p_.max(a.hi, b.hi)};
    default:
      return bits(e->op, a, b);
  }
}

// Of x and y: x & y lies between x + y + 1 and the larger one, x | y between the smaller one and
// x + y, with 0 in the place of whichever of them has the other sign.
IntBounds Lowering::bits(Op op, IntBounds a, IntBounds b) {
  const StepId zero = p_.integer(0), minus_one = p_.integer(-1);
  const StepId least = p_.integer(kInt32Min), most = p_.integer(kInt32Max);
  const StepId a_natural = p_.less_equal(zero, a.lo), b_natural = p_.less_equal(zero, b.lo);
  const StepId sum = p_.narrow(p_.min(most, p_.add(p_.max(a.hi, zero), p_.max(b.hi, zero))));
  switch (op) {
    case Op::kShiftLeft:
      return {least, most};
    case Op::kShiftRight:
      return {p_.min(a.lo, zero), p_.max(a.hi, minus_one)};
    case Op::kBitAnd: {
      const StepId lo = p_.max(least, p_.add(p_.min(a.lo, zero), p_.min(b.lo, zero)));
      // No more than an operand that is not negative.
      return {p_.select(p_.either(a_natural, b_natural), zero, p_.narrow(lo)),
              p_.select(a_natural, p_.select(b_natural, p_.min(a.hi, b.hi), a.hi),
                        p_.select(b_natural, b.hi, p_.max(a.hi, b.hi)))};
    }
    case Op::kBitOr:
      return {p_.min(a.lo, b.lo), sum};
    default: {  // kBitXor
      const StepId natural = p_.both(a_natural, b_natural);
      return {p_.select(natural, zero, least), p_.select(natural, sum, most)};
    }
  }
}

StepId Lowering::range_of_load(const Expr& e) {
  std::vector<StepId> box;
  bool rows_are_uniform = true;
  for (std::size_t i = 0; i < e->args.size(); ++i) {
    const IntBounds index = int_bounds(e->args[i]);
    box.push_back(index.lo);
    box.push_back(index.hi);
    if (i + 1 < e->args.size()) rows_are_uniform &= is_uniform(e->args[i]);
  }
  const bool from_blocks = rows_are_uniform && !e->args.empty() && !is_uniform(e->args.back());
  return p_.tensor_range(e->slot, e->type, from_blocks, std::move(box));
}

}  // namespace attune::expr
