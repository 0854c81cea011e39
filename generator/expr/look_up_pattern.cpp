#include "generator/expr/look_up_pattern.hpp"

#include <algorithm>
#include <optional>

#include "generator/expr/arithmetic.hpp"
#include "generator/expr/build.hpp"
#include "generator/expr/lowering.hpp"
#include "generator/expr/static_range.hpp"

namespace attune::expr {
namespace {

bool never_wraps(const Expr& e) {
  if (e->type != Type::kInt32) return false;
  const IntInterval range = static_range(e);
  return range.lo > kInt32Min && range.hi < kInt32Max;
}

// What `e` changes by, modulo 2^32, when q_idx and kv_idx both grow by 1; nothing where that is not
// known, or not the same everywhere.
std::optional<std::int64_t> step(const Expr& e) {
  if (!depends_on_position(e)) return 0;
  if (e->op == Op::kVariable) return 1;
  std::vector<std::int64_t> steps;
  for (const Expr& arg : e->args) {
    const auto of_arg = step(arg);
    if (!of_arg) return std::nullopt;
    steps.push_back(*of_arg);
  }
  if (std::ranges::all_of(steps, [](std::int64_t s) { return s == 0; })) return 0;
  switch (e->op) {
    case Op::kNegate:
      return wrap_int32(-steps[0]);
    case Op::kAdd:
      return wrap_int32(steps[0] + steps[1]);
    case Op::kSubtract:
      return wrap_int32(steps[0] - steps[1]);
    case Op::kMultiply:
      for (const std::size_t i : {0u, 1u})
        if (e->args[i]->op == Op::kInt) return wrap_int32(steps[1 - i] * e->args[i]->int_value);
      return std::nullopt;
    case Op::kSelect:
      if (steps[0] == 0 && steps[1] == steps[2]) return steps[1];
      return std::nullopt;
    default:
      break;
  }
  const bool compares = is_comparison(e->op);
  if (!compares && e->op != Op::kMin && e->op != Op::kMax) return std::nullopt;
  if (steps[0] != steps[1] || !never_wraps(e->args[0]) || !never_wraps(e->args[1]))
    return std::nullopt;
  return compares ? 0 : steps[0];
}

// Whether some index is `variable` alone, never clamped.
bool has_index(const Expr& look_up, Variable variable) {
  for (std::size_t i = 0; i < look_up->args.size(); ++i) {
    const Expr& index = look_up->args[i];
    const bool is_clamped = (look_up->clamped >> i & 1u) != 0;
    if (index->op == Op::kVariable && index->variable == variable && !is_clamped) return true;
  }
  return false;
}

}  // namespace

LookUpPattern look_up_pattern(const Expr& look_up, const Environment& environment) {
  const TensorDecl& tensor = environment.tensors[static_cast<std::size_t>(look_up->slot)];
  const auto& indices = look_up->args;
  LookUpPattern pattern;
  pattern.varies_by_query = depends_on(look_up, Variable::kQIdx);
  pattern.varies_by_key = depends_on(look_up, Variable::kKvIdx);
  pattern.is_distance = pattern.varies_by_query && pattern.varies_by_key && step(look_up) == 0;
  const auto first = std::ranges::find_if(indices, depends_on_position);
  pattern.first_position_dim = static_cast<int>(first - indices.begin());
  std::int64_t bins = 1;
  for (auto dim = tensor.dims.begin() + pattern.first_position_dim; dim != tensor.dims.end(); ++dim)
    bins = dim->dim == Dim::kNumber ? std::min<std::int64_t>(bins * dim->number, 1 << 30) : 0;
  pattern.bins = bins <= LookUpPattern::kMostBins ? static_cast<int>(bins) : 0;
  pattern.own_by_pair = has_index(look_up, Variable::kQIdx) && has_index(look_up, Variable::kKvIdx);
  pattern.own_by_batch = has_index(look_up, Variable::kBatch);
  pattern.own_by_head = has_index(look_up, Variable::kHead);
  return pattern;
}

}  // namespace attune::expr
