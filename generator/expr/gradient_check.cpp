#include "generator/expr/gradient_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "generator/expr/build.hpp"
#include "generator/expr/derivative.hpp"
#include "generator/expr/lowering.hpp"

namespace attune::expr {
namespace {

struct Place {
  SourceSpan span;
  std::string_view where;
};

// What has no slope where the i-th argument of `e` stands; empty when it has.
std::string_view flat_around(const Expr& e, std::size_t i) {
  if (e->op == Op::kLoad) return "an index";
  if (e->op == Op::kSelect && i == 0) return "a condition";
  if (is_comparison(e->op)) return "a comparison";
  return e->op == Op::kFloor ? "`floor`" : "";
}

// The first node that `is_sought`, with the outermost of what stands around it and has no slope.
template <typename Predicate>
std::optional<Place> find(const Expr& e, std::string_view where, const Predicate& is_sought) {
  if (is_sought(e)) return Place{e->span, where};
  for (std::size_t i = 0; i < e->args.size(); ++i) {
    if (auto place = find(e->args[i], where.empty() ? flat_around(e, i) : where, is_sought))
      return place;
  }
  return std::nullopt;
}

bool has_gradient(const std::vector<LookUpDerivative>& derivatives, int slot) {
  return std::ranges::any_of(derivatives,
                             [&](const LookUpDerivative& d) { return d.look_up->slot == slot; });
}

GradientProblem unreached(const std::string& name, const Place& place) {
  return {
      .message = place.where.empty()
                     ? fmt::format("`{}` is to learn, but changes nothing here", name)
                     : fmt::format("`{}` is to learn, but {} has no derivative", name, place.where),
      .hint = "it must change `score` or `sink` smoothly; or leave out `grad: true`",
      .span = place.span};
}

}  // namespace

std::optional<GradientProblem> gradient_problem(const Expr& mask, const Expr& score,
                                                const Expr& sink, const Environment& environment,
                                                bool has_backward) {
  for (const Expr& e : {score, sink}) {
    const auto look_ups = grad_look_ups(e, environment);
    if (look_ups.size() <= kMaxGradLookUps) continue;
    return GradientProblem{
        .message = fmt::format("{} different look-ups of tensors that are to learn: at most {}",
                               look_ups.size(), kMaxGradLookUps),
        .hint =
            "put what belongs together into one tensor and compute the index; compute what "
            "depends on a distance or on one position outside, as a table with an entry for "
            "each, and look that up: the gradient goes on from there",
        .span = look_ups[kMaxGradLookUps]->span};
  }
  const auto of_score = look_up_derivatives(score, environment);
  const auto of_sink = look_up_derivatives(sink, environment);
  for (std::size_t i = 0; i < environment.tensors.size(); ++i) {
    const TensorDecl& tensor = environment.tensors[i];
    const int slot = static_cast<int>(i);
    if (!tensor.grad || has_gradient(of_score, slot) || has_gradient(of_sink, slot)) continue;
    const auto reads = [&](const Expr& e) { return e->op == Op::kLoad && e->slot == slot; };
    for (const Expr* e : {&score, &sink, &mask}) {
      if (!*e) continue;
      if (const auto place = find(*e, e == &mask ? "a mask" : "", reads))
        return unreached(tensor.name, *place);
    }
    return GradientProblem{
        .message = fmt::format("`{}` is to learn, but nothing reads it", tensor.name),
        .hint = "use it in `score` or `sink`, or leave out `grad: true`",
        .span = {},
        .unread_slot = slot};
  }
  if (!has_backward || !score || !depends_on(score, Variable::kScore)) return std::nullopt;
  const Expr slope = derivative(score, make_variable(Variable::kScore));
  if (!is_constant(slope) || constant_value(slope) != 0) return std::nullopt;
  const auto place = find(score, "", [](const Expr& e) {
    return e->op == Op::kVariable && e->variable == Variable::kScore;
  });
  return GradientProblem{
      .message =
          place->where.empty()
              ? std::string("`score` changes nothing here: no gradient reaches q and k")
              : fmt::format("{} has no derivative: no gradient reaches q and k", place->where),
      .hint = "let the score change smoothly with `score`, or leave `backward` out of `passes`",
      .span = place->span};
}

}  // namespace attune::expr
