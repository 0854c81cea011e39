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
// The same of CTAs that take stretches of packed sequences' keys (templates/tile/stretches.cuh).
void take_stretches(LaunchRecipe& recipe, int ctas_per_processor);
// Regions that cover those of items of each of these numbers of rows.
std::vector<WorkspaceRegion> widest_piece_regions(const AttentionSpec& spec, int pieces,
                                                  std::initializer_list<int> rows);

// Whether launches of the shape have as many pieces as with a smaller one of kPieces at most: 512
// items have 2 with each from 2 to 128. Of plans of the decode and the MLA family.
bool has_pieces_of_fewer(const AttentionSpec& spec, const KernelPlan& plan,
                         const ProblemShape& shape);

// Whether a plan with so many pieces of a sequence at most may leave a long one among packed ones
// to few CTAs, as no shape says how long one is beside the others: such plans are not offered, but
// for whole items where all sequences are short (decode.cpp). On
// an H200 64 sequences of 8192 keys take 502 us with 1 and 503 with 16, one of 131072 beside 63 of
// 1024 1177 and 212. A batch-invariant spec's pieces are no plan's choice.
bool leaves_sequences_to_few(const AttentionSpec& spec, int pieces, bool in_cluster = false);

struct PiecesOfSequences {
  double of_mean = 1;        // of a sequence as long as all are on average
  double longest_units = 0;  // of keys, that a piece of one has which has half of all keys
};
// Of packed sequences of `units` units of keys on average, each with `items` of a K/V head. `most`
// pieces: as the launch in front deals them out or, where `is_dealt` is false, of every sequence.
// `processors`: that pieces are to keep busy (templates/piece_choice.h); 0: a piece is a part of
// all keys.
PiecesOfSequences pieces_of_sequences(const AttentionSpec& spec, const ProblemShape& shape,
                                      double items, int most, bool is_dealt, double units,
                                      int processors = 0);
// Of `tiles` of an item and `rounds` of items where all sequences are equal: the mean of these
// tiles and of those that the longest sequence asks for.
double tiles_with_longest(const PiecesOfSequences& of, double tiles, double rounds);

}  // namespace attune
