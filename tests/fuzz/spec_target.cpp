#include "tests/fuzz/spec_target.hpp"

#include <cmath>
#include <utility>

#include "generator/spec/spec.hpp"
#include "tests/fuzz/expression_checks.hpp"

namespace attune {
namespace {

constexpr std::string_view kFile = "fuzz.yaml";

std::string check_spec(const AttentionSpec& spec) {
  if (spec.name.empty() || spec.passes.empty()) return "a spec without name or passes";
  if (spec.v_in_k && spec.head_dim_v > spec.head_dim_qk) return "a V wider than the K it is in";
  const int widest_qk = spec.v_in_k ? 576 : 256, widest_v = spec.v_in_k ? 512 : 256;
  for (const auto& [dim, widest] :
       {std::pair{spec.head_dim_qk, widest_qk}, {spec.head_dim_v, widest_v}}) {
    if (dim < 8 || dim > widest || dim % 8 != 0) return "a head dim out of range";
  }
  if (!spec.softmax_scale.at_launch &&
      !(spec.softmax_scale.value > 0 && std::isfinite(spec.softmax_scale.value)))
    return "a bad scale";
  if (!(spec.dropout.value >= 0 && spec.dropout.value < 1)) return "a bad dropout";
  for (const ProblemShape& shape : spec.tune_shapes) {
    const auto again = parse_shape(to_string(shape));
    if (!again.ok() || *again != shape) return "a shape that does not round-trip";
  }
  if (spec_hash(spec).size() != 32) return "a hash of the wrong length";
  for (const auto& [expression, role] :
       {std::pair{spec.mask, expr::Role::kMask}, std::pair{spec.score, expr::Role::kScore},
        std::pair{spec.sink, expr::Role::kSink}}) {
    for (const auto check : {check_round_trip, check_meaning}) {
      if (std::string problem = check(expression, spec.environment, role); !problem.empty())
        return problem;
    }
  }
  return {};
}

}  // namespace

std::string check_spec_bytes(std::string_view bytes) {
  const auto spec = parse_spec(bytes, kFile);
  return spec.ok() ? check_spec(*spec) : check_error(spec.error(), bytes, kFile);
}

}  // namespace attune
