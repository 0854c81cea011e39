// What families share that deal an item's keys to several CTAs (templates/tile/pieces.cuh).
#pragma once

#include <array>
#include <initializer_list>
#include <vector>

#include "generator/plan/plan.hpp"

namespace attune {

inline constexpr int kUnitKeys = 64;  // of the kernels: what pieces are made of
inline constexpr std::array kPieces = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128};
inline constexpr int kMostPieces = kPieces.back();
inline constexpr int kTableBytes = 9 * 1024;  // static shared memory: the units of a mask

// The launch of a plan whose items have `tile_q` rows and at most `pieces` pieces (or
// kFixedPieces), and what of the workspace they need.
LaunchRecipe piece_recipe(const AttentionSpec& spec, Target target, const PlanResources& needs,
                          int tile_q, int pieces);
// Regions that cover those of items of each of these numbers of rows.
std::vector<WorkspaceRegion> widest_piece_regions(const AttentionSpec& spec, int pieces,
                                                  std::initializer_list<int> rows);

}  // namespace attune
