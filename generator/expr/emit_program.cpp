#include "generator/expr/emit_program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "generator/expr/arithmetic.hpp"
#include "generator/expr/emit_value.hpp"

namespace attune::expr {
namespace {

class ProgramEmitter {
 public:
  ProgramEmitter(const IntervalProgram& program, const Environment& environment, std::string& lines,
                 std::span<const int> ascending)
      : p_(program),
        environment_(environment),
        lines_(lines),
        ascending_(ascending),
        values_(environment, lines),
        uses_(program.steps().size()),
        names_(program.steps().size()) {}

  void count(StepId id) {
    if (++uses_[index(id)] > 1) return;
    if (p_[id].op == StepOp::kUniform) values_.count(p_[id].expression);
    for (const StepId arg : p_[id].args) count(arg);
  }

  std::string value(StepId id) {
    if (!names_[index(id)].empty()) return names_[index(id)];
    const Step& step = p_[id];
    std::string text = plain(step);
    const bool is_leaf = (step.args.empty() && step.op != StepOp::kTensorRange) ||
                         step.op == StepOp::kRangeLo || step.op == StepOp::kRangeHi;
    if (is_leaf || (uses_[index(id)] == 1 && step.op != StepOp::kTensorRange)) return text;
    const std::string name = fmt::format("v{}", id);
    lines_ += fmt::format("  const {} {} = {};\n", type_of(step), name, unbracketed(text));
    return names_[index(id)] = name;
  }

 private:
  static std::size_t index(StepId id) { return static_cast<std::size_t>(id); }

  static std::string_view type_of(const Step& step) {
    switch (step.kind) {
      case StepKind::kInt:
        return step.wide ? "long long" : "int";
      case StepKind::kReal:
        return "float";
      case StepKind::kBool:
        return "bool";
      case StepKind::kPair:
        break;
    }
    return step.element == Type::kFloat32 ? "FloatRange" : "IntRange";
  }

  std::string plain(const Step& step) {
    std::vector<std::string> args;
    for (const StepId arg : step.args) args.push_back(value(arg));
    switch (step.op) {
      case StepOp::kInt:
        return step.wide ? fmt::format("{}{}ll{}", step.value < 0 ? "(" : "", step.value,
                                       step.value < 0 ? ")" : "")
                         : int_literal(step.value);
      case StepOp::kReal:
        return std::isnan(step.real) ? "not_a_number()" : float_literal(step.real);
      case StepOp::kBool:
        return step.value ? "true" : "false";
      case StepOp::kQFirst:
        return "q_first";
      case StepOp::kQLast:
        return "q_last";
      case StepOp::kKvFirst:
        return "kv_first";
      case StepOp::kKvLast:
        return "kv_last";
      case StepOp::kUniform:
        return values_.value(step.expression);
      case StepOp::kAdd: {
        const Step& right = p_[step.args[1]];
        if (right.op == StepOp::kInt && right.value < 0 && right.value > kInt32Min)
          return arithmetic(step, {args[0], fmt::format("{}", -right.value)}, '-');
        return arithmetic(step, args, '+');
      }
      case StepOp::kSubtract:
        if (p_.is_constant(step.args[0], 0) && !step.wide) return fmt::format("(-{})", args[1]);
        return arithmetic(step, args, '-');
      case StepOp::kMultiply:
        return arithmetic(step, args, '*');
      case StepOp::kFloorDivide:
        return quotient(step, args);
      case StepOp::kMin:
        return fmt::format("min_{}({}, {})", step.wide ? "i64" : "i32", args[0], args[1]);
      case StepOp::kMax:
        return fmt::format("max_{}({}, {})", step.wide ? "i64" : "i32", args[0], args[1]);
      case StepOp::kNarrow:
      case StepOp::kToReal:
        return fmt::format("static_cast<{}>({})", step.op == StepOp::kNarrow ? "int" : "float",
                           unbracketed(args[0]));
      case StepOp::kRealAdd:
        return fmt::format("({} + {})", args[0], args[1]);
      case StepOp::kRealSubtract:
        return fmt::format("({} - {})", args[0], args[1]);
      case StepOp::kRealMultiply:
        return fmt::format("({} * {})", args[0], args[1]);
      case StepOp::kRealDivide:
        return fmt::format("math_divide({}, {})", args[0], args[1]);
      case StepOp::kRealPower:
        return fmt::format("math_pow({}, {})", args[0], args[1]);
      case StepOp::kRealMin:
        return fmt::format("range_min({}, {})", args[0], args[1]);
      case StepOp::kRealMax:
        return fmt::format("range_max({}, {})", args[0], args[1]);
      case StepOp::kRealNegate:
        return fmt::format("(-{})", args[0]);
      case StepOp::kRealFunction:
        return fmt::format("{}({})", function_name(step.function), args[0]);
      case StepOp::kWidenDown:
        return fmt::format("widen_{}down({})", step.value ? "coarsely_" : "", args[0]);
      case StepOp::kWidenUp:
        return fmt::format("widen_{}up({})", step.value ? "coarsely_" : "", args[0]);
      case StepOp::kFloorToInt:
        return fmt::format("math_floor({})", args[0]);
      case StepOp::kLess:
      case StepOp::kRealLess:
        return fmt::format("({} < {})", args[0], args[1]);
      case StepOp::kLessEqual:
      case StepOp::kRealLessEqual:
        return fmt::format("({} <= {})", args[0], args[1]);
      case StepOp::kEqual:
        return fmt::format("({} == {})", args[0], args[1]);
      case StepOp::kAnd:
        return fmt::format("({} && {})", args[0], args[1]);
      case StepOp::kOr:
        return fmt::format("({} || {})", args[0], args[1]);
      case StepOp::kNot:
        return fmt::format("(!{})", args[0]);
      case StepOp::kSelect:
        return fmt::format("({} ? {} : {})", args[0], args[1], args[2]);
      case StepOp::kTensorRange:
        return tensor_range(step, args);
      case StepOp::kRangeLo:
        return args[0] + ".lo";
      case StepOp::kRangeHi:
        break;
    }
    return args[0] + ".hi";
  }

