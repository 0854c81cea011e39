#include "generator/expr/inexact.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "generator/expr/arithmetic.hpp"

namespace attune::expr {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 0x1p-24;
// Of ex2.approx, lg2.approx, rcp.approx and sqrt.approx, and of what is made of two of them.
constexpr double kApproximation = 0x1p-22, kTwoApproximations = 0x1p-21;
constexpr double kSmallest = 0x1p-126;  // below it hardware may give 0
constexpr double kLargest = std::numeric_limits<float>::max();
constexpr double kLn2 = 0.6931471805599453;

double narrowing(double value) {
  const double error = std::abs(value - static_cast<double>(static_cast<float>(value)));
  return error == error ? error : 0;
}

// The rounding of a result on top of what its operands bring, `relative` to its size.
Inexact rounded(double value, double brought, double relative = kRounding) {
  if (!std::isfinite(value)) return {value, brought == 0 ? 0 : kInfinity};
  const double error = brought + relative * (std::abs(value) + brought) + kSmallest;
  // fp32 may overflow where fp64 does not; a NaN is no bound.
  return {value, error == error && std::abs(value) + error < kLargest ? error : kInfinity};
}

class Analysis {
 public:
  Analysis(const Point& point, double score_error) : point_(point), score_error_(score_error) {}

  Inexact of(const Expr& e) const {
    switch (e->op) {
      case Op::kFloat:
      case Op::kScalar: {
        const double value = evaluate(e, point_);
        return {value, e->type == Type::kFloat32 ? narrowing(value) : 0};
      }
      case Op::kVariable:
        return {evaluate(e, point_), e->variable == Variable::kScore ? score_error_ : 0};
      case Op::kLoad: {
        double error = 0;
        for (const Expr& index : e->args) error += of(index).error;
        return {evaluate(e, point_), error == 0 ? 0 : kInfinity};
      }
      case Op::kSelect:
        return select(of(e->args[0]), of(e->args[1]), of(e->args[2]));
      default:
        break;
    }
    if (e->args.empty()) return {evaluate(e, point_), 0};
    const Inexact a = of(e->args[0]);
    const Type type = e->args[0]->type;
    if (e->args.size() == 1) return type == Type::kFloat32 ? of_float(e, a) : of_other(e, a);
    const Inexact b = of(e->args[1]);
    if (e->type == Type::kBool) return condition(e->op, type, a, b);
    return type == Type::kFloat32 ? of_floats(e, a, b) : of_ints(e, a, b);
  }

 private:
  static Inexact select(const Inexact& condition, const Inexact& then, const Inexact& otherwise) {
    const Inexact& chosen = condition.value != 0 ? then : otherwise;
    const Inexact& other = condition.value != 0 ? otherwise : then;
    if (condition.error == 0 || chosen.value == other.value) {
      return {chosen.value,
              condition.error == 0 ? chosen.error : std::max(chosen.error, other.error)};
    }
    const double apart = std::abs(chosen.value - other.value) + other.error;
    return {chosen.value, apart == apart ? std::max(chosen.error, apart) : kInfinity};
  }

  // Of int32 and bool.
  static Inexact of_other(const Expr& e, const Inexact& a) {
    const double value = apply_unary(e->op, e->args[0]->type, a.value);
    return {value, e->op == Op::kToFloat ? a.error + narrowing(value) : a.error};
  }

  static Inexact of_float(const Expr& e, const Inexact& a) {
    const double value = apply_unary(e->op, Type::kFloat32, a.value);
    const double size = std::abs(a.value);
    switch (e->op) {
      case Op::kNegate:
      case Op::kAbs:
        return {value, a.error};
      case Op::kExp:
        // e^x is 2^(x log2(e)), whose exponent is rounded.
        return rounded(value, value * std::expm1(a.error + 2 * kRounding * size), kApproximation);
      case Op::kExp2:
        return rounded(value, value * std::expm1(kLn2 * a.error), kApproximation);
      case Op::kLog:
      case Op::kLog2: {
        const double unit = e->op == Op::kLog ? 1 : 1 / kLn2;
        if (std::isnan(a.value) || a.value + a.error < 0) return {value, 0};
        if (a.value - a.error < kSmallest)
          return {value, a.value == 0 && a.error == 0 ? 0 : kInfinity};
        const double brought = -unit * std::log1p(-a.error / a.value) + kTwoApproximations;
        return rounded(value, brought, kTwoApproximations);
      }
      case Op::kSqrt:
        if (std::isnan(a.value) || a.value + a.error < 0) return {value, 0};
        if (a.value < a.error) return {value, a.value < 0 ? kInfinity : std::sqrt(2 * a.error)};
        return rounded(value, value - std::sqrt(a.value - a.error), kApproximation);
      case Op::kTanh:
        return rounded(value, std::min(2.0, a.error) + kTwoApproximations);
      case Op::kSigmoid:
        return rounded(value, std::min(1.0, a.error / 4) + kTwoApproximations, kApproximation);
      case Op::kSoftplus:
        return rounded(value, a.error + kTwoApproximations, kTwoApproximations);
      case Op::kSin:
      case Op::kCos:
        // Beyond the exact angles nothing but the ends is kept.
        if (!std::isfinite(a.value)) return {value, a.error == 0 ? 0 : kInfinity};
        if (size + a.error > kMostExactAngle)
          return {value, size + a.error < kLargest ? 2.0 : kInfinity};
        return rounded(value, std::min(2.0, a.error) + kTwoApproximations);
      case Op::kErf:
        // The slope is 1.13 at most.
        return rounded(value, std::min(2.0, 1.2 * a.error) + kTwoApproximations);
      default: {  // kFloor
        if (a.error == 0) return {value, 0};
        const double low = apply_unary(Op::kFloor, Type::kFloat32, a.value - a.error);
        const double high = apply_unary(Op::kFloor, Type::kFloat32, a.value + a.error);
        return {value, a.error == kInfinity ? kInfinity : std::max(value - low, high - value)};
      }
    }
  }

