#include "generator/expr/emit_value.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "generator/expr/arithmetic.hpp"
#include "generator/expr/build.hpp"
#include "generator/expr/lowering.hpp"
#include "generator/expr/static_range.hpp"

namespace attune::expr {
namespace {

struct ByValue {
  bool operator()(const Expr& a, const Expr& b) const { return equal(a, b); }
};
struct HashByValue {
  std::size_t operator()(const Expr& e) const {
    std::size_t hash = static_cast<std::size_t>(e->op) * 31 + static_cast<std::size_t>(e->variable);
    const std::int64_t number = e->op == Op::kVariable ? 0 : e->int_value;  // as equal() has it
    hash = hash * 1000003 + static_cast<std::size_t>(number) + std::hash<double>()(e->float_value);
    hash = hash * 31 + static_cast<std::size_t>(e->slot);
    for (const Expr& arg : e->args) hash = hash * 1000003 + (*this)(arg);
    return hash;
  }
};

// Text that costs nothing to repeat.
bool is_leaf(const Expr& e) {
  return is_constant(e) || e->op == Op::kVariable || e->op == Op::kScalar;
}

// Of a tensor, whatever sequence the context is of.
std::string_view size_named(Dim dim) {
  switch (dim) {
    case Dim::kBatch:
      return "c.params.batch";
    case Dim::kHeads:
      return "c.params.heads";
    case Dim::kKvHeads:
      return "c.params.kv_heads";
    case Dim::kQLen:
      return "c.params.q_len";
    default:  // kKvLen
      return "c.params.kv_len";
  }
}
// Of the dim that is number `at` of a tensor's. What is computed of a size, the host has computed.
std::string size_of(const DimSize& dim, int slot, std::size_t at) {
  if (dim.dim == Dim::kNumber) return fmt::format("{}", dim.number);
  if (dim.is_plain()) return std::string(size_named(dim.dim));
  return fmt::format("c.params.tensors[{}].size[{}]", slot, at);
}

}  // namespace

std::string_view cpp_type(Type type) {
  return type == Type::kInt32 ? "int" : type == Type::kFloat32 ? "float" : "bool";
}

std::string_view element_name(TensorType type) {
  switch (type) {
    case TensorType::kInt32:
      return "int";
    case TensorType::kFloat32:
      return "float";
    case TensorType::kBool:
      return "bool";
    case TensorType::kFloat16:
      return "Float16";
    case TensorType::kBFloat16:
      break;
  }
  return "BFloat16";
}

std::string_view function_name(Op op) {
  switch (op) {
    case Op::kExp:
      return "math_exp";
    case Op::kExp2:
      return "math_exp2";
    case Op::kLog:
      return "math_log";
    case Op::kLog2:
      return "math_log2";
    case Op::kSqrt:
      return "math_sqrt";
    case Op::kTanh:
      return "math_tanh";
    case Op::kSigmoid:
      return "math_sigmoid";
    case Op::kSoftplus:
      return "math_softplus";
    case Op::kSin:
      return "math_sin";
    case Op::kCos:
      return "math_cos";
    case Op::kErf:
      return "math_erf";
    default:  // kFloor
      return "math_floor";
  }
}

class ValueEmitter::Impl {
 public:
  Impl(const Environment& environment, std::string& lines, Products products)
      : environment_(environment), lines_(lines), products_(products) {}

  void know(const Expr& e, std::string name) { names_.emplace(e, std::move(name)); }

  void count(const Expr& e) {
    if (names_.contains(e) || ++uses_[e] > 1) return;
    for (const Expr& arg : e->args) count(arg);
  }

  std::string value(const Expr& e) {
    const auto known = names_.find(e);
    if (known != names_.end()) return known->second;
    std::string text = plain(e);
    return is_leaf(e) || (uses_[e] == 1 && e->op != Op::kLoad) ? text : name(e, text);
  }

  // The index as the int that it is: what stands for a key has an operator + of its own.
  std::string offset(const Expr& e) {
    const Place at = place(e);
    if (at.row.empty()) return fmt::format("static_cast<long long>({})", unbracketed(at.index));
    return fmt::format("({} + static_cast<int>({}))", at.row, unbracketed(at.index));
  }

 private:
  std::string name(const Expr& e, const std::string& text) {
    const std::string made = fmt::format("t{}", made_++);
    lines_ += fmt::format("  const {} {} = {};\n", cpp_type(e->type), made, unbracketed(text));
    names_.emplace(e, made);
    return made;
  }

  // An arm of a select. It has a name, so that it is computed either way: a compiler that meets a
  // GPU's functions inside an arm, which are asm statements to it, makes a branch an element.
  std::string arm(const Expr& e) {
    const std::string text = value(e);
    return is_leaf(e) || names_.contains(e) ? text : name(e, text);
  }

