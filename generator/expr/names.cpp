#include "generator/expr/names.hpp"

#include <array>

namespace attune::expr {
namespace {

constexpr std::array<VariableName, 8> kVariables = {{{"score", Variable::kScore},
                                                     {"b", Variable::kBatch},
                                                     {"h", Variable::kHead},
                                                     {"h_kv", Variable::kKvHead},
                                                     {"q_idx", Variable::kQIdx},
                                                     {"kv_idx", Variable::kKvIdx},
                                                     {"q_len", Variable::kQLen},
                                                     {"kv_len", Variable::kKvLen}}};

constexpr std::array<FunctionName, 17> kFunctions = {{{"min", Op::kMin, 2},
                                                      {"max", Op::kMax, 2},
                                                      {"abs", Op::kAbs, 1},
                                                      {"exp", Op::kExp, 1},
                                                      {"exp2", Op::kExp2, 1},
                                                      {"log", Op::kLog, 1},
                                                      {"log2", Op::kLog2, 1},
                                                      {"sqrt", Op::kSqrt, 1},
                                                      {"tanh", Op::kTanh, 1},
                                                      {"sigmoid", Op::kSigmoid, 1},
                                                      {"softplus", Op::kSoftplus, 1},
                                                      {"sin", Op::kSin, 1},
                                                      {"cos", Op::kCos, 1},
                                                      {"erf", Op::kErf, 1},
                                                      {"pow", Op::kPower, 2},
                                                      {"floor", Op::kFloor, 1},
                                                      {"float", Op::kToFloat, 1}}};

}  // namespace

std::span<const VariableName> variable_names() { return kVariables; }
std::span<const FunctionName> function_names() { return kFunctions; }

std::string_view to_string(Variable variable) {
  if (variable == Variable::kQFirst) return "q_first";
  if (variable == Variable::kKvFirst) return "kv_first";
  return kVariables[static_cast<std::size_t>(variable)].name;
}

std::string_view to_string(Type type) {
  return type == Type::kInt32 ? "int32" : type == Type::kFloat32 ? "float32" : "bool";
}

std::string_view spelling(Op op) {
  switch (op) {
    case Op::kNegate:
    case Op::kSubtract:
      return "-";
    case Op::kNot:
      return "not";
    case Op::kAdd:
      return "+";
    case Op::kMultiply:
      return "*";
    case Op::kDivide:
      return "/";
    case Op::kFloorDivide:
      return "//";
    case Op::kModulo:
      return "%";
    case Op::kEqual:
      return "==";
    case Op::kNotEqual:
      return "!=";
    case Op::kLess:
      return "<";
    case Op::kLessEqual:
      return "<=";
    case Op::kGreater:
      return ">";
    case Op::kGreaterEqual:
      return ">=";
    case Op::kAnd:
      return "and";
    case Op::kOr:
      return "or";
    case Op::kShiftLeft:
      return "<<";
    case Op::kShiftRight:
      return ">>";
    case Op::kBitAnd:
      return "&";
    case Op::kBitOr:
      return "|";
    case Op::kBitXor:
      return "^";
    default:
      break;
  }
  for (const FunctionName& function : kFunctions)
    if (function.op == op) return function.name;
  return {};
}

}  // namespace attune::expr