  static Inexact of_floats(const Expr& e, const Inexact& a, const Inexact& b) {
    const double value = apply_binary(e->op, Type::kFloat32, a.value, b.value);
    const double x = std::abs(a.value), y = std::abs(b.value);
    switch (e->op) {
      case Op::kMin:
      case Op::kMax:
        return {value, std::max(a.error, b.error)};
      case Op::kMultiply:
        return rounded(value, x * b.error + y * a.error + a.error * b.error);
      case Op::kDivide: {
        if (y <= b.error || (y == 0 && a.error > 0)) return {value, b.error == 0 ? 0 : kInfinity};
        // By a reciprocal, which vanishes where it is subnormal.
        if (y < kSmallest || 1 / y < kSmallest) return {value, kInfinity};
        return rounded(value, (x + a.error) / (y - b.error) - x / y, kTwoApproximations);
      }
      case Op::kPower:
        return power(value, a, b);
      default:
        return rounded(value, a.error + b.error);
    }
  }

  // Kernels make it of 2^(y log2(x)).
  static Inexact power(double value, const Inexact& a, const Inexact& b) {
    const double size = std::abs(a.value);
    const bool is_exact = a.error == 0 && b.error == 0;
    if (std::isnan(value)) return {value, is_exact ? 0 : kInfinity};
    if (is_exact && (a.value == 1 || b.value == 0)) return {value, 0};
    // The sign and the pole at 0 hang on an exact base, and a sign on an exact exponent.
    if (size == 0 || !std::isfinite(size) || !std::isfinite(b.value))
      return {value, is_exact ? 0 : kInfinity};
    if (size - a.error < kSmallest || (a.value < 0 && b.error > 0)) return {value, kInfinity};
    const double log = std::abs(std::log2(size));
    const double log_error = -std::log1p(-a.error / size) / kLn2 + (1 + log) * kTwoApproximations;
    const double exponent = std::abs(b.value) * log;
    const double exponent_error = (std::abs(b.value) + b.error) * log_error + log * b.error;
    return rounded(value,
                   std::abs(value) * std::expm1(kLn2 * (exponent_error + 2 * kRounding * exponent)),
                   kTwoApproximations);
  }

  static Inexact of_ints(const Expr& e, const Inexact& a, const Inexact& b) {
    const double value = apply_binary(e->op, Type::kInt32, a.value, b.value);
    if (a.error == 0 && b.error == 0) return {value, 0};
    switch (e->op) {
      case Op::kMin:
      case Op::kMax:
        return {value, std::max(a.error, b.error)};
      case Op::kAdd:
      case Op::kSubtract: {
        const double error = a.error + b.error;
        return {value, std::abs(a.value) + std::abs(b.value) + error < 0x1p31 ? error : kInfinity};
      }
      default:
        return {value, kInfinity};
    }
  }

  // A bool's error is 1 where it may be either.
  static Inexact condition(Op op, Type type, const Inexact& a, const Inexact& b) {
    const double value = apply_binary(op, type, a.value, b.value);
    if (a.error == 0 && b.error == 0) return {value, 0};
    if (op == Op::kAnd || op == Op::kOr) {
      const double decided = op == Op::kAnd ? 0 : 1;  // by one side alone
      for (const Inexact& side : {a, b}) {
        if (side.error == 0 && (side.value != 0) == (decided != 0)) return {value, 0};
      }
      return {value, 1};
    }
    const double error = a.error + b.error;
    if (std::isnan(a.value) || std::isnan(b.value)) return {value, error == kInfinity ? 1.0 : 0.0};
    return {value, std::abs(a.value - b.value) > error ? 0.0 : 1.0};
  }

  const Point& point_;
  const double score_error_;
};

}  // namespace

Inexact evaluate_inexact(const Expr& expression, const Point& point, double score_error) {
  return Analysis(point, score_error).of(expression);
}

}  // namespace attune::expr
