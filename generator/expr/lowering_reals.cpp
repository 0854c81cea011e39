// The float32 part of Lowering. NaN at either end of a range means anything.
#include <algorithm>
#include <limits>

#include "generator/expr/arithmetic.hpp"
#include "generator/expr/lowering.hpp"

namespace attune::expr {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// float32 holds every integer up to here.
constexpr std::int64_t kExactInFloat32 = std::int64_t{1} << 24;

// Whether a rounding inside of `e` may move it by more than kCoarse.
bool magnifies(const Expr& e) {
  return e->op == Op::kSin || e->op == Op::kCos || e->op == Op::kPower ||
         std::ranges::any_of(e->args, magnifies);
}

}  // namespace

StepId Lowering::is_ordered(RealBounds bounds) { return p_.real_less_equal(bounds.lo, bounds.hi); }

RealBounds Lowering::widened(RealBounds bounds, bool coarse) {
  return {p_.widen(StepOp::kWidenDown, bounds.lo, coarse),
          p_.widen(StepOp::kWidenUp, bounds.hi, coarse)};
}

RealBounds Lowering::real_bounds(const Expr& e) {
  for (const auto& [known, result] : real_known_)
    if (known == e) return result;
  RealBounds result = {};
  if (is_uniform(e) && !magnifies(e)) {
    const StepId value = p_.uniform(e);
    // A leaf is exact; anything else may be contracted differently here than in the mask itself.
    result = e->args.empty() ? RealBounds{value, value} : widened({value, value}, true);
  } else {
    result = real_operation(e);
  }
  real_known_.emplace_back(e, result);
  return result;
}

RealBounds Lowering::real_corners(StepOp op, RealBounds a, RealBounds b) {
  const StepId ends[] = {p_.real_step(op, {a.lo, b.lo}), p_.real_step(op, {a.lo, b.hi}),
                         p_.real_step(op, {a.hi, b.lo}), p_.real_step(op, {a.hi, b.hi})};
  const auto least = [&](StepOp pick) {
    return p_.real_step(
        pick, {p_.real_step(pick, {ends[0], ends[1]}), p_.real_step(pick, {ends[2], ends[3]})});
  };
  return {least(StepOp::kRealMin), least(StepOp::kRealMax)};
}

// Neither sine nor cosine is farther from its value in the middle than the middle is from an end.
RealBounds Lowering::wave(Op op, RealBounds a) {
  const StepId nan = p_.real(kNan), one = p_.real(1), minus_one = p_.real(-1);
  const StepId sum = p_.real_step(StepOp::kRealAdd, {a.lo, a.hi});
  const StepId middle = p_.real_step(StepOp::kRealMultiply, {sum, p_.real(0.5)});
  const StepId reach = p_.widen(
      StepOp::kWidenUp,
      p_.real_step(StepOp::kRealMax, {p_.real_step(StepOp::kRealSubtract, {middle, a.lo}),
                                      p_.real_step(StepOp::kRealSubtract, {a.hi, middle})}),
      false);
  const StepId at = p_.real_function(op, middle);
  const StepId lo =
      p_.real_step(StepOp::kRealMax, {minus_one, p_.real_step(StepOp::kRealSubtract, {at, reach})});
  const StepId hi =
      p_.real_step(StepOp::kRealMin, {one, p_.real_step(StepOp::kRealAdd, {at, reach})});
  const auto within = [&](double limit) {
    return p_.both(p_.real_less_equal(p_.real(-limit), a.lo),
                   p_.real_less_equal(a.hi, p_.real(limit)));
  };
  const StepId exact = within(kMostExactAngle);
  const StepId finite = within(std::numeric_limits<float>::max());
  return widened({p_.select(exact, lo, p_.select(finite, minus_one, nan)),
                  p_.select(exact, hi, p_.select(finite, one, nan))},
                 true);
}

