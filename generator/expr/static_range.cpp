#include "generator/expr/static_range.hpp"

#include <algorithm>
#include <optional>

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

// `part`: as of make_part_variable, or 0.
IntInterval variable_range(Variable variable, std::int64_t part) {
  const std::int64_t longest = kMaxSequenceLength / std::max<std::int64_t>(part, 1);
  switch (variable) {
    case Variable::kBatch:
      return {0, kMostBatches};
    case Variable::kHead:
    case Variable::kKvHead:
      return {0, kMostHeads};
    case Variable::kQIdx:
    case Variable::kKvIdx:
      return {0, longest + kLongestTile};
    case Variable::kQFirst:
    case Variable::kKvFirst:
      return {0, kMaxSequenceLength};
    default:
      return {1, longest};
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
      return variable_range(e->variable, e->int_value);
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

// Whether there are at least as many elements as the size that `dim` names, which is 1 or more.
bool covers_size(const DimSize& dim) {
  const int growth = dim.factor - dim.divisor;
  return growth >= 0 && growth + dim.offset >= 0;
}

// A dim such that what is below it, divided by `divisor` and rounded down, is below `dim`.
DimSize before_division(DimSize dim, std::int64_t divisor) {
  if (divisor < dim.divisor) return dim;
  dim.offset -= dim.divisor - 1;
  dim.divisor = 1;
  return dim;
}
// The same of what `addend`, not negative, is added to; nothing where there may be none.
std::optional<DimSize> before_addition(DimSize dim, std::int64_t addend) {
  // Sizes are 1 or more; one that has no room for the sum would count as one.
  if (dim.divisor != 1 || dim.factor + dim.offset - addend < 1) return std::nullopt;
  dim.offset -= static_cast<int>(addend);
  return dim;
}

bool below_dim(const Expr& e, const DimSize& dim);

// Of a sum that does not wrap and has a constant.
bool sum_is_below(const Expr& e, const DimSize& dim) {
  for (const std::size_t i : {0u, 1u}) {
    const Expr &addend = e->args[i], &other = e->args[1 - i];
    if (addend->op != Op::kInt || addend->int_value < 0 || may_wrap(e)) continue;
    const auto before = before_addition(dim, addend->int_value);
    if (before && below_dim(other, *before)) return true;
  }
  return false;
}

bool names(Variable variable, Dim dim) {
  switch (dim) {
    case Dim::kBatch:
      return variable == Variable::kBatch;
    case Dim::kHeads:
      return variable == Variable::kHead || variable == Variable::kKvHead;
    case Dim::kKvHeads:
      return variable == Variable::kKvHead;
    case Dim::kQLen:
      return variable == Variable::kQIdx;
    case Dim::kKvLen:
      return variable == Variable::kKvIdx;
    case Dim::kNumber:
      break;
  }
  return false;
}
bool is_length(Variable variable, Dim dim) {
  return (dim == Dim::kQLen && variable == Variable::kQLen) ||
         (dim == Dim::kKvLen && variable == Variable::kKvLen);
}

// index < size of dim, given that index >= 0.
bool below_dim(const Expr& e, const DimSize& dim) {
  if (dim.dim == Dim::kNumber) return static_range(e).hi < dim.number;
  if (is_int(e, 0)) return true;
  switch (e->op) {
    case Op::kVariable:
      return names(e->variable, dim.dim) && covers_size(dim);
    case Op::kMin:
      return below_dim(e->args[0], dim) || below_dim(e->args[1], dim);
    case Op::kMax:
      return below_dim(e->args[0], dim) && below_dim(e->args[1], dim);
    case Op::kSelect:
      return below_dim(e->args[1], dim) && below_dim(e->args[2], dim);
    case Op::kBitAnd:
      return (static_range(e->args[0]).lo >= 0 && below_dim(e->args[0], dim)) ||
             (static_range(e->args[1]).lo >= 0 && below_dim(e->args[1], dim));
    case Op::kShiftRight: {
      const IntInterval by = static_range(e->args[1]);
      const std::int64_t least = std::int64_t{1} << std::clamp<std::int64_t>(by.lo, 0, 31);
      return static_range(e->args[0]).lo >= 0 && below_dim(e->args[0], before_division(dim, least));
    }
    case Op::kFloorDivide: {
      const IntInterval by = static_range(e->args[1]);
      return static_range(e->args[0]).lo >= 0 && by.lo >= 1 &&
             below_dim(e->args[0], before_division(dim, by.lo));
    }
    case Op::kModulo: {
      const Expr& divisor = e->args[1];
      const bool is_size =
          divisor->op == Op::kVariable && is_length(divisor->variable, dim.dim) && covers_size(dim);
      return is_size || (static_range(e->args[0]).lo >= 0 && static_range(divisor).lo >= 0 &&
                         below_dim(e->args[0], dim));
    }
    case Op::kAdd:
      return sum_is_below(e, dim);
    case Op::kSubtract:
      return static_range(e->args[0]).lo >= 0 && static_range(e->args[1]).lo >= 0 &&
             below_dim(e->args[0], dim);
    default:
      return false;
  }
}

// index >= size of dim, for certain.
bool beyond_dim(const Expr& e, const DimSize& dim) {
  if (dim.dim == Dim::kNumber) return static_range(e).lo >= dim.number;
  // Of packed sequences, what is computed from a size is so from that of all of them.
  if (e->op == Op::kVariable) return is_length(e->variable, dim.dim) && dim.is_plain();
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

IndexProof prove_index(const Expr& index, const DimSize& dim) {
  const IntInterval range = static_range(index);
  if (range.hi < 0 || beyond_dim(index, dim)) return IndexProof::kOutside;
  return range.lo >= 0 && below_dim(index, dim) ? IndexProof::kInside : IndexProof::kUnknown;
}

}  // namespace attune::expr
