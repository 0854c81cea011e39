#include "generator/expr/interval_program.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "generator/expr/arithmetic.hpp"
#include "generator/expr/build.hpp"
#include "generator/expr/evaluator.hpp"
#include "generator/expr/static_range.hpp"

namespace attune::expr {
namespace {

using Wide = __int128;

std::int64_t saturated(Wide value) {
  constexpr Wide kLimit = std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(std::clamp(value, -kLimit, kLimit));
}

bool same(const Step& a, const Step& b) {
  if (a.op != b.op || a.kind != b.kind || a.args != b.args || a.value != b.value ||
      a.real != b.real || a.function != b.function || a.slot != b.slot)
    return false;
  return !a.expression || equal(a.expression, b.expression);
}

std::size_t hash_of(const Step& step) {
  std::size_t hash = static_cast<std::size_t>(step.op);
  for (const StepId arg : step.args) hash = hash * 1000003 + static_cast<std::size_t>(arg);
  return hash * 1000003 + static_cast<std::size_t>(step.value);
}

}  // namespace

StepId IntervalProgram::append(Step step) {
  const std::size_t hash = hash_of(step);
  const auto [begin, end] = known_.equal_range(hash);
  for (auto it = begin; it != end; ++it)
    if (same((*this)[it->second], step)) return it->second;
  const auto id = static_cast<StepId>(steps_.size());
  steps_.push_back(std::move(step));
  known_.emplace(hash, id);
  return id;
}

bool IntervalProgram::is_constant(StepId id, std::int64_t value) const {
  const Step& step = (*this)[id];
  return (step.op == StepOp::kInt || step.op == StepOp::kBool) && step.value == value;
}

std::optional<StepId> IntervalProgram::negated_operand(StepId id) const {
  const Step& step = (*this)[id];
  if (step.op == StepOp::kSubtract && is_constant(step.args[0], 0)) return step.args[1];
  return std::nullopt;
}

StepId IntervalProgram::integer(std::int64_t value) {
  return append(
      {.op = StepOp::kInt, .value = value, .lo = value, .hi = value, .wide = !fits_int32(value)});
}
StepId IntervalProgram::real(double value) {
  return append({.op = StepOp::kReal, .kind = StepKind::kReal, .real = value});
}
StepId IntervalProgram::boolean(bool value) {
  return append({.op = StepOp::kBool, .kind = StepKind::kBool, .value = value});
}

StepId IntervalProgram::box_end(StepOp which) {
  const bool of_q = which == StepOp::kQFirst || which == StepOp::kQLast;
  const IntInterval range = static_range(make_variable(of_q ? Variable::kQIdx : Variable::kKvIdx));
  return append({.op = which, .lo = range.lo, .hi = range.hi});
}

StepId IntervalProgram::uniform(const Expr& expression) {
  if (expr::is_constant(expression)) {
    if (expression->type == Type::kInt32) return integer(expression->int_value);
    if (expression->type == Type::kBool) return boolean(expression->int_value != 0);
    return real(expression->float_value);
  }
  Step step = {.op = StepOp::kUniform, .expression = expression};
  if (expression->type == Type::kInt32) {
    const IntInterval range = static_range(expression);
    step.lo = range.lo;
    step.hi = range.hi;
  } else {
    step.kind = expression->type == Type::kBool ? StepKind::kBool : StepKind::kReal;
  }
  return append(std::move(step));
}

StepId IntervalProgram::binary(StepOp op, StepId a, StepId b, std::int64_t lo, std::int64_t hi) {
  if (lo == hi) return integer(lo);
  const bool wide = (*this)[a].wide || (*this)[b].wide || !fits_int32(lo) || !fits_int32(hi);
  return append({.op = op, .args = {a, b}, .lo = lo, .hi = hi, .wide = wide});
}

// The rules below only make the text shorter: no step's value leaves int64 before or after them.
StepId IntervalProgram::add(StepId a, StepId b) {
  if ((*this)[a].op == StepOp::kInt) std::swap(a, b);
  if (is_constant(b, 0)) return a;
  if (const auto negated = negated_operand(b)) return subtract(a, *negated);
  if (const auto negated = negated_operand(a)) return subtract(b, *negated);
  // (x + constant) + constant
  const Step left = (*this)[a], right = (*this)[b];
  if (right.op == StepOp::kInt && left.op == StepOp::kAdd &&
      (*this)[left.args[1]].op == StepOp::kInt)
    return add(left.args[0], integer((*this)[left.args[1]].value + right.value));
  const Step &x = (*this)[a], &y = (*this)[b];
  return binary(StepOp::kAdd, a, b, saturated(Wide(x.lo) + y.lo), saturated(Wide(x.hi) + y.hi));
}

StepId IntervalProgram::subtract(StepId a, StepId b) {
  if (is_constant(b, 0)) return a;
  if (a == b) return integer(0);
  if (const auto negated = negated_operand(b)) return add(a, *negated);
  if ((*this)[b].op == StepOp::kInt) return add(a, integer(-(*this)[b].value));
  if (is_constant(a, 0) && (*this)[b].op == StepOp::kSubtract) {
    const std::vector<StepId> args = (*this)[b].args;
    return subtract(args[1], args[0]);
  }
  const Step &x = (*this)[a], &y = (*this)[b];
  return binary(StepOp::kSubtract, a, b, saturated(Wide(x.lo) - y.hi),
                saturated(Wide(x.hi) - y.lo));
}

StepId IntervalProgram::multiply(StepId a, StepId b) {
  if ((*this)[a].op == StepOp::kInt) std::swap(a, b);
  if (is_constant(b, 1)) return a;
  if (is_constant(b, -1)) return subtract(integer(0), a);
  const Step &x = (*this)[a], &y = (*this)[b];
  const auto corners = {Wide(x.lo) * y.lo, Wide(x.lo) * y.hi, Wide(x.hi) * y.lo, Wide(x.hi) * y.hi};
  return binary(StepOp::kMultiply, a, b, saturated(std::min(corners)),
                saturated(std::max(corners)));
}

StepId IntervalProgram::floor_divide(StepId a, StepId b) {
  if (is_constant(b, 1)) return a;
  const Step &x = (*this)[a], &y = (*this)[b];
  if (y.lo > 0 || y.hi < 0) {
    const auto corners = {expr::floor_divide(x.lo, y.lo), expr::floor_divide(x.lo, y.hi),
                          expr::floor_divide(x.hi, y.lo), expr::floor_divide(x.hi, y.hi)};
    return binary(StepOp::kFloorDivide, a, b, std::min(corners), std::max(corners));
  }
  const std::int64_t most = std::max(std::abs(x.lo), std::abs(x.hi));
  return binary(StepOp::kFloorDivide, a, b, -most, most);
}

StepId IntervalProgram::min(StepId a, StepId b) {
  const Step &x = (*this)[a], &y = (*this)[b];
  if (a == b || x.hi <= y.lo) return a;
  if (x.op == StepOp::kMin && (x.args[0] == b || x.args[1] == b)) return a;
  if (y.op == StepOp::kMin && (y.args[0] == a || y.args[1] == a)) return b;
  if (y.hi <= x.lo) return b;
  return binary(StepOp::kMin, a, b, std::min(x.lo, y.lo), std::min(x.hi, y.hi));
}

StepId IntervalProgram::max(StepId a, StepId b) {
  const Step &x = (*this)[a], &y = (*this)[b];
  if (a == b || x.lo >= y.hi) return a;
  if (x.op == StepOp::kMax && (x.args[0] == b || x.args[1] == b)) return a;
  if (y.op == StepOp::kMax && (y.args[0] == a || y.args[1] == a)) return b;
  if (y.lo >= x.hi) return b;
  return binary(StepOp::kMax, a, b, std::max(x.lo, y.lo), std::max(x.hi, y.hi));
}

StepId IntervalProgram::narrow(StepId a) {
  const Step& x = (*this)[a];
  if (!x.wide) return a;
  return append({.op = StepOp::kNarrow,
                 .args = {a},
                 .lo = std::max(x.lo, kInt32Min),
                 .hi = std::min(x.hi, kInt32Max)});
}

StepId IntervalProgram::real_step(StepOp op, std::vector<StepId> args) {
  if ((op == StepOp::kRealMin || op == StepOp::kRealMax) && args[0] == args[1]) return args[0];
  return append({.op = op, .kind = StepKind::kReal, .args = std::move(args)});
}

StepId IntervalProgram::real_function(Op function, StepId a) {
  return append(
      {.op = StepOp::kRealFunction, .kind = StepKind::kReal, .args = {a}, .function = function});
}

StepId IntervalProgram::widen(StepOp op, StepId a, bool coarse) {
  return append({.op = op, .kind = StepKind::kReal, .args = {a}, .value = coarse});
}

StepId IntervalProgram::floor_to_int(StepId a) {
  return append({.op = StepOp::kFloorToInt, .args = {a}, .lo = kInt32Min, .hi = kInt32Max});
}

StepId IntervalProgram::less(StepId a, StepId b) {
  const Step &x = (*this)[a], &y = (*this)[b];
  if (x.hi < y.lo) return boolean(true);
  if (x.lo >= y.hi || a == b) return boolean(false);
  return append({.op = StepOp::kLess, .kind = StepKind::kBool, .args = {a, b}});
}

StepId IntervalProgram::less_equal(StepId a, StepId b) {
  const Step &x = (*this)[a], &y = (*this)[b];
  if (x.hi <= y.lo || a == b) return boolean(true);
  if (x.lo > y.hi) return boolean(false);
  return append({.op = StepOp::kLessEqual, .kind = StepKind::kBool, .args = {a, b}});
}

StepId IntervalProgram::equals(StepId a, StepId b) {
  const Step &x = (*this)[a], &y = (*this)[b];
  if (a == b) return boolean(true);
  if (x.hi < y.lo || y.hi < x.lo) return boolean(false);
  return append({.op = StepOp::kEqual, .kind = StepKind::kBool, .args = {a, b}});
}

StepId IntervalProgram::real_less(StepId a, StepId b) {
  return append({.op = StepOp::kRealLess, .kind = StepKind::kBool, .args = {a, b}});
}
StepId IntervalProgram::real_less_equal(StepId a, StepId b) {
  return append({.op = StepOp::kRealLessEqual, .kind = StepKind::kBool, .args = {a, b}});
}

StepId IntervalProgram::both(StepId a, StepId b) {
  if (is_constant(a, 0) || is_constant(b, 1) || a == b) return a;
  if (is_constant(b, 0) || is_constant(a, 1)) return b;
  return append({.op = StepOp::kAnd, .kind = StepKind::kBool, .args = {a, b}});
}

StepId IntervalProgram::either(StepId a, StepId b) {
  if (is_constant(a, 1) || is_constant(b, 0) || a == b) return a;
  if (is_constant(b, 1) || is_constant(a, 0)) return b;
  return append({.op = StepOp::kOr, .kind = StepKind::kBool, .args = {a, b}});
}

StepId IntervalProgram::negation(StepId a) {
  const Step& x = (*this)[a];
  if (x.op == StepOp::kBool) return boolean(x.value == 0);
  if (x.op == StepOp::kNot) return x.args[0];
  return append({.op = StepOp::kNot, .kind = StepKind::kBool, .args = {a}});
}

StepId IntervalProgram::select(StepId condition, StepId then, StepId otherwise) {
  if (is_constant(condition, 1) || then == otherwise) return then;
  if (is_constant(condition, 0)) return otherwise;
  const Step &x = (*this)[then], &y = (*this)[otherwise];
  return append({.op = StepOp::kSelect,
                 .kind = x.kind,
                 .args = {condition, then, otherwise},
                 .lo = std::min(x.lo, y.lo),
                 .hi = std::max(x.hi, y.hi),
                 .wide = x.wide || y.wide});
}

StepId IntervalProgram::tensor_range(int slot, Type element, bool from_blocks,
                                     std::vector<StepId> box) {
  return append({.op = StepOp::kTensorRange,
                 .kind = StepKind::kPair,
                 .args = std::move(box),
                 .value = from_blocks,
                 .slot = slot,
                 .element = element});
}

StepId IntervalProgram::range_end(StepOp which, StepId range) {
  const Type element = (*this)[range].element;
  Step step = {.op = which, .args = {range}};
  if (element == Type::kFloat32) {
    step.kind = StepKind::kReal;
  } else {
    step.lo = element == Type::kBool ? 0 : kInt32Min;
    step.hi = element == Type::kBool ? 1 : kInt32Max;
  }
  return append(std::move(step));
}

namespace {

double widened(const Step& step, double x) {
  const Roundoff roundoff = step.value ? kCoarse : kRoundoff;
  const double margin = std::abs(x) * roundoff.relative + roundoff.absolute;
  return step.op == StepOp::kWidenDown ? x - margin : x + margin;
}

RealInterval everything(Type element) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  if (element == Type::kFloat32) return {kNan, kNan};
  return element == Type::kBool
             ? RealInterval{0, 1}
             : RealInterval{static_cast<double>(kInt32Min), static_cast<double>(kInt32Max)};
}

RealInterval tensor_values(const Step& step, const TileBox& box,
                           const std::vector<StepValue>& values) {
  if (!box.tensor_range) return everything(step.element);
  std::vector<IntInterval> indices;
  for (std::size_t i = 0; i + 1 < step.args.size(); i += 2) {
    indices.push_back({values[static_cast<std::size_t>(step.args[i])].integer,
                       values[static_cast<std::size_t>(step.args[i + 1])].integer});
  }
  return box.tensor_range(step.slot, indices);
}

// What a uniform expression sees of a box.
Point point_of(const TileBox& box) {
  Point point;
  point.b = box.b;
  point.h = box.h;
  point.h_kv = box.h_kv;
  point.q_len = box.q_len;
  point.kv_len = box.kv_len;
  point.scalars = box.scalars;
  return point;
}

// NaN when either is.
double propagating(double a, double b, bool smaller) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return smaller ? std::min(a, b) : std::max(a, b);
}

}  // namespace