RealBounds Lowering::real_operation(const Expr& e) {
  const StepId nan = p_.real(kNan);
  switch (e->op) {
    case Op::kLoad: {
      const StepId range = range_of_load(e);
      return {p_.range_end(StepOp::kRangeLo, range), p_.range_end(StepOp::kRangeHi, range)};
    }
    case Op::kToFloat: {
      const IntBounds a = int_bounds(e->args[0]);
      const RealBounds result = {p_.real_step(StepOp::kToReal, {a.lo}),
                                 p_.real_step(StepOp::kToReal, {a.hi})};
      const bool exact = p_[a.lo].lo >= -kExactInFloat32 && p_[a.hi].hi <= kExactInFloat32;
      return exact ? result : widened(result);
    }
    case Op::kSelect: {
      const Truth condition = truth(e->args[0]);
      const RealBounds then = real_bounds(e->args[1]), otherwise = real_bounds(e->args[2]);
      const StepId never = p_.negation(condition.may);
      const auto pick = [&](StepOp op, StepId a, StepId b) {
        return p_.select(condition.must, a, p_.select(never, b, p_.real_step(op, {a, b})));
      };
      return {pick(StepOp::kRealMin, then.lo, otherwise.lo),
              pick(StepOp::kRealMax, then.hi, otherwise.hi)};
    }
    case Op::kVariable:  // score, which no mask may use
      return {nan, nan};
    default:
      break;
  }
  const RealBounds a = real_bounds(e->args[0]);
  switch (e->op) {
    case Op::kNegate:
      return {p_.real_step(StepOp::kRealNegate, {a.hi}), p_.real_step(StepOp::kRealNegate, {a.lo})};
    case Op::kAbs: {
      const StepId zero = p_.real(0);
      const StepId low = p_.real_step(StepOp::kRealNegate, {a.lo});
      const StepId high = p_.real_step(StepOp::kRealNegate, {a.hi});
      return {p_.real_step(StepOp::kRealMax, {zero, p_.real_step(StepOp::kRealMax, {a.lo, high})}),
              p_.real_step(StepOp::kRealMax, {a.hi, low})};
    }
    case Op::kExp:
    case Op::kExp2:
    case Op::kLog:
    case Op::kLog2:
    case Op::kSqrt:
    case Op::kTanh:
    case Op::kSigmoid:
    case Op::kSoftplus:
    case Op::kErf:  // all of them grow
      return widened({p_.real_function(e->op, a.lo), p_.real_function(e->op, a.hi)}, true);
    case Op::kSin:
    case Op::kCos:
      return wave(e->op, a);
    default:
      break;
  }
  const RealBounds b = real_bounds(e->args[1]);
  switch (e->op) {
    case Op::kAdd:
      return widened({p_.real_step(StepOp::kRealAdd, {a.lo, b.lo}),
                      p_.real_step(StepOp::kRealAdd, {a.hi, b.hi})});
    case Op::kSubtract:
      return widened({p_.real_step(StepOp::kRealSubtract, {a.lo, b.hi}),
                      p_.real_step(StepOp::kRealSubtract, {a.hi, b.lo})});
    case Op::kMultiply:
      return widened(real_corners(StepOp::kRealMultiply, a, b));
    case Op::kDivide: {
      const StepId zero = p_.real(0);
      const StepId one_sign = p_.either(p_.real_less(zero, b.lo), p_.real_less(b.hi, zero));
      const RealBounds result = widened(real_corners(StepOp::kRealDivide, a, b));
      return {p_.select(one_sign, result.lo, nan), p_.select(one_sign, result.hi, nan)};
    }
    case Op::kPower: {
      // Of a base above 0, or of 0 with an exponent above 0, the ends are at the corners.
      const StepId zero = p_.real(0);
      const StepId at_corners =
          p_.either(p_.real_less(zero, a.lo),
                    p_.both(p_.real_less_equal(zero, a.lo), p_.real_less(zero, b.lo)));
      const RealBounds result = widened(real_corners(StepOp::kRealPower, a, b), true);
      return {p_.select(at_corners, result.lo, nan), p_.select(at_corners, result.hi, nan)};
    }
    case Op::kMin:
      return {p_.real_step(StepOp::kRealMin, {a.lo, b.lo}),
              p_.real_step(StepOp::kRealMin, {a.hi, b.hi})};
    default:  // kMax
      return {p_.real_step(StepOp::kRealMax, {a.lo, b.lo}),
              p_.real_step(StepOp::kRealMax, {a.hi, b.hi})};
  }
}

}  // namespace attune::expr
