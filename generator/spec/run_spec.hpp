// Specs whose mask compares a number by the query with one by the key (generator/expr/runs.hpp),
// with the tensors that a launch works out itself: where the runs of equal numbers are.
#pragma once

#include "generator/spec/spec.hpp"

namespace attune {

// Whether kernels may be told the runs of one of the spec's tensors: its sequences are whole ones,
// and there is room for two tensors more.
bool has_runs(const AttentionSpec& spec);

// The spec with these tensors behind its own, and what the mask is in terms of them. `spec`
// has_runs().
AttentionSpec run_spec(const AttentionSpec& spec, expr::RunsOf whose);

}  // namespace attune
