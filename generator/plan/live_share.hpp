// How much of the score square a mask leaves to compute, for the cost model.
#pragma once

#include "generator/spec/spec.hpp"

namespace attune {

// The share of tile_q x tile_kv tiles that are not skipped, from a sample of tiles spread over the
// square of batch 0, head 0. 1 without a mask, and where launch-time scalars decide. Look-ups count
// as unknown. In (0, 1]. Thread-safe.
double live_tile_share(const AttentionSpec& spec, const ProblemShape& shape, int tile_q,
                       int tile_kv);

}  // namespace attune
