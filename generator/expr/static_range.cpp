#include "generator/expr/static_range.hpp"

#include <algorithm>

#include "generator/expr/arithmetic.hpp"
#include "generator/expr/build.hpp"

namespace attune::expr {
namespace {

constexpr IntInterval kFull = {kInt32Min, kInt32Max};
// A kernel rounds lengths up to a tile, and no tile is longer.
constexpr std::int64_t kLongestTile = 4096;
// Generous for any machine, small enough that b * heads + h does not wrap.
constexpr std::int64_t kMostHeads = std::int64_t{1} << 16;
constexpr std::int64_t kMostBatches = std::int64_t{1} << 20;

IntInterval variable_range(Variable variable) {
  switch (variable) {
    case Variable::kBatch:
      return {0, kMostBatches};
    case Variable::kHead:
    case Variable::kKvHead:
      return {0, kMostHeads};
    case Variable::kQIdx:
    case Variable::kKvIdx:
      return {0, kMaxSequenceLength + kLongestTile};
    case Variable::kQFirst:
    case Variable::kKvFirst:
      return {0, kMaxSequenceLength};
    default:
      return {1, kMaxSequenceLength};
  }
}

IntInterval quotient(IntInterval a, IntInterval b) {
  if (b.lo <= 0 && b.hi >= 0) {
    const std::int64_t most = std::max(std::abs(a.lo), std::abs(a.hi));
    return {-most, most};
  }
  const auto corners = {floor_divide(a.lo, b.lo), floor_divide(a.lo, b.hi),
                        floor_divide(a.hi, b.lo), floor_divide(a.hi, b.hi)};
  return {std::min(corners), std::max(corners)};
}

IntInterval remainder(IntInterval a, IntInterval b) {
  if (b.lo > 0 && a.lo >= 0 && a.hi < b.lo) return a;
  return {std::min<std::int64_t>(b.lo + 1, 0), std::max<std::int64_t>(b.hi - 1, 0)};
}

// What bits 0 to n - 1 and copies of bit n reach, for the least such n of both operands.
IntInterval of_bits(IntInterval a, IntInterval b) {
  std::int64_t most = 0;
  while (std::min(a.lo, b.lo) < -most - 1 || std::max(a.hi, b.hi) > most) most = 2 * most + 1;
  return {a.lo >= 0 && b.lo >= 0 ? 0 : -most - 1, most};
}

IntInterval range_of_bits(Op op, IntInterval a, IntInterval b) {
  IntInterval range = of_bits(a, b);
  switch (op) {
    case Op::kBitAnd:
      // No more than an operand that is not negative.
      if (a.lo >= 0) range = {0, std::min(a.hi, range.hi)};
      if (b.lo >= 0) range = {0, std::min(b.hi, range.hi)};
      return range;
    case Op::kBitOr:
      if (a.lo >= 0 && b.lo >= 0) range.lo = std::max(a.lo, b.lo);
      return range;
    default:  // kBitXor
      return range;
  }
}

// The range before wrapping: in unbounded integers over the operands' ranges.
IntInterval exact_range(const Expr& e) {
  switch (e->op) {
    case Op::kInt:
      return {e->int_value, e->int_value};
    case Op::kVariable:
      return variable_range(e->variable);
    case Op::kNegate: {
      const IntInterval a = static_range(e->args[0]);
      return {-a.hi, -a.lo};
    }
    case Op::kAbs: {
      const IntInterval a = static_range(e->args[0]);
      const std::int64_t least = a.lo > 0 ? a.lo : a.hi < 0 ? -a.hi : 0;
      return {least, std::max(std::abs(a.lo), std::abs(a.hi))};
    }
    case Op::kSelect: {
      const IntInterval a = static_range(e->args[1]), b = static_range(e->args[2]);
      return {std::min(a.lo, b.lo), std::max(a.hi, b.hi)};
    }
    case Op::kAdd:
    case Op::kSubtract:
    case Op::kMultiply:
    case Op::kFloorDivide:
    case Op::kModulo:
    case Op::kMin:
    case Op::kMax:
    case Op::kShiftLeft:
    case Op::kShiftRight:
    case Op::kBitAnd:
    case Op::kBitOr:
    case Op::kBitXor:
      break;
    default:  // a launch-time scalar, a look-up, a floor
      return kFull;
  }
  const IntInterval a = static_range(e->args[0]), b = static_range(e->args[1]);
  switch (e->op) {
    case Op::kAdd:
      return {a.lo + b.lo, a.hi + b.hi};
    case Op::kSubtract:
      return {a.lo - b.hi, a.hi - b.lo};
    case Op::kMultiply: {
      const auto corners = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};
      return {std::min(corners), std::max(corners)};
    }
    case Op::kFloorDivide:
      return quotient(a, b);
    case Op::kModulo:
      return remainder(a, b);
    case Op::kMin:
      return {std::min(a.lo, b.lo), std::min(a.hi, b.hi)};
    case Op::kShiftLeft: {
      if (b.lo < 0 || b.hi > 31) return kFull;
      const auto corners = {a.lo * (std::int64_t{1} << b.lo), a.lo * (std::int64_t{1} << b.hi),
                            a.hi * (std::int64_t{1} << b.lo), a.hi * (std::int64_t{1} << b.hi)};
      return {std::min(corners), std::max(corners)};
    }
    case Op::kShiftRight:
      return {std::min<std::int64_t>(a.lo, 0), std::max<std::int64_t>(a.hi, -1)};
    case Op::kBitAnd:
    case Op::kBitOr:
    case Op::kBitXor:
      return range_of_bits(e->op, a, b);
    default:  // kMax
      return {std::max(a.lo, b.lo), std::max(a.hi, b.hi)};
  }
}

// index < size of dim, given that index >= 0.
bool below_dim(const Expr& e, DimSize dim) {
  if (dim.dim == Dim::kNumber) return static_range(e).hi < dim.number;
  if (is_int(e, 0)) return true;
  switch (e->op) {
    case Op::kVariable:
      switch (dim.dim) {
        case Dim::kBatch:
          return e->variable == Variable::kBatch;
        case Dim::kHeads:
          return e->variable == Variable::kHead || e->variable == Variable::kKvHead;
        case Dim::kKvHeads:
          return e->variable == Variable::kKvHead;
        case Dim::kQLen:
          return e->variable == Variable::kQIdx;
        case Dim::kKvLen:
          return e->variable == Variable::kKvIdx;
        case Dim::kNumber:
          return false;
      }
      return false;
    case Op::kMin:
      return below_dim(e->args[0], dim) || below_dim(e->args[1], dim);
    case Op::kMax:
      return below_dim(e->args[0], dim) && below_dim(e->args[1], dim);
    case Op::kSelect:
      return below_dim(e->args[1], dim) && below_dim(e->args[2], dim);
    case Op::kBitAnd:
      return (static_range(e->args[0]).lo >= 0 && below_dim(e->args[0], dim)) ||
             (static_range(e->args[1]).lo >= 0 && below_dim(e->args[1], dim));
    case Op::kShiftRight:
      return static_range(e->args[0]).lo >= 0 && below_dim(e->args[0], dim);
    case Op::kFloorDivide:
      return static_range(e->args[0]).lo >= 0 && static_range(e->args[1]).lo >= 1 &&
             below_dim(e->args[0], dim);
    case Op::kModulo: {
      const Expr& divisor = e->args[1];
      const bool is_size = divisor->op == Op::kVariable &&
                           ((dim.dim == Dim::kQLen && divisor->variable == Variable::kQLen) ||
                            (dim.dim == Dim::kKvLen && divisor->variable == Variable::kKvLen));
      return is_size || (static_range(e->args[0]).lo >= 0 && static_range(divisor).lo >= 0 &&
                         below_dim(e->args[0], dim));
    }
    case Op::kSubtract:
      return static_range(e->args[0]).lo >= 0 && static_range(e->args[1]).lo >= 0 &&
             below_dim(e->args[0], dim);
    default:
      return false;
  }
}

// index >= size of dim, for certain.
bool beyond_dim(const Expr& e, DimSize dim) {
  if (dim.dim == Dim::kNumber) return static_range(e).lo >= dim.number;
  if (e->op == Op::kVariable)
    return (dim.dim == Dim::kQLen && e->variable == Variable::kQLen) ||
           (dim.dim == Dim::kKvLen && e->variable == Variable::kKvLen);
  if (e->op != Op::kAdd || static_range(e).lo < 0) return false;
  return (beyond_dim(e->args[0], dim) && static_range(e->args[1]).lo >= 0) ||
         (beyond_dim(e->args[1], dim) && static_range(e->args[0]).lo >= 0);
}

}  // namespace

IntInterval static_range(const Expr& expression) {
  const IntInterval range = exact_range(expression);
  return fits_int32(range.lo) && fits_int32(range.hi) ? range : kFull;
}

bool may_wrap(const Expr& expression) {
  const IntInterval range = exact_range(expression);
  return !fits_int32(range.lo) || !fits_int32(range.hi);
}

IndexProof prove_index(const Expr& index, DimSize dim) {
  const IntInterval range = static_range(index);
  if (range.hi < 0 || beyond_dim(index, dim)) return IndexProof::kOutside;
  return range.lo >= 0 && below_dim(index, dim) ? IndexProof::kInside : IndexProof::kUnknown;
}

}  // namespace attune::expr
