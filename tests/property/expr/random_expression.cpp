#include "tests/property/expr/random_expression.hpp"

#include <algorithm>
#include <iterator>

#include "generator/expr/build.hpp"

namespace attune::expr {
namespace {

Expr raw(Op op, Type type, std::vector<Expr> args) {
  auto node = std::make_shared<Node>();
  node->op = op;
  node->type = type;
  node->args = std::move(args);
  return node;
}

}  // namespace

const Environment& random_environment() {
  static const Environment environment = {
      .scalars = {{.name = "w", .type = Type::kInt32},
                  {.name = "x", .type = Type::kFloat32},
                  {.name = "on", .type = Type::kBool}},
      .tensors = {
          {.name = "doc",
           .type = TensorType::kInt32,
           .dims = {{.dim = Dim::kBatch}, {.dim = Dim::kKvLen}}},
          {.name = "lengths", .type = TensorType::kInt32, .dims = {{.dim = Dim::kBatch}}},
          {.name = "value", .type = TensorType::kFloat32, .dims = {{.dim = Dim::kKvLen}}},
          {.name = "table",
           .type = TensorType::kBool,
           .dims = {{.dim = Dim::kNumber, .number = 8}, {.dim = Dim::kNumber, .number = 8}}},
          {.name = "flag",
           .type = TensorType::kBool,
           .dims = {{.dim = Dim::kHeads}, {.dim = Dim::kQLen}}}}};
  return environment;
}

rc::Gen<Tape> any_tape() {
  return rc::gen::container<Tape>(400, rc::gen::inRange<std::uint32_t>(0, 0xffffffffu));
}

std::uint32_t RandomExpression::draw(std::uint32_t below) {
  return at_ < tape_.size() ? tape_[at_++] % below : 0;
}

Expr RandomExpression::load(int slot, int depth) {
  const TensorDecl& tensor = random_environment().tensors[static_cast<std::size_t>(slot)];
  std::vector<Expr> indices;
  for (std::size_t i = 0; i < tensor.dims.size(); ++i) {
    if (draw(3) == 0) {
      indices.push_back(integer(depth - 1));
      continue;
    }
    constexpr Variable kUsual[] = {Variable::kQIdx, Variable::kKvIdx, Variable::kBatch,
                                   Variable::kHead};
    const Expr position = make_variable(kUsual[draw(4)]);
    indices.push_back(tensor.dims[i].dim == Dim::kNumber
                          ? make_binary(Op::kFloorDivide, position, make_int(8 + draw(60)))
                          : position);
  }
  return make_load(slot, element_type(tensor.type), std::move(indices), 0xf);
}

Expr RandomExpression::boolean(int depth) {
  if (depth <= 0 && draw(10) == 0) return make_bool(draw(2) == 1);
  switch (draw(depth <= 0 ? 1 : 13)) {
    case 12:
      return raw(draw(2) ? Op::kEqual : Op::kNotEqual, Type::kBool,
                 {boolean(depth - 1), boolean(depth - 1)});
    case 1:
    case 2:
      return raw(Op::kAnd, Type::kBool, {boolean(depth - 1), boolean(depth - 1)});
    case 3:
    case 4:
      return raw(Op::kOr, Type::kBool, {boolean(depth - 1), boolean(depth - 1)});
    case 5:
      return raw(Op::kNot, Type::kBool, {boolean(depth - 1)});
    case 6:
      return raw(Op::kSelect, Type::kBool,
                 {boolean(depth - 1), boolean(depth - 1), boolean(depth - 1)});
    case 7:
      if (options_.loads) return load(draw(2) == 0 ? 3 : 4, depth);
      [[fallthrough]];
    case 8:
      if (draw(4) == 0) return make_scalar(2, Type::kBool);
      [[fallthrough]];
    default:
      break;
  }
  const auto op = static_cast<Op>(static_cast<int>(Op::kEqual) + static_cast<int>(draw(6)));
  // Deep enough to be worth comparing, however deep the comparison itself stands.
  const int inner = std::max(depth - 1, 2);
  if (options_.floats && draw(4) == 0) return raw(op, Type::kBool, {real(inner), real(inner)});
  return raw(op, Type::kBool, {integer(inner), integer(inner)});
}

Expr RandomExpression::integer(int depth) {
  if (depth > 0) {
    switch (draw(18)) {
      case 16: {
        constexpr Op kBits[] = {Op::kBitAnd, Op::kBitOr, Op::kBitXor};
        return raw(kBits[draw(3)], Type::kInt32,
                   {integer(depth - 1),
                    draw(2) ? make_int(draw(100) - std::int64_t{50}) : integer(depth - 1)});
      }
      case 17:
        return raw(draw(2) ? Op::kShiftLeft : Op::kShiftRight, Type::kInt32,
                   {integer(depth - 1),
                    draw(2) ? make_int(draw(40) - std::int64_t{4}) : integer(depth - 1)});
      case 1:
      case 2:
      case 3:
        return raw(Op::kAdd, Type::kInt32, {integer(depth - 1), integer(depth - 1)});
      case 4:
      case 5:
      case 6:
        return raw(Op::kSubtract, Type::kInt32, {integer(depth - 1), integer(depth - 1)});
      case 7:
        return raw(Op::kMultiply, Type::kInt32, {integer(depth - 1), integer(depth - 1)});
      case 8:
        return raw(Op::kFloorDivide, Type::kInt32,
                   {integer(depth - 1), draw(2) ? make_int(1 + draw(20)) : integer(depth - 1)});
      case 9:
        return raw(Op::kModulo, Type::kInt32,
                   {integer(depth - 1), draw(2) ? make_int(1 + draw(20)) : integer(depth - 1)});
      case 10:
        return raw(draw(2) ? Op::kMin : Op::kMax, Type::kInt32,
                   {integer(depth - 1), integer(depth - 1)});
      case 11:
        return raw(draw(2) ? Op::kAbs : Op::kNegate, Type::kInt32, {integer(depth - 1)});
      case 12:
        return raw(Op::kSelect, Type::kInt32,
                   {boolean(depth - 1), integer(depth - 1), integer(depth - 1)});
      case 13:
        if (options_.floats) return raw(Op::kFloor, Type::kInt32, {real(depth - 1)});
        break;
      case 14:
        if (options_.loads) return load(static_cast<int>(draw(2)), depth);
        break;
      default:
        break;
    }
  }
  switch (draw(12)) {
    case 0:
    case 1:
    case 2:
      return make_variable(Variable::kQIdx);
    case 3:
    case 4:
    case 5:
      return make_variable(Variable::kKvIdx);
    case 6:
      return make_variable(draw(2) ? Variable::kQLen : Variable::kKvLen);
    case 7:
      return make_variable(draw(2) ? Variable::kHead : Variable::kBatch);
    case 8:
      return make_scalar(0, Type::kInt32);
    case 9:
      return make_int(static_cast<std::int64_t>(draw(0xffffffffu)));  // any int32, by wrapping
    default:
      return make_int(static_cast<std::int64_t>(draw(40)) - 8);
  }
}

Expr RandomExpression::real(int depth) {
  if (depth > 0) {
    constexpr Op kFunctions[] = {Op::kTanh, Op::kSigmoid, Op::kSoftplus, Op::kErf,
                                 Op::kExp,  Op::kExp2,    Op::kLog,      Op::kLog2,
                                 Op::kSqrt, Op::kSin,     Op::kCos};
    constexpr std::uint32_t kSmoothFunctions = 4, kWaves = 2;
    constexpr Op kArithmetic[] = {Op::kAdd, Op::kSubtract, Op::kMultiply, Op::kDivide,
                                  Op::kMin, Op::kMax,      Op::kPower};
    switch (draw(8)) {
      case 1:
      case 2:
      case 3: {
        const Op op = kArithmetic[draw(options_.smooth ? 3 : 7)];
        return raw(op, Type::kFloat32, {real(depth - 1), real(depth - 1)});
      }
      case 4: {
        const auto functions = static_cast<std::uint32_t>(std::size(kFunctions));
        const std::uint32_t most = options_.waves ? functions : functions - kWaves;
        const Op function = kFunctions[draw(options_.smooth ? kSmoothFunctions : most)];
        return raw(function, Type::kFloat32, {real(depth - 1)});
      }
      case 5:
        return raw(draw(2) ? Op::kAbs : Op::kNegate, Type::kFloat32, {real(depth - 1)});
      case 6:
        return raw(Op::kSelect, Type::kFloat32,
                   {options_.smooth ? raw(Op::kLess, Type::kBool, {integer(0), integer(0)})
                                    : boolean(depth - 1),
                    real(depth - 1), real(depth - 1)});
      case 7:
        if (options_.loads && !options_.smooth) return load(2, depth);
        break;
      default:
        break;
    }
  }
  switch (draw(5)) {
    case 0:
      return make_float(static_cast<double>(draw(2000)) / 64 - 8);
    case 1:
      return make_scalar(1, Type::kFloat32);
    case 2:
      if (options_.score) return make_variable(Variable::kScore);
      [[fallthrough]];
    default:
      return raw(Op::kToFloat, Type::kFloat32,
                 {options_.smooth ? make_variable(draw(2) ? Variable::kQIdx : Variable::kKvIdx)
                                  : integer(depth - 1)});
  }
}

Expr RandomExpression::affine_sum() {
  const auto scaled = [&](Variable v) {
    const auto factor = static_cast<std::int64_t>(draw(9)) - 4;
    return make_binary(Op::kMultiply, make_int(factor), make_variable(v));
  };
  const Expr offset = draw(2) ? make_int(static_cast<std::int64_t>(draw(80)) - 40)
                              : make_binary(Op::kSubtract, make_variable(Variable::kKvLen),
                                            make_variable(Variable::kQLen));
  return make_binary(
      Op::kAdd, make_binary(Op::kAdd, scaled(Variable::kQIdx), scaled(Variable::kKvIdx)), offset);
}

Expr RandomExpression::affine_order(bool with_key) {
  const auto op = static_cast<Op>(static_cast<int>(Op::kLess) + static_cast<int>(draw(4)));
  Expr left = affine_sum();
  if (with_key)
    left = make_binary(Op::kAdd, left,
                       make_binary(Op::kMultiply, make_int(9), make_variable(Variable::kKvIdx)));
  return make_binary(op, left, affine_sum());
}

Expr rebuilt(const Expr& e) {
  std::vector<Expr> args;
  for (const Expr& arg : e->args) args.push_back(rebuilt(arg));
  switch (e->op) {
    case Op::kInt:
    case Op::kFloat:
    case Op::kBool:
    case Op::kVariable:
    case Op::kScalar:
      return e;
    case Op::kLoad:
      return make_load(e->slot, e->type, std::move(args), e->clamped);
    case Op::kSelect:
      return make_select(args[0], args[1], args[2]);
    default:
      return args.size() == 1 ? make_unary(e->op, args[0]) : make_binary(e->op, args[0], args[1]);
  }
}

}  // namespace attune::expr
