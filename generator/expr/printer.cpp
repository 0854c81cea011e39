#include <fmt/format.h>

#include "generator/expr/arithmetic.hpp"
#include "generator/expr/build.hpp"
#include "generator/expr/names.hpp"
#include "generator/expr/parser.hpp"

namespace attune::expr {
namespace {

// How tightly an operator binds; an operand that binds less tightly gets brackets.
enum Level {
  kLoosest,
  kOrLevel,
  kAndLevel,
  kNotLevel,
  kCompareLevel,
  kBitOrLevel,
  kBitXorLevel,
  kBitAndLevel,
  kShiftLevel,
  kSumLevel,
  kProductLevel,
  kUnaryLevel,
  kPrimaryLevel
};

Level level_of(const Expr& e) {
  switch (e->op) {
    case Op::kSelect:
      return kLoosest;
    case Op::kOr:
      return kOrLevel;
    case Op::kAnd:
      return kAndLevel;
    case Op::kNot:
      return kNotLevel;
    case Op::kBitOr:
      return kBitOrLevel;
    case Op::kBitXor:
      return kBitXorLevel;
    case Op::kBitAnd:
      return kBitAndLevel;
    case Op::kShiftLeft:
    case Op::kShiftRight:
      return kShiftLevel;
    case Op::kAdd:
    case Op::kSubtract:
      return kSumLevel;
    case Op::kMultiply:
    case Op::kDivide:
    case Op::kFloorDivide:
    case Op::kModulo:
      return kProductLevel;
    case Op::kNegate:
      return kUnaryLevel;
    case Op::kInt:
      // The smallest int32 has no literal.
      return e->int_value == kInt32Min ? kLoosest : e->int_value < 0 ? kUnaryLevel : kPrimaryLevel;
    case Op::kFloat:
      return std::signbit(e->float_value) ? kUnaryLevel : kPrimaryLevel;
    default:
      return is_comparison(e->op) ? kCompareLevel : kPrimaryLevel;
  }
}

std::string float_text(double value) {
  std::string text = fmt::format("{}", static_cast<float>(value));  // shortest that reads back
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

class Printer {
 public:
  explicit Printer(const Environment& environment) : environment_(environment) {}

  std::string operator()(const Expr& e, Level least = kLoosest) const {
    std::string text = plain(e);
    return level_of(e) < least ? "(" + text + ")" : text;
  }

 private:
  std::string plain(const Expr& e) const {
    switch (e->op) {
      case Op::kInt:
        return e->int_value == kInt32Min ? "-2147483647 - 1" : fmt::format("{}", e->int_value);
      case Op::kFloat:
        return float_text(e->float_value);
      case Op::kBool:
        return e->int_value ? "true" : "false";
      case Op::kVariable:
        return std::string(to_string(e->variable));
      case Op::kScalar:
        return environment_.scalars[static_cast<std::size_t>(e->slot)].name;
      case Op::kLoad:
        return environment_.tensors[static_cast<std::size_t>(e->slot)].name +
               (e->args.empty() ? "" : "[" + list(e) + "]");
      case Op::kNegate:
        return "-" + (*this)(e->args[0], kUnaryLevel);
      case Op::kNot:
        return "not " + (*this)(e->args[0], kNotLevel);
      case Op::kSelect:
        return fmt::format("{} if {} else {}", (*this)(e->args[1], kOrLevel),
                           (*this)(e->args[0], kOrLevel), (*this)(e->args[2]));
      default:
        break;
    }
    const Level level = level_of(e);
    if (level == kPrimaryLevel) return fmt::format("{}({})", spelling(e->op), list(e));
    // Left-associative; comparisons do not chain when printed.
    const auto tighter = static_cast<Level>(level + 1);
    return fmt::format("{} {} {}", (*this)(e->args[0], level == kCompareLevel ? tighter : level),
                       spelling(e->op), (*this)(e->args[1], tighter));
  }

  std::string list(const Expr& e) const {
    std::string text;
    for (const Expr& arg : e->args) text += (text.empty() ? "" : ", ") + (*this)(arg);
    return text;
  }

  const Environment& environment_;
};

}  // namespace

std::string print(const Expr& expression, const Environment& environment) {
  return Printer(environment)(expression);
}

}  // namespace attune::expr
