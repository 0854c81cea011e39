#include "generator/expr/runs.hpp"

#include <algorithm>

#include "generator/expr/build.hpp"
#include "generator/expr/lowering.hpp"
#include "generator/expr/static_range.hpp"

namespace attune::expr {
namespace {

// Whether it is one number for all of a tile to the interval code, too.
bool is_same_everywhere(const Expr& e) { return !depends_on_position(e) && !contains_load(e); }

bool is_key_index(const Expr& e) {
  return e->op == Op::kVariable && e->variable == Variable::kKvIdx && e->int_value == 0;
}

// Both are look-ups of int32 in one row of one tensor: by something of the query, and by kv_idx.
bool compares_numbers(const Expr& of_query, const Expr& of_key) {
  if (of_query->op != Op::kLoad || of_key->op != Op::kLoad || of_query->slot != of_key->slot)
    return false;
  const auto &q = of_query->args, &k = of_key->args;
  if (of_query->type != Type::kInt32 || q.empty() || !is_key_index(k.back())) return false;
  if (!depends_on(q.back(), Variable::kQIdx) || depends_on(q.back(), Variable::kKvIdx))
    return false;
  const IntInterval range = static_range(q.back());
  if (range.lo <= kRunsBegin || range.hi >= kRunsEnd) return false;
  for (std::size_t i = 0; i + 1 < q.size(); ++i) {
    if (!equal(q[i], k[i]) || !is_same_everywhere(q[i])) return false;
  }
  return true;
}

// Whether a mask's operand says that kv_idx <= position.
bool keeps_keys_up_to(const Expr& operand, const Expr& position) {
  const auto is = [&](Op op, std::size_t key) {
    return operand->op == op && is_key_index(operand->args[key]) &&
           equal(operand->args[1 - key], position);
  };
  return is(Op::kLessEqual, 0) || is(Op::kLess, 0) || is(Op::kGreaterEqual, 1) ||
         is(Op::kGreater, 1);
}

Expr both(const Expr& a, const Expr& b) { return a ? make_binary(Op::kAnd, a, b, a->span) : b; }

// The look-up with the same indices in the tensor of `slot`.
Expr in_tensor(const Expr& load, int slot) {
  return make_load(slot, Type::kInt32, load->args, load->clamped, load->span);
}

}  // namespace

std::optional<RunForm> run_form(const Expr& mask) {
  if (!mask) return std::nullopt;
  std::vector<Expr> operands;
  collect_operands(mask, operands);
  std::optional<RunForm> form;
  Expr rest;
  for (const Expr& operand : operands) {
    if (!form && operand->op == Op::kEqual) {
      const Expr &a = operand->args[0], &b = operand->args[1];
      if (compares_numbers(a, b)) form = RunForm{.query_number = a, .key_number = b};
      if (compares_numbers(b, a)) form = RunForm{.query_number = b, .key_number = a};
      if (form) continue;
    }
    rest = both(rest, operand);
  }
  if (form) form->rest = rest;
  return form;
}

MaskByRuns mask_by_runs(const RunForm& form, const RunTensors& tensors, RunsOf whose) {
  const SourceSpan span = form.query_number->span;
  const Expr key = make_variable(Variable::kKvIdx, span), &query = form.of_query();
  std::vector<Expr> operands;
  if (form.rest) collect_operands(form.rest, operands);
  const bool is_causal = std::ranges::any_of(
      operands, [&](const Expr& operand) { return keeps_keys_up_to(operand, query); });

  // Of a causal mask one end says it.
  Expr of_query =
      make_binary(Op::kLessEqual, in_tensor(form.query_number, tensors.begin), key, span);
  Expr of_key = make_binary(Op::kLess, query, in_tensor(form.key_number, tensors.end), span);
  if (!is_causal) {
    of_query = both(of_query,
                    make_binary(Op::kLess, key, in_tensor(form.query_number, tensors.end), span));
    of_key = both(of_key, make_binary(Op::kLessEqual, in_tensor(form.key_number, tensors.begin),
                                      query, span));
  }
  const Expr sides = whose == RunsOf::kQuery ? of_query
                     : whose == RunsOf::kKey ? of_key
                                             : both(of_query, of_key);

  std::vector<Expr> first = form.query_number->args;
  first.back() = make_int(0, span);
  const Expr is_told = make_binary(
      Op::kEqual, make_load(tensors.begin, Type::kInt32, first, form.query_number->clamped, span),
      make_int(kRunsBegin, span), span);
  return {.is_told = is_told, .by_runs = both(form.rest, sides)};
}

}  // namespace attune::expr
