#include "generator/expr/evaluator.hpp"

#include <algorithm>

#include "generator/expr/arithmetic.hpp"

namespace attune::expr {
namespace {

double variable_value(Variable variable, const Point& p) {
  switch (variable) {
    case Variable::kScore:
      return p.score;
    case Variable::kBatch:
      return p.b;
    case Variable::kHead:
      return p.h;
    case Variable::kKvHead:
      return p.h_kv;
    case Variable::kQIdx:
      return p.q_idx;
    case Variable::kKvIdx:
      return p.kv_idx;
    case Variable::kQLen:
      return p.q_len;
    case Variable::kQFirst:
      return p.q_first;
    case Variable::kKvFirst:
      return p.kv_first;
    case Variable::kKvLen:
      break;
  }
  return p.kv_len;
}

}  // namespace

std::int64_t look_up_offset(const Expr& look_up, const Point& p) {
  const TensorValues& tensor = p.tensors[static_cast<std::size_t>(look_up->slot)];
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < look_up->args.size(); ++i) {
    const auto index = static_cast<std::int64_t>(evaluate(look_up->args[i], p));
    offset = offset * tensor.sizes[i] + std::clamp<std::int64_t>(index, 0, tensor.sizes[i] - 1);
  }
  return offset;
}

double evaluate(const Expr& e, const Point& p) {
  switch (e->op) {
    case Op::kInt:
    case Op::kBool:
      return static_cast<double>(e->int_value);
    case Op::kFloat:
      return e->float_value;
    case Op::kVariable:
      return variable_value(e->variable, p);
    case Op::kScalar:
      return p.scalars[static_cast<std::size_t>(e->slot)];
    case Op::kLoad:
      return p.tensors[static_cast<std::size_t>(e->slot)]
          .values[static_cast<std::size_t>(look_up_offset(e, p))];
    case Op::kSelect:
      return evaluate(e->args[evaluate(e->args[0], p) != 0 ? 1 : 2], p);
    case Op::kAnd:
      return evaluate(e->args[0], p) != 0 && evaluate(e->args[1], p) != 0;
    case Op::kOr:
      return evaluate(e->args[0], p) != 0 || evaluate(e->args[1], p) != 0;
    default:
      break;
  }
  const double first = evaluate(e->args[0], p);
  if (e->args.size() == 1) return apply_unary(e->op, e->args[0]->type, first);
  return apply_binary(e->op, e->args[0]->type, first, evaluate(e->args[1], p));
}

}  // namespace attune::expr
