// How much of the score square a mask leaves to compute, for the cost model.
#pragma once

#include "generator/spec/spec.hpp"

namespace attune {

// What a mask leaves of the work items (query tiles of a head) of one tile shape, from a sample of
// tiles spread over the square of batch 0, head 0. Everything without a mask, and where launch-time
// scalars decide. Look-ups count as unknown.
struct LiveWork {
  double share = 1;  // of the tiles that are not skipped; in (0, 1]
  // Live tiles of the longest and the shortest item, and of the busiest of CTAs that take every
  // n-th item; each over the mean.
  double longest = 1, shortest = 1, busiest = 1;
};

// Remembered for the last question: thousands of plans that are compared in a row share a few tile
// shapes, and each answer classifies hundreds of tiles. Valid until the thread's next call.
const LiveWork& live_work(const AttentionSpec& spec, const ProblemShape& shape, int tile_q,
                          int tile_kv, int ctas);

}  // namespace attune
