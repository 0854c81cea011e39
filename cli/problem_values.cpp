#include "cli/problem_values.hpp"

#include <algorithm>

#include "runtime/reference/oracle.hpp"
#include "runtime/support/memory.hpp"
#include "tuner/measure/memory_need.hpp"

namespace attune::cli {

Result<ProblemValues> draw_values(AttentionSpec spec, const ProblemShape& shape,
                                  std::uint64_t seed) {
  const auto& scalars = spec.environment.scalars;
  const auto& tensors = spec.environment.tensors;
  const bool is_fixed = std::ranges::all_of(scalars, &expr::ScalarDecl::is_constant);
  if (tensors.empty() && is_fixed && !is_packed(spec)) {
    ProblemValues fixed;
    for (const expr::ScalarDecl& scalar : scalars) fixed.scalars.push_back(scalar.value);
    return fixed;
  }
  // Scalars and tensors do not depend on the head dims.
  spec.head_dim_qk = spec.head_dim_v = 1;
  ATT_CHECK(check_fits(need_of_values(spec, shape), shape, device_facts(Target::kCpu),
                       available_memory_bytes()));
  HostProblem problem = random_problem(spec, shape, seed);
  return ProblemValues{std::move(problem.scalars), std::move(problem.tensors),
                       std::move(problem.sequences)};
}

}  // namespace attune::cli
