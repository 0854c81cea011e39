#include "generator/expr/build.hpp"

#include <cmath>
#include <utility>

#include "generator/expr/arithmetic.hpp"

namespace attune::expr {
namespace {

std::shared_ptr<Node> blank(Op op, Type type, SourceSpan span) {
  auto node = std::make_shared<Node>();
  node->op = op;
  node->type = type;
  node->span = span;
  return node;
}

Expr make_constant(Type type, double value, SourceSpan span) {
  switch (type) {
    case Type::kInt32:
      return make_int(static_cast<std::int64_t>(value), span);
    case Type::kBool:
      return make_bool(value != 0, span);
    case Type::kFloat32:
      break;
  }
  return make_float(value, span);
}

Type result_type(Op op, Type operand) {
  if (is_comparison(op)) return Type::kBool;
  if (op == Op::kToFloat) return Type::kFloat32;
  if (op == Op::kFloor) return Type::kInt32;
  return operand;
}

bool finite_as_float32(double value) { return std::isfinite(static_cast<float>(value)); }

bool is_float(const Expr& expression, double value) {
  return expression->op == Op::kFloat && expression->float_value == value;
}

// base^exponent as a product, a square root or an exp2; null where it is none of them.
Expr simpler_power(const Expr& base, const Expr& exponent, SourceSpan span) {
  constexpr double kMostFactors = 8;
  if (is_constant(base) && is_constant(exponent)) return nullptr;
  if (is_float(base, 2)) return make_unary(Op::kExp2, exponent, span);
  if (!is_constant(exponent)) return nullptr;
  const double y = constant_value(exponent);
  if (y == 0) return make_float(1, span);
  if (y == 0.5) return make_unary(Op::kSqrt, base, span);
  if (y != std::trunc(y) || std::abs(y) > kMostFactors) return nullptr;
  // By squaring: x^6 is (x^2 x)^2.
  Expr product;
  for (int bit = 8; bit > 0; bit /= 2) {
    if (product) product = make_binary(Op::kMultiply, product, product, span);
    if (static_cast<int>(std::abs(y)) & bit)
      product = product ? make_binary(Op::kMultiply, product, base, span) : base;
  }
  return y > 0 ? product : make_binary(Op::kDivide, make_float(1), product, span);
}

// Bits that a constant picks, as the arithmetic that is analysed best; null where it is none.
Expr bits_as_arithmetic(Op op, const Expr& left, const Expr& right, SourceSpan span) {
  const auto power = [](std::int64_t bits) { return make_int(std::int64_t{1} << bits); };
  if (op == Op::kShiftLeft || op == Op::kShiftRight) {
    if (right->op != Op::kInt) return nullptr;
    const std::int64_t bits = right->int_value;
    const bool is_out = bits < 0 || bits > 31;
    if (op == Op::kShiftLeft)
      return is_out ? make_int(0, span) : make_binary(Op::kMultiply, left, power(bits), span);
    return is_out || bits == 31 ? nullptr : make_binary(Op::kFloorDivide, left, power(bits), span);
  }
  if (equal(left, right)) return op == Op::kBitXor ? make_int(0, span) : left;
  if (left->op != Op::kInt && right->op != Op::kInt) return nullptr;
  const Expr& value = left->op == Op::kInt ? right : left;
  const std::int64_t mask = (left->op == Op::kInt ? left : right)->int_value;
  if (mask == 0) return op == Op::kBitAnd ? make_int(0, span) : value;
  if (mask == -1) {
    if (op == Op::kBitXor) return make_binary(Op::kSubtract, make_int(-1), value, span);
    return op == Op::kBitAnd ? value : make_int(-1, span);
  }
  if (op != Op::kBitAnd) return nullptr;
  const auto is_power = [](std::int64_t x) { return x > 0 && x <= 1 << 30 && (x & (x - 1)) == 0; };
  if (is_power(mask + 1)) return make_binary(Op::kModulo, value, make_int(mask + 1), span);
  if (!is_power(-mask)) return nullptr;
  const Expr unit = make_int(-mask);
  return make_binary(Op::kMultiply, make_binary(Op::kFloorDivide, value, unit, span), unit, span);
}

// left == right of bools one of which is known, or which are the same; else null.
Expr known_equality(const Expr& left, const Expr& right, SourceSpan span) {
  if (equal(left, right)) return make_bool(true, span);
  if (left->op == Op::kBool) return left->int_value ? right : make_unary(Op::kNot, right, span);
  if (right->op == Op::kBool) return right->int_value ? left : make_unary(Op::kNot, left, span);
  return nullptr;
}

// The operand that `left op right` equals, or null. Only rules that hold for every value, NaN and
// signed zeros included.
Expr identity(Op op, const Expr& left, const Expr& right) {
  switch (op) {
    case Op::kAdd:
      if (is_int(left, 0)) return right;
      if (is_int(right, 0)) return left;
      break;
    case Op::kSubtract:
      if (is_int(right, 0)) return left;
      break;
    case Op::kMultiply:
      if (is_int(left, 1) || is_float(left, 1) || is_int(right, 0)) return right;
      if (is_int(right, 1) || is_float(right, 1) || is_int(left, 0)) return left;
      break;
    case Op::kDivide:
      if (is_float(right, 1)) return left;
      break;
    case Op::kFloorDivide:
      if (is_int(right, 1)) return left;
      break;
    case Op::kMin:
    case Op::kMax:
      if (equal(left, right)) return left;
      break;
    case Op::kAnd:
      if (left->op == Op::kBool) return left->int_value ? right : left;
      if (right->op == Op::kBool) return right->int_value ? left : right;
      if (equal(left, right)) return left;
      break;
    case Op::kOr:
      if (left->op == Op::kBool) return left->int_value ? left : right;
      if (right->op == Op::kBool) return right->int_value ? right : left;
      if (equal(left, right)) return left;
      break;
    default:
      break;
  }
  return nullptr;
}

}  // namespace

bool is_constant(const Expr& e) {
  return e->op == Op::kInt || e->op == Op::kFloat || e->op == Op::kBool;
}

double constant_value(const Expr& e) {
  return e->op == Op::kFloat ? e->float_value : static_cast<double>(e->int_value);
}

bool is_normal_float(double value) { return std::isnormal(static_cast<float>(value)); }

bool is_one(const Expr& e) { return is_constant(e) && constant_value(e) == 1; }

bool is_int(const Expr& e, std::int64_t value) {
  return e->op == Op::kInt && e->int_value == value;
}

bool is_comparison(Op op) { return op >= Op::kEqual && op <= Op::kGreaterEqual; }

void collect_operands(const Expr& e, std::vector<Expr>& operands) {
  if (e->op != Op::kAnd) return operands.push_back(e);
  for (const Expr& arg : e->args) collect_operands(arg, operands);
}

Expr make_int(std::int64_t value, SourceSpan span) {
  auto node = blank(Op::kInt, Type::kInt32, span);
  node->int_value = wrap_int32(value);
  return node;
}

Expr make_float(double value, SourceSpan span) {
  auto node = blank(Op::kFloat, Type::kFloat32, span);
  node->float_value = static_cast<float>(value);
  return node;
}

Expr make_bool(bool value, SourceSpan span) {
  auto node = blank(Op::kBool, Type::kBool, span);
  node->int_value = value;
  return node;
}

Expr make_variable(Variable variable, SourceSpan span) {
  auto node =
      blank(Op::kVariable, variable == Variable::kScore ? Type::kFloat32 : Type::kInt32, span);
  node->variable = variable;
  return node;
}

Expr make_part_variable(Variable variable, int part, SourceSpan span) {
  auto node = blank(Op::kVariable, Type::kInt32, span);
  node->variable = variable;
  node->int_value = part;
  return node;
}

Expr make_scalar(int slot, Type type, SourceSpan span) {
  auto node = blank(Op::kScalar, type, span);
  node->slot = slot;
  return node;
}

Expr make_load(int slot, Type type, std::vector<Expr> indices, std::uint32_t clamped,
               SourceSpan span) {
  auto node = blank(Op::kLoad, type, span);
  node->slot = slot;
  node->clamped = clamped;
  node->args = std::move(indices);
  return node;
}

Expr make_unary(Op op, Expr operand, SourceSpan span) {
  const Type type = result_type(op, operand->type);
  if (is_constant(operand)) {
    const double value = apply_unary(op, operand->type, constant_value(operand));
    if (type != Type::kFloat32 || finite_as_float32(value)) return make_constant(type, value, span);
  }
  if ((op == Op::kNot || op == Op::kNegate) && operand->op == op) return operand->args[0];
  auto node = blank(op, type, span);
  node->args.push_back(std::move(operand));
  return node;
}

Expr make_binary(Op op, Expr left, Expr right, SourceSpan span) {
  const Type type = result_type(op, left->type);
  if (is_constant(left) && is_constant(right)) {
    const double value = apply_binary(op, left->type, constant_value(left), constant_value(right));
    if (type != Type::kFloat32 || finite_as_float32(value)) return make_constant(type, value, span);
  }
  if (Expr same = identity(op, left, right)) return same;
  if (op == Op::kModulo && is_int(right, 1)) return make_int(0, span);
  if (op >= Op::kShiftLeft && op <= Op::kBitXor) {
    if (Expr simpler = bits_as_arithmetic(op, left, right, span)) return simpler;
  }
  if (left->type == Type::kBool && (op == Op::kEqual || op == Op::kNotEqual)) {
    if (Expr known = known_equality(left, right, span))
      return op == Op::kEqual ? known : make_unary(Op::kNot, known, span);
  }
  if (op == Op::kPower) {
    if (Expr simpler = simpler_power(left, right, span)) return simpler;
  }
  auto node = blank(op, type, span);
  node->args.push_back(std::move(left));
  node->args.push_back(std::move(right));
  return node;
}

Expr make_select(Expr condition, Expr then, Expr otherwise, SourceSpan span) {
  if (condition->op == Op::kBool) return condition->int_value ? then : otherwise;
  if (equal(then, otherwise)) return then;
  auto node = blank(Op::kSelect, then->type, span);
  node->args = {std::move(condition), std::move(then), std::move(otherwise)};
  return node;
}

bool equal(const Expr& a, const Expr& b) {
  if (a == b) return true;
  if (a->op != b->op || a->type != b->type || a->float_value != b->float_value ||
      a->variable != b->variable || a->slot != b->slot || a->args.size() != b->args.size())
    return false;
  if (a->int_value != b->int_value && a->op != Op::kVariable) return false;
  for (std::size_t i = 0; i < a->args.size(); ++i)
    if (!equal(a->args[i], b->args[i])) return false;
  return true;
}

}  // namespace attune::expr