  std::string plain(const Expr& e) {
    switch (e->op) {
      case Op::kInt:
        return int_literal(e->int_value);
      case Op::kFloat:
        return float_literal(e->float_value);
      case Op::kBool:
        return e->int_value ? "true" : "false";
      case Op::kVariable:
        return std::string(variable(e->variable));
      case Op::kScalar: {
        const std::string scalar = fmt::format("c.params.scalars[{}].as_", e->slot);
        if (e->type == Type::kBool) return fmt::format("({}int != 0)", scalar);
        return scalar + (e->type == Type::kFloat32 ? "float" : "int");
      }
      case Op::kLoad:
        return load(e);
      case Op::kSelect: {
        // Order of evaluation is the order of the text's declarations.
        const std::string condition = value(e->args[0]), then = arm(e->args[1]),
                          otherwise = arm(e->args[2]);
        return fmt::format("({} ? {} : {})", condition, then, otherwise);
      }
      default:
        break;
    }
    if (const auto limit = limit_of_abs(e)) {
      return fmt::format("is_within({}, {})", unbracketed(value(e->args[0]->args[0])), *limit);
    }
    const std::string a = value(e->args[0]);
    const bool is_float = e->args[0]->type == Type::kFloat32;
    if (e->args.size() == 1) return unary(e, a, is_float);
    const std::string b = value(e->args[1]);
    if (!is_comparison(e->op) || difference_fits(e->args[0], e->args[1])) {
      return binary(e, a, b, is_float);
    }
    return binary(e, as_int(e->args[0], a), as_int(e->args[1], b), is_float);
  }

  // Whether a comparison of two int32 may be done on their difference, as
  // templates/tile/columns.cuh does where one is a key or a query.
  static bool difference_fits(const Expr& a, const Expr& b) {
    if (a->type != Type::kInt32) return true;
    constexpr std::int64_t kMostColumn = 1024;
    const IntInterval x = static_range(a), y = static_range(b);
    return x.hi - y.lo <= kInt32Max - kMostColumn && x.lo - y.hi >= kInt32Min + kMostColumn;
  }
  static std::string as_int(const Expr& e, const std::string& text) {
    // Names and calls are ints already.
    const bool may_be_sum = text.front() == '(' || e->op == Op::kVariable;
    if (!may_be_sum || !depends_on_position(e)) return text;
    return fmt::format("static_cast<int>({})", unbracketed(text));
  }

  // The n of abs(x) <= n, of int32, where one unsigned comparison does.
  static std::optional<std::int64_t> limit_of_abs(const Expr& e) {
    if (e->op != Op::kLess && e->op != Op::kLessEqual) return std::nullopt;
    const Expr &abs = e->args[0], &limit = e->args[1];
    if (abs->op != Op::kAbs || abs->type != Type::kInt32 || limit->op != Op::kInt) {
      return std::nullopt;
    }
    const std::int64_t n = limit->int_value - (e->op == Op::kLess ? 1 : 0);
    if (n < 0 || n > kInt32Max / 2) return std::nullopt;
    if (static_range(abs->args[0]).lo == kInt32Min) return std::nullopt;  // whose abs wraps
    return n;
  }

  static std::string_view variable(Variable variable) {
    switch (variable) {
      case Variable::kScore:
        return "s";
      case Variable::kBatch:
        return "c.b";
      case Variable::kHead:
        return "c.h";
      case Variable::kKvHead:
        return "c.h_kv";
      case Variable::kQIdx:
        return "q_idx";
      case Variable::kKvIdx:
        return "kv_idx";
      case Variable::kQLen:
        return "c.q_len";
      case Variable::kQFirst:
        return "c.q_first";
      case Variable::kKvFirst:
        return "c.kv_first";
      case Variable::kKvLen:
        break;
    }
    return "c.kv_len";
  }

  static std::string unary(const Expr& e, const std::string& a, bool is_float) {
    switch (e->op) {
      case Op::kNegate:
        if (is_float || !may_wrap(e)) return fmt::format("(-{})", a);
        return fmt::format("subtract_i32(0, {})", a);
      case Op::kNot:
        return fmt::format("(!{})", a);
      case Op::kToFloat:
        return fmt::format("static_cast<float>({})", a);
      case Op::kAbs:
        return fmt::format("{}({})", is_float ? "math_abs" : "abs_i32", a);
      default:
        return fmt::format("{}({})", function_name(e->op), a);
    }
  }

