// Values for the scalars and tensors of a spec that a command makes up a problem for.
#pragma once

#include "generator/support/result.hpp"
#include "runtime/reference/work.hpp"

namespace attune::cli {

// As random_problem() draws them for the seed, without its q, k and v. "memory-short" where the
// shape is too large for that.
Result<ProblemValues> draw_values(AttentionSpec spec, const ProblemShape& shape,
                                  std::uint64_t seed);

}  // namespace attune::cli
