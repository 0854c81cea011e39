// How much of the score square a mask leaves to compute, for the cost model.
#pragma once

#include <vector>

#include "generator/spec/spec.hpp"

namespace attune {

// The share of tile_q x tile_kv tiles that are not skipped, from a sample of tiles spread over the
// square of batch 0, head 0. 1 without a mask, and where launch-time scalars decide. Look-ups count
// as unknown. In (0, 1]. Thread-safe.
double live_tile_share(const AttentionSpec& spec, const ProblemShape& shape, int tile_q,
                       int tile_kv);

// The same for each of a few query tiles spread over the sequence, the first one first: how unlike
// in length work items are.
std::vector<double> live_share_by_row(const AttentionSpec& spec, const ProblemShape& shape,
                                      int tile_q, int tile_kv);

}  // namespace attune
