// The affine part of Lowering: a * q_idx + b * kv_idx + c, exact over a box because each variable
// stands in it once.
#include <algorithm>

#include "generator/expr/arithmetic.hpp"
#include "generator/expr/build.hpp"
#include "generator/expr/lowering.hpp"
#include "generator/expr/static_range.hpp"

namespace attune::expr {
namespace {

// With these the bounds of an affine form stay inside int64: positions are below 2^29.
constexpr std::int64_t kMostCoefficient = std::int64_t{1} << 31;
constexpr std::int64_t kMostRest = std::int64_t{1} << 60;
constexpr std::int64_t kMostFactor = std::int64_t{1} << 20;
constexpr std::size_t kMostTerms = 8;

}  // namespace

bool Lowering::is_small(const Affine& a) const {
  const auto within = [&](StepId id, std::int64_t limit) {
    return p_[id].lo >= -limit && p_[id].hi <= limit;
  };
  return within(a.q, kMostCoefficient) && within(a.kv, kMostCoefficient) &&
         within(a.rest, kMostRest) && a.terms.size() <= kMostTerms &&
         std::ranges::all_of(a.terms,
                             [](const auto& term) { return std::abs(term.first) <= kMostFactor; });
}

void Lowering::add_term(Affine& a, std::int64_t factor, const Expr& term) {
  for (auto it = a.terms.begin(); it != a.terms.end(); ++it) {
    if (!equal(it->second, term)) continue;
    it->first += factor;
    if (it->first == 0) a.terms.erase(it);
    return;
  }
  if (factor != 0) a.terms.emplace_back(factor, term);
}

Affine Lowering::affine(const Expr& e) {
  if (const auto form = affine_operation(e)) return *form;
  const StepId zero = p_.integer(0);
  return {zero, zero, zero, {{1, e}}, {}};
}

std::optional<Affine> Lowering::affine_difference(const Expr& a, const Expr& b) {
  Affine x = affine(a);
  const Affine y = affine(b);
  x.q = p_.subtract(x.q, y.q);
  x.kv = p_.subtract(x.kv, y.kv);
  x.rest = p_.subtract(x.rest, y.rest);
  for (const auto& [factor, term] : y.terms) add_term(x, -factor, term);
  x.guards.insert(x.guards.end(), y.guards.begin(), y.guards.end());
  if (!is_small(x)) return std::nullopt;
  return x;
}

std::optional<Affine> Lowering::affine_operation(const Expr& e) {
  const StepId zero = p_.integer(0), one = p_.integer(1);
  if (is_uniform(e)) return Affine{zero, zero, p_.uniform(e), {}, {}};
  std::optional<Affine> form;
  switch (e->op) {
    case Op::kVariable:
      return e->variable == Variable::kQIdx ? Affine{one, zero, zero, {}, {}}
                                            : Affine{zero, one, zero, {}, {}};
    case Op::kAdd:
    case Op::kSubtract:
      if (e->op == Op::kSubtract) {
        form = affine_difference(e->args[0], e->args[1]);
      } else {
        form = affine(e->args[0]);
        const Affine y = affine(e->args[1]);
        form->q = p_.add(form->q, y.q);
        form->kv = p_.add(form->kv, y.kv);
        form->rest = p_.add(form->rest, y.rest);
        for (const auto& [factor, term] : y.terms) add_term(*form, factor, term);
        form->guards.insert(form->guards.end(), y.guards.begin(), y.guards.end());
      }
      break;
    case Op::kNegate:
      form = affine_difference(make_int(0), e->args[0]);
      break;
    case Op::kMultiply: {
      const bool left = is_uniform(e->args[0]);
      if (!left && !is_uniform(e->args[1])) return std::nullopt;
      const Expr& factor = e->args[left ? 0 : 1];
      form = affine(e->args[left ? 1 : 0]);
      if (factor->op != Op::kInt && !form->terms.empty()) return std::nullopt;
      const StepId scale = p_.uniform(factor);
      form->q = p_.multiply(form->q, scale);
      form->kv = p_.multiply(form->kv, scale);
      form->rest = p_.multiply(form->rest, scale);
      if (factor->op == Op::kInt) {
        for (auto& term : form->terms) {
          if (std::abs(factor->int_value) > kMostFactor) return std::nullopt;
          term.first *= factor->int_value;
        }
      }
      break;
    }
    default:
      return std::nullopt;
  }
  if (!form || !is_small(*form)) return std::nullopt;
  if (may_wrap(e)) {
    const IntBounds range = affine_bounds(*form);
    form->guards.push_back(p_.both(p_.less_equal(p_.integer(kInt32Min), range.lo),
                                   p_.less_equal(range.hi, p_.integer(kInt32Max))));
  }
  return form;
}

IntBounds Lowering::affine_bounds(const Affine& a) {
  IntBounds sum = {a.rest, a.rest};
  const auto add = [&](StepId factor, IntBounds range) {
    if (is_zero(factor)) return;
    const StepId by_lo = p_.multiply(factor, range.lo), by_hi = p_.multiply(factor, range.hi);
    if (p_[factor].lo >= 0) {
      sum = {p_.add(sum.lo, by_lo), p_.add(sum.hi, by_hi)};
    } else if (p_[factor].hi <= 0) {
      sum = {p_.add(sum.lo, by_hi), p_.add(sum.hi, by_lo)};
    } else {
      sum = {p_.add(sum.lo, p_.min(by_lo, by_hi)), p_.add(sum.hi, p_.max(by_lo, by_hi))};
    }
  };
  add(a.q, positions(Variable::kQIdx));
  add(a.kv, positions(Variable::kKvIdx));
  for (const auto& [factor, term] : a.terms) add(p_.integer(factor), int_bounds(term));
  return sum;
}

}  // namespace attune::expr
