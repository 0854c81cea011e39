// What the sm90a family's cost model knows of scores, and of masked items in two pieces a tile,
// from races of first guesses with their likely rivals (bench/guess_race).
#pragma once

#include "generator/plan/plan.hpp"

namespace attune::sm90a {

// What a score makes of a plan, beside its instructions.
struct ScoreCost {
  double item = 0;  // clocks of a work item
  double tile = 1;  // of a tile's time
};
ScoreCost score_cost(const AttentionSpec& spec, const Sm90aPlan& tile);

// Causal masks and windows of dense tensors: what was measured of masks.
bool is_plain_band(const AttentionSpec& spec);

// Clocks that an item in two pieces a tile takes longer under a mask.
double masked_pair(const AttentionSpec& spec, const Sm90aPlan& tile);

}  // namespace attune::sm90a
