// Pieces of the keys of the sm90a family's items, a CTA each: docs/plans.md.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "generator/plan/plan.hpp"

namespace attune::sm90a {

// How many an item has, at most, with the plans that are offered.
std::span<const int> piece_choices(const AttentionSpec& spec);
Status check_pieces(const AttentionSpec& spec, const Sm90aPlan& tile);

// What pieces found, and how many are done; whatever the tile.
std::array<WorkspaceRegion, 2> piece_regions(const AttentionSpec& spec);
// What of a launch is for pieces.
void add_pieces(const AttentionSpec& spec, const Sm90aPlan& tile, Launch& launch,
                std::vector<WorkspaceRegion>& workspace);

// Whether CTAs find packed sequences' items for themselves where there are few: not behind a launch
// that they must wait for anyway.
bool finds_items(const AttentionSpec& spec, const Sm90aPlan& tile);

// Launches of a shape that have no room for more pieces have as many with each plan that wants
// more.
bool has_fewer_pieces(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape);

// How a plan's items are cut, of `items` items of `tiles` kv tiles, where `ctas` take them; of
// packed sequences the longest is taken for `longest` times as long.
struct CutItems {
  double pieces = 1;  // of an item
  double beside_us = 0;
};
CutItems cut_items(const AttentionSpec& spec, const Sm90aPlan& tile, double items, double tiles,
                   double longest, int ctas);

}  // namespace attune::sm90a
