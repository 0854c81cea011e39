#include "cli/problem_values.hpp"

#include "runtime/reference/oracle.hpp"

namespace attune::cli {

ProblemValues draw_values(AttentionSpec spec, const ProblemShape& shape, std::uint64_t seed) {
  if (spec.environment.tensors.empty() && spec.environment.scalars.empty()) return {};
  // Scalars and tensors do not depend on the head dims.
  spec.head_dim_qk = spec.head_dim_v = 1;
  HostProblem problem = random_problem(spec, shape, seed);
  return {std::move(problem.scalars), std::move(problem.tensors)};
}

}  // namespace attune::cli
