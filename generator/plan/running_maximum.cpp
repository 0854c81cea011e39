#include "generator/plan/running_maximum.hpp"

#include <algorithm>
#include <cmath>

#include "generator/expr/build.hpp"
#include "generator/plan/family.hpp"

namespace attune {
namespace {

bool is_steep(const AttentionSpec& spec) {
  constexpr double kSteep = 1 << 20;
  if (!spec.score || spec.score->op != expr::Op::kMultiply) return false;
  // A small scale may make up for a large factor.
  const double scale =
      spec.softmax_scale.at_launch ? 1.0 : spec.softmax_scale.value * std::sqrt(spec.head_dim_qk);
  return std::ranges::any_of(spec.score->args, [&](const expr::Expr& factor) {
    return expr::is_constant(factor) && std::abs(expr::constant_value(factor)) * scale >= kSteep;
  });
}

}  // namespace

bool takes_running_maximum_alone(const AttentionSpec& spec) {
  return spec.accuracy == Accuracy::kStrict || is_steep(spec);
}

Status check_reference(const AttentionSpec& spec, bool frozen_max) {
  if (!frozen_max || !takes_running_maximum_alone(spec)) return ok_status();
  if (spec.accuracy != Accuracy::kStrict) {
    return plan_unsupported(
        "scores that are multiplied by 2^20 and more have no other reference "
        "than a running maximum");
  }
  return plan_unsupported("the largest exponentials are exact with a running maximum alone");
}

}  // namespace attune
