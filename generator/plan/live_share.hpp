// How much of the score square a mask leaves to compute, for the cost model.
#pragma once

#include "generator/spec/spec.hpp"

namespace attune {

// How work items are dealt out to CTAs that take every n-th one: groups of heads one after the
// other, the last of `last_group` heads or a few more; of a group all heads of a query tile before
// the next tile, the last tile first. templates/tile/sm90_schedule.cuh.
struct ItemOrder {
  std::int64_t ctas = 1;
  int tiles_of_item = 1;  // query tiles
  std::int64_t group = 1, last_group = 1;
  bool operator==(const ItemOrder&) const = default;
};

// What a mask leaves of the work items (query tiles of a head) of one tile shape, from a sample of
// tiles spread over the square of batch 0, head 0. Everything without a mask, and where launch-time
// scalars decide. Look-ups count as unknown.
struct LiveWork {
  double share = 1;  // of the tiles that are not skipped; in (0, 1]
  // Live tiles of the longest and the shortest item, and of the busiest CTA; each over the mean.
  double longest = 1, shortest = 1, busiest = 1;
  bool reads_tensors = false;  // range_slots(): tiles that are not known to be dead may be
};

// Remembered for the last questions: thousands of plans that are compared in a row share a few tile
// shapes, and each answer classifies hundreds of tiles. Valid until the thread's next call.
const LiveWork& live_work(const AttentionSpec& spec, const ProblemShape& shape, int tile_q,
                          int tile_kv, const ItemOrder& order = {});

}  // namespace attune