  std::string binary(const Expr& e, const std::string& a, const std::string& b,
                     bool is_float) const {
    switch (e->op) {
      case Op::kAdd:
      case Op::kSubtract:
      case Op::kMultiply: {
        const int which = e->op == Op::kAdd ? 0 : e->op == Op::kSubtract ? 1 : 2;
        constexpr std::string_view kWrapping[] = {"add_i32", "subtract_i32", "multiply_i32"};
        if (!is_float && may_wrap(e)) return fmt::format("{}({}, {})", kWrapping[which], a, b);
        if (is_float && e->op == Op::kMultiply) return product(a, b);
        return fmt::format("({} {} {})", a, "+-*"[which], b);
      }
      case Op::kDivide:
        return divide(e, a, b);
      case Op::kFloorDivide:
      case Op::kModulo:
        return floor_pair(e, a, b);
      case Op::kPower:
        return power(e, a, b);
      case Op::kMin:
        return fmt::format("{}({}, {})", is_float ? "math_min" : "min_i32", a, b);
      case Op::kMax:
        return fmt::format("{}({}, {})", is_float ? "math_max" : "max_i32", a, b);
      case Op::kEqual:
        return fmt::format("({} == {})", a, b);
      case Op::kNotEqual:
        return fmt::format("({} != {})", a, b);
      case Op::kLess:
        return fmt::format("({} < {})", a, b);
      case Op::kLessEqual:
        return fmt::format("({} <= {})", a, b);
      case Op::kGreater:
        return fmt::format("({} > {})", a, b);
      case Op::kGreaterEqual:
        return fmt::format("({} >= {})", a, b);
      // Both sides can always be evaluated, and a branch an element costs more than it saves.
      case Op::kAnd:
        return fmt::format("({} & {})", a, b);
      case Op::kShiftLeft:
        return fmt::format("shift_left({}, {})", a, b);
      case Op::kShiftRight:
        return fmt::format("shift_right({}, {})", a, b);
      case Op::kBitAnd:
        return fmt::format("bit_and({}, {})", a, b);
      case Op::kBitOr:
        return fmt::format("bit_or({}, {})", a, b);
      case Op::kBitXor:
        return fmt::format("bit_xor({}, {})", a, b);
      default:  // kOr
        return fmt::format("({} | {})", a, b);
    }
  }

  std::string product(const std::string& a, const std::string& b) const {
    if (products_ == Products::kRounded)
      return fmt::format("rounded_product({}, {})", unbracketed(a), unbracketed(b));
    return fmt::format("({} * {})", a, b);
  }

  // By a constant: times its reciprocal, half an ulp more than a division and one instruction.
  std::string divide(const Expr& e, const std::string& a, const std::string& b) const {
    const Expr& divisor = e->args[1];
    if (divisor->op == Op::kFloat) {
      const auto reciprocal = static_cast<float>(1 / divisor->float_value);
      if (std::isnormal(reciprocal)) return product(a, float_literal(reciprocal));
    }
    return fmt::format("math_divide({}, {})", a, b);
  }

  // Of a constant: its logarithm is known exactly.
  static std::string power(const Expr& e, const std::string& a, const std::string& b) {
    const Expr& base = e->args[0];
    if (base->op == Op::kFloat && base->float_value > 0)
      return fmt::format("math_exp2({} * {})", b, float_literal(std::log2(base->float_value)));
    return fmt::format("math_pow({}, {})", a, b);
  }

  static std::string floor_pair(const Expr& e, const std::string& a, const std::string& b) {
    const bool quotient = e->op == Op::kFloorDivide;
    const Expr& divisor = e->args[1];
    if (divisor->op == Op::kInt && divisor->int_value > 0) {
      const auto n = static_cast<std::uint32_t>(divisor->int_value);
      if (std::has_single_bit(n))
        return quotient ? fmt::format("({} >> {})", a, std::countr_zero(n))
                        : fmt::format("({} & {})", a, n - 1);
      // Unsigned: one multiplication less than the signed rounding towards zero.
      if (static_range(e->args[0]).lo >= 0)
        return fmt::format("static_cast<int>(static_cast<unsigned>({}) {} {}u)", a,
                           quotient ? '/' : '%', n);
    }
    return fmt::format("{}({}, {})", quotient ? "floor_divide" : "floor_modulo", a, b);
  }

  // The position in the own sequence that, with the tokens before it, is the index.
  static std::optional<Variable> own_position(const Expr& e) {
    if (e->op != Op::kAdd || e->args[0]->op != Op::kVariable || e->args[1]->op != Op::kVariable) {
      return std::nullopt;
    }
    const Variable position = e->args[0]->variable, first = e->args[1]->variable;
    const bool is_own = (position == Variable::kQIdx && first == Variable::kQFirst) ||
                        (position == Variable::kKvIdx && first == Variable::kKvFirst);
    return is_own ? std::optional(position) : std::nullopt;
  }