StepValue value_of(const Step& step, const TileBox& box, const std::vector<StepValue>& values) {
  StepValue out;
  const auto arg = [&](std::size_t i) -> const StepValue& {
    return values[static_cast<std::size_t>(step.args[i])];
  };
  const auto integer = [&](std::size_t i) { return arg(i).integer; };
  const auto real = [&](std::size_t i) { return arg(i).real; };
  switch (step.op) {
    case StepOp::kInt:
    case StepOp::kBool:
      out.integer = step.value;
      break;
    case StepOp::kReal:
      out.real = step.real;
      break;
    case StepOp::kQFirst:
      out.integer = box.q0;
      break;
    case StepOp::kQLast:
      out.integer = box.q1 - 1;
      break;
    case StepOp::kKvFirst:
      out.integer = box.k0;
      break;
    case StepOp::kKvLast:
      out.integer = box.k1 - 1;
      break;
    case StepOp::kUniform:
      out.real = evaluate(step.expression, point_of(box));
      if (step.kind != StepKind::kReal) out.integer = static_cast<std::int64_t>(out.real);
      break;
    case StepOp::kAdd:
      out.integer = integer(0) + integer(1);
      break;
    case StepOp::kSubtract:
      out.integer = integer(0) - integer(1);
      break;
    case StepOp::kMultiply:
      out.integer = integer(0) * integer(1);
      break;
    case StepOp::kFloorDivide:
      out.integer = floor_divide(integer(0), integer(1));
      break;
    case StepOp::kMin:
      out.integer = std::min(integer(0), integer(1));
      break;
    case StepOp::kMax:
      out.integer = std::max(integer(0), integer(1));
      break;
    case StepOp::kNarrow:
      out.integer = wrap_int32(integer(0));
      break;
    case StepOp::kToReal:
      out.real = static_cast<double>(integer(0));
      break;
    case StepOp::kRealAdd:
      out.real = real(0) + real(1);
      break;
    case StepOp::kRealSubtract:
      out.real = real(0) - real(1);
      break;
    case StepOp::kRealMultiply:
      out.real = real(0) * real(1);
      break;
    case StepOp::kRealDivide:
      out.real = real(0) / real(1);
      break;
    case StepOp::kRealPower:
      out.real = std::pow(real(0), real(1));
      break;
    case StepOp::kRealMin:
      out.real = propagating(real(0), real(1), true);
      break;
    case StepOp::kRealMax:
      out.real = propagating(real(0), real(1), false);
      break;
    case StepOp::kRealNegate:
      out.real = -real(0);
      break;
    case StepOp::kRealFunction:
      out.real = apply_unary(step.function, Type::kFloat32, real(0));
      break;
    case StepOp::kWidenDown:
    case StepOp::kWidenUp:
      out.real = widened(step, real(0));
      break;
    case StepOp::kFloorToInt:
      out.integer = floor_saturating(real(0));
      break;
    case StepOp::kLess:
      out.integer = integer(0) < integer(1);
      break;
    case StepOp::kLessEqual:
      out.integer = integer(0) <= integer(1);
      break;
    case StepOp::kEqual:
      out.integer = integer(0) == integer(1);
      break;
    case StepOp::kRealLess:
      out.integer = real(0) < real(1);
      break;
    case StepOp::kRealLessEqual:
      out.integer = real(0) <= real(1);
      break;
    case StepOp::kAnd:
      out.integer = integer(0) & integer(1);
      break;
    case StepOp::kOr:
      out.integer = integer(0) | integer(1);
      break;
    case StepOp::kNot:
      out.integer = integer(0) == 0;
      break;
    case StepOp::kSelect:
      out = arg(integer(0) != 0 ? 1 : 2);
      break;
    case StepOp::kTensorRange:
      out.range = tensor_values(step, box, values);
      break;
    case StepOp::kRangeLo:
    case StepOp::kRangeHi: {
      const RealInterval& range = arg(0).range;
      out.real = step.op == StepOp::kRangeLo ? range.lo : range.hi;
      if (step.kind == StepKind::kInt) out.integer = static_cast<std::int64_t>(out.real);
      break;
    }
  }
  return out;
}

std::vector<StepValue> run(const IntervalProgram& program, const TileBox& box) {
  std::vector<StepValue> values;
  values.reserve(program.steps().size());
  for (const Step& step : program.steps()) values.push_back(value_of(step, box, values));
  return values;
}

}  // namespace attune::expr
