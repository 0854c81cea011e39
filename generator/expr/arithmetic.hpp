// What each operator computes, in one place: the evaluator and constant folding agree by
// construction.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "generator/expr/ast.hpp"

namespace attune::expr {

constexpr std::int64_t kInt32Min = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

// Up to here kernels' sin and cos are exact to about 2^-22; beyond, only within [-1, 1].
constexpr double kMostExactAngle = 65536;

inline bool fits_int32(std::int64_t value) { return value >= kInt32Min && value <= kInt32Max; }

// Two's complement, as int32 arithmetic wraps.
inline std::int64_t wrap_int32(std::int64_t value) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(static_cast<std::uint64_t>(value)));
}

// Quotient rounded towards minus infinity; 0 for a zero divisor.
inline std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) return 0;
  const std::int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

// Remainder with the divisor's sign; 0 for a zero divisor.
inline std::int64_t floor_modulo(std::int64_t a, std::int64_t b) {
  return b == 0 ? 0 : a - floor_divide(a, b) * b;
}

inline std::int64_t shift_left(std::int64_t x, std::int64_t bits) {
  return bits < 0 || bits > 31 ? 0 : wrap_int32(x * (std::int64_t{1} << bits));
}
inline std::int64_t shift_right(std::int64_t x, std::int64_t bits) {
  return x >> (bits < 0 || bits > 31 ? 31 : bits);
}

inline std::int64_t floor_saturating(double value) {
  if (std::isnan(value)) return 0;
  const double bounded =
      std::clamp(std::floor(value), static_cast<double>(kInt32Min), static_cast<double>(kInt32Max));
  return static_cast<std::int64_t>(bounded);
}

// log(1 + exp(x)), exact at both ends.
inline double softplus(double x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

// `type` is the operands' type. Values are doubles; int32 and bool are exact in them.
inline double apply_unary(Op op, Type type, double x) {
  switch (op) {
    case Op::kNegate:
      return type == Type::kInt32 ? static_cast<double>(wrap_int32(-static_cast<std::int64_t>(x)))
                                  : -x;
    case Op::kNot:
      return x == 0 ? 1 : 0;
    case Op::kAbs:
      return type == Type::kInt32
                 ? static_cast<double>(wrap_int32(std::abs(static_cast<std::int64_t>(x))))
                 : std::abs(x);
    case Op::kExp:
      return std::exp(x);
    case Op::kExp2:
      return std::exp2(x);
    case Op::kLog:
      return std::log(x);
    case Op::kLog2:
      return std::log2(x);
    case Op::kSqrt:
      return std::sqrt(x);
    case Op::kTanh:
      return std::tanh(x);
    case Op::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Op::kSoftplus:
      return softplus(x);
    case Op::kSin:
      return std::sin(x);
    case Op::kCos:
      return std::cos(x);
    case Op::kErf:
      return std::erf(x);
    case Op::kFloor:
      return static_cast<double>(floor_saturating(x));
    default:  // kToFloat
      return x;
  }
}

inline double apply_binary(Op op, Type type, double x, double y) {
  switch (op) {
    case Op::kEqual:
      return x == y;
    case Op::kNotEqual:
      return x != y;
    case Op::kLess:
      return x < y;
    case Op::kLessEqual:
      return x <= y;
    case Op::kGreater:
      return x > y;
    case Op::kGreaterEqual:
      return x >= y;
    case Op::kAnd:
      return x != 0 && y != 0;
    case Op::kOr:
      return x != 0 || y != 0;
    case Op::kMin:
      return std::fmin(x, y);
    case Op::kMax:
      return std::fmax(x, y);
    case Op::kDivide:
      return x / y;
    case Op::kPower:
      return std::pow(x, y);
    default:
      break;
  }
  if (type == Type::kFloat32) return op == Op::kAdd ? x + y : op == Op::kSubtract ? x - y : x * y;
  const auto a = static_cast<std::int64_t>(x), b = static_cast<std::int64_t>(y);
  switch (op) {
    case Op::kAdd:
      return static_cast<double>(wrap_int32(a + b));
    case Op::kSubtract:
      return static_cast<double>(wrap_int32(a - b));
    case Op::kMultiply:
      return static_cast<double>(wrap_int32(a * b));
    case Op::kFloorDivide:
      return static_cast<double>(wrap_int32(floor_divide(a, b)));
    case Op::kShiftLeft:
      return static_cast<double>(shift_left(a, b));
    case Op::kShiftRight:
      return static_cast<double>(shift_right(a, b));
    case Op::kBitAnd:
      return static_cast<double>(a & b);
    case Op::kBitOr:
      return static_cast<double>(a | b);
    case Op::kBitXor:
      return static_cast<double>(a ^ b);
    default:  // kModulo
      return static_cast<double>(floor_modulo(a, b));
  }
}

}  // namespace attune::expr