  // Where a look-up reads: the offset of a row, empty for a tensor of one dim, and the index in it,
  // in brackets where it needs them in a sum.
  struct Place {
    std::string row, index;
  };
  Place place(const Expr& e) {
    const TensorDecl& tensor = environment_.tensors[static_cast<std::size_t>(e->slot)];
    if (e->args.empty()) return {"", "0"};
    std::string row, index;
    for (std::size_t i = 0; i < e->args.size(); ++i) {
      const DimSize& dim = tensor.dims[i];
      const std::string size = size_of(dim, e->slot, i);
      if (i == 1) row = fmt::format("static_cast<long long>({}) * {}", unbracketed(index), size);
      if (i > 1) row = fmt::format("({} + {}) * {}", row, index, size);
      if (const auto position = own_position(e->args[i]); position && i + 1 == e->args.size()) {
        // What comes before the sequence is a part of the row: a tile's elements share it.
        const std::string first = value(e->args[i]->args[1]);
        row = row.empty() ? fmt::format("static_cast<long long>({})", first)
                          : fmt::format("({} + {})", row, first);
        index = fmt::format("clamp_tail({}, {} - {})", variable(*position), size, first);
        break;
      }
      index = value(e->args[i]);
      // The last tile reaches beyond the lengths, where what was proven of q_idx and kv_idx ends.
      if (is_token_dim(environment_, dim)) {
        index = fmt::format("clamp_index({}, {})", unbracketed(index), size);
      } else if (e->clamped & (1u << i)) {
        index = fmt::format("{}({}, {})",
                            static_range(e->args[i]).lo >= 0 ? "clamp_above" : "clamp_index",
                            unbracketed(index), size);
      } else if (dim.dim != Dim::kNumber && depends_on_position(e->args[i])) {
        index = fmt::format("clamp_tail({}, {})", unbracketed(index), size);
      }
    }
    return {row, index};
  }

  // load_x(tensor, offset), or load_x(tensor, offset of a row, index).
  std::string load(const Expr& e) {
    auto [row, index] = place(e);
    const TensorType type = environment_.tensors[static_cast<std::size_t>(e->slot)].type;
    constexpr std::string_view kLoaders[] = {"load_i32", "load_f32", "load_bool", "load_f16",
                                             "load_bf16"};
    if (e->args.empty()) {
      return fmt::format("{}(c.params.tensors[{}], 0)", kLoaders[static_cast<int>(type)], e->slot);
    }
    // Where the keys are in a row, its offset is what a tile's elements share.
    if (row.empty() || depends_on(e->args.back(), Variable::kKvIdx)) index = unbracketed(index);
    if (!row.empty()) row += depends_on(e->args.back(), Variable::kKvIdx) ? ", " : " + ";
    return fmt::format("{}(c.params.tensors[{}], {}{})", kLoaders[static_cast<int>(type)], e->slot,
                       row, index);
  }

  const Environment& environment_;
  std::unordered_map<Expr, int, HashByValue, ByValue> uses_;
  std::unordered_map<Expr, std::string, HashByValue, ByValue> names_;
  int made_ = 0;
  std::string& lines_;
  Products products_;
};

std::string int_literal(std::int64_t value) {
  if (value == kInt32Min) return "(-2147483647 - 1)";
  return value < 0 ? fmt::format("({})", value) : fmt::format("{}", value);
}

std::string float_literal(double value) {
  std::string text = fmt::format("{}", static_cast<float>(value));
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text.front() == '-' ? "(" + text + "f)" : text + "f";
}

std::string unbracketed(const std::string& text) {
  if (text.empty() || text.front() != '(') return text;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
    if (depth == 0) return i + 1 == text.size() ? text.substr(1, text.size() - 2) : text;
  }
  return text;
}

ValueEmitter::ValueEmitter(const Environment& environment, std::string& lines, Products products)
    : impl_(std::make_unique<Impl>(environment, lines, products)) {}
ValueEmitter::~ValueEmitter() = default;
void ValueEmitter::know(const Expr& expression, std::string name) {
  impl_->know(expression, std::move(name));
}
void ValueEmitter::count(const Expr& expression) { impl_->count(expression); }
std::string ValueEmitter::value(const Expr& expression) { return impl_->value(expression); }
std::string ValueEmitter::offset(const Expr& look_up) { return impl_->offset(look_up); }

std::string emit_value(const Expr& expression, const Environment& environment, Products products) {
  std::string lines;
  ValueEmitter emitter(environment, lines, products);
  emitter.count(expression);
  const std::string result = emitter.value(expression);
  return lines + fmt::format("  return {};\n", unbracketed(result));
}

}  // namespace attune::expr