  // 64-bit when the result or an operand is; then one cast makes the whole operation so.
  std::string arithmetic(const Step& step, const std::vector<std::string>& args, char op) const {
    const bool cast = step.wide && !p_[step.args[0]].wide && !p_[step.args[1]].wide;
    if (cast)
      return fmt::format("(static_cast<long long>({}) {} {})", unbracketed(args[0]), op, args[1]);
    return fmt::format("({} {} {})", args[0], op, args[1]);
  }

  std::string quotient(const Step& step, const std::vector<std::string>& args) const {
    const Step& divisor = p_[step.args[1]];
    if (!step.wide && divisor.op == StepOp::kInt && divisor.value > 0 && p_[step.args[0]].lo >= 0)
      return fmt::format("({} / {})", args[0], args[1]);
    return fmt::format("floor_divide{}({}, {})", step.wide ? "_i64" : "", args[0], args[1]);
  }

  std::string tensor_range(const Step& step, const std::vector<std::string>& args) const {
    std::string box;
    for (std::size_t i = 0; i + 1 < args.size(); i += 2)
      box += fmt::format("{}{{{}, {}}}", i == 0 ? "" : ", ", unbracketed(args[i]),
                         unbracketed(args[i + 1]));
    if (args.empty()) box = "{0, 0}";  // a tensor of one element, as if it had a dim
    if (std::ranges::find(ascending_, step.slot) != ascending_.end())
      return fmt::format("ascending_range(c.params.tensors[{}], {{{}}})", step.slot, box);
    const TensorType type = environment_.tensors[static_cast<std::size_t>(step.slot)].type;
    return fmt::format("tensor_range<{}, {}>(c.params.tensors[{}], {{{}}})", element_name(type),
                       step.value ? "true" : "false", step.slot, box);
  }

  const IntervalProgram& p_;
  const Environment& environment_;
  std::string& lines_;
  const std::span<const int> ascending_;
  ValueEmitter values_;
  std::vector<int> uses_;
  std::vector<std::string> names_;
};

}  // namespace

std::vector<std::string> emit_program(const MaskProgram& program, const Environment& environment,
                                      std::string& lines, std::span<const int> ascending) {
  ProgramEmitter emitter(program.program, environment, lines, ascending);
  for (const StepId id : program.results) emitter.count(id);
  std::vector<std::string> results;
  for (const StepId id : program.results) results.push_back(unbracketed(emitter.value(id)));
  return results;
}

}  // namespace attune::expr
