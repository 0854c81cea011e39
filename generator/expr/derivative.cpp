#include "generator/expr/derivative.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "generator/expr/build.hpp"

namespace attune::expr {
namespace {

// coefficient * factors / divisors, or with a condition one of two arms. A coefficient of 0: flat.
// Arms are kept apart while one of them is flat, so that what the slope is multiplied by, which may
// be infinite where the expression is flat, does not reach that arm.
struct Slope {
  double coefficient = 0;
  std::vector<Expr> factors, divisors;
  Expr condition;
  std::vector<Slope> arms;  // then, otherwise

  bool is_flat() const { return !condition && coefficient == 0; }
  bool may_be_flat() const { return condition || coefficient == 0; }
};

// Most arms of one slope that are kept apart.
constexpr int kMostArms = 8;

int arms_of(const Slope& x) { return x.condition ? arms_of(x.arms[0]) + arms_of(x.arms[1]) : 1; }

Slope constant_slope(double coefficient) {
  Slope slope;
  slope.coefficient = coefficient;
  return slope;
}

Slope slope_of(Expr value) {
  if (is_constant(value)) return constant_slope(constant_value(value));
  Slope slope = constant_slope(1);
  slope.factors.push_back(std::move(value));
  return slope;
}

Slope scaled(Slope x, double factor) {
  if (factor == 0) return {};
  for (Slope& arm : x.arms) arm = scaled(std::move(arm), factor);
  if (x.condition || x.is_flat()) return x;
  if (is_normal_float(x.coefficient * factor)) {
    x.coefficient *= factor;
  } else {
    x.factors.push_back(make_float(factor));
  }
  return x;
}

Slope times(Slope x, const Expr& factor) {
  if (is_constant(factor)) return scaled(std::move(x), constant_value(factor));
  for (Slope& arm : x.arms) arm = times(std::move(arm), factor);
  if (!x.condition && !x.is_flat()) x.factors.push_back(factor);
  return x;
}

Slope over(Slope x, const Expr& divisor) {
  if (is_constant(divisor) && is_normal_float(1 / constant_value(divisor)))
    return scaled(std::move(x), 1 / constant_value(divisor));
  for (Slope& arm : x.arms) arm = over(std::move(arm), divisor);
  if (!x.condition && !x.is_flat()) x.divisors.push_back(divisor);
  return x;
}

// x / x is 1: where x is 0 or infinite, the expression itself is NaN or constant.
void cancel(Slope& x) {
  std::erase_if(x.divisors, [&](const Expr& divisor) {
    const auto same =
        std::ranges::find_if(x.factors, [&](const Expr& factor) { return equal(factor, divisor); });
    if (same == x.factors.end()) return false;
    x.factors.erase(same);
    return true;
  });
}

Expr written(Slope x) {
  if (x.condition) {
    return make_select(x.condition, written(std::move(x.arms[0])), written(std::move(x.arms[1])));
  }
  cancel(x);
  Expr value;
  for (const Expr& factor : x.factors)
    value = value ? make_binary(Op::kMultiply, value, factor) : factor;
  if (!value) {
    value = make_float(x.coefficient);
  } else if (x.coefficient == -1) {
    value = make_unary(Op::kNegate, value);
  } else if (x.coefficient != 1) {
    value = make_binary(Op::kMultiply, value, make_float(x.coefficient));
  }
  for (const Expr& divisor : x.divisors) value = make_binary(Op::kDivide, value, divisor);
  return value;
}

bool all_equal(const std::vector<Expr>& a, const std::vector<Expr>& b) {
  return std::ranges::equal(a, b, [](const Expr& x, const Expr& y) { return equal(x, y); });
}

Slope choice(const Expr& condition, Slope then, Slope otherwise) {
  if (then.is_flat() && otherwise.is_flat()) return {};
  Slope x;
  x.condition = condition;
  x.arms = {std::move(then), std::move(otherwise)};
  const bool has_flat_arm = x.arms[0].may_be_flat() || x.arms[1].may_be_flat();
  if (!has_flat_arm || arms_of(x) > kMostArms) return slope_of(written(std::move(x)));
  return x;
}

Slope sum(Slope a, Slope b) {
  if (a.is_flat()) return b;
  if (b.is_flat()) return a;
  if (a.condition && b.condition && arms_of(a) * arms_of(b) <= kMostArms)
    return choice(a.condition, sum(std::move(a.arms[0]), b), sum(std::move(a.arms[1]), b));
  if (!a.condition && !b.condition && all_equal(a.factors, b.factors) &&
      all_equal(a.divisors, b.divisors)) {
    const double coefficient = a.coefficient + b.coefficient;
    if (coefficient == 0) return {};
    if (is_normal_float(coefficient)) {
      a.coefficient = coefficient;
      return a;
    }
  }
  // Before b is moved from.
  const bool subtracts = !b.condition && b.coefficient < 0;
  if (subtracts) b.coefficient = -b.coefficient;
  const Expr left = written(std::move(a)), right = written(std::move(b));
  return slope_of(make_binary(subtracts ? Op::kSubtract : Op::kAdd, left, right));
}

Expr one_less(const Expr& e) { return make_binary(Op::kSubtract, make_float(1), e); }

Expr sign_of(const Expr& e) {
  const Expr zero = make_float(0);
  return make_select(make_binary(Op::kGreater, e, zero), make_float(1),
                     make_select(make_binary(Op::kLess, e, zero), make_float(-1), make_float(0)));
}

// The power of 1 / (1 + power), however its slope may overflow where that of the whole is 0; null
// if `e` is something else.
Expr power_of_logistic(const Expr& e) {
  const Expr& divisor = e->args[1];
  if (!is_one(e->args[0]) || divisor->op != Op::kAdd) return nullptr;
  const bool left = is_one(divisor->args[0]);
  if (!left && !is_one(divisor->args[1])) return nullptr;
  const Expr& power = divisor->args[left ? 1 : 0];
  return power->op == Op::kExp || power->op == Op::kExp2 ? power : nullptr;
}

// Of base^exponent, given the slopes of both. Where the exponent is 0 the base does not matter;
// where the base is not above 0, what is there is not to be had by a change of the exponent.
Slope slope_of_power(const Expr& e, Slope of_base, Slope of_exponent) {
  const Expr &base = e->args[0], &exponent = e->args[1];
  const Expr zero = make_float(0);
  if (!of_base.is_flat()) {
    const Expr less = make_binary(Op::kSubtract, exponent, make_float(1));
    of_base = times(times(std::move(of_base), exponent), make_binary(Op::kPower, base, less));
    if (!is_constant(exponent))
      of_base = choice(make_binary(Op::kEqual, exponent, zero), {}, std::move(of_base));
  }
  if (!of_exponent.is_flat()) {
    of_exponent = times(times(std::move(of_exponent), e), make_unary(Op::kLog, base));
    if (!is_constant(base))
      of_exponent = choice(make_binary(Op::kGreater, base, zero), std::move(of_exponent), {});
  }
  return sum(std::move(of_base), std::move(of_exponent));
}

Slope slope(const Expr& e, const Expr& wrt) {
  if (e->op == wrt->op) return constant_slope(equal(e, wrt) ? 1 : 0);
  const auto of = [&](std::size_t i) { return slope(e->args[i], wrt); };
  switch (e->op) {
    case Op::kNegate:
      return scaled(of(0), -1);
    case Op::kAbs:
      return times(of(0), sign_of(e->args[0]));
    case Op::kExp:
      return times(of(0), e);
    case Op::kExp2:
      return scaled(times(of(0), e), std::numbers::ln2);
    case Op::kLog:
      return over(of(0), e->args[0]);
    case Op::kLog2:
      return scaled(over(of(0), e->args[0]), std::numbers::log2e);
    case Op::kSqrt:
      return scaled(over(of(0), e), 0.5);
    case Op::kTanh:
      return times(of(0), one_less(make_binary(Op::kMultiply, e, e)));
    case Op::kSigmoid:
      return times(times(of(0), e), one_less(e));
    case Op::kSoftplus:
      return times(of(0), make_unary(Op::kSigmoid, e->args[0]));
    case Op::kSin:
      return times(of(0), make_unary(Op::kCos, e->args[0]));
    case Op::kCos:
      return scaled(times(of(0), make_unary(Op::kSin, e->args[0])), -1);
    case Op::kErf: {
      const Expr& x = e->args[0];
      const Expr square = make_binary(Op::kMultiply, x, x);
      return scaled(times(of(0), make_unary(Op::kExp, make_unary(Op::kNegate, square))),
                    2 * std::numbers::inv_sqrtpi);
    }
    case Op::kPower:
      return slope_of_power(e, of(0), of(1));
    case Op::kAdd:
      return sum(of(0), of(1));
    case Op::kSubtract:
      return sum(of(0), scaled(of(1), -1));
    case Op::kMultiply:
      return sum(times(of(0), e->args[1]), times(of(1), e->args[0]));
    case Op::kDivide:
      if (const Expr power = power_of_logistic(e)) {
        const double base = power->op == Op::kExp ? 1 : std::numbers::ln2;
        return scaled(times(times(slope(power->args[0], wrt), e), one_less(e)), -base);
      }
      // By the quotient, which is there already.
      return over(sum(of(0), scaled(times(of(1), e), -1)), e->args[1]);
    case Op::kMin:
    case Op::kMax:  // by the result: right where one argument is NaN, too
      return choice(make_binary(Op::kEqual, e, e->args[0]), of(0), of(1));
    case Op::kSelect:
      return choice(e->args[0], of(1), of(2));
    default:  // constants, int32 made float32
      return {};
  }
}

void collect_look_ups(const Expr& e, const Environment& environment, std::vector<Expr>& found) {
  if (e->op == Op::kLoad && environment.tensors[static_cast<std::size_t>(e->slot)].grad &&
      std::ranges::none_of(found, [&](const Expr& other) { return equal(other, e); })) {
    found.push_back(e);
  }
  for (const Expr& arg : e->args) collect_look_ups(arg, environment, found);
}

}  // namespace

Expr derivative(const Expr& expression, const Expr& wrt, double factor) {
  return written(scaled(slope(expression, wrt), factor));
}

std::vector<Expr> grad_look_ups(const Expr& expression, const Environment& environment) {
  std::vector<Expr> found;
  if (expression) collect_look_ups(expression, environment, found);
  return found;
}

std::vector<LookUpDerivative> look_up_derivatives(const Expr& expression,
                                                  const Environment& environment) {
  std::vector<LookUpDerivative> result;
  for (const Expr& look_up : grad_look_ups(expression, environment)) {
    Expr partial = derivative(expression, look_up);
    if (is_constant(partial) && constant_value(partial) == 0) continue;
    result.push_back({look_up, std::move(partial)});
  }
  return result;
}

}  // namespace attune::expr
