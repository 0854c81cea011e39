// What the backward plans of several families share: the kernel that prepares the rows.
#pragma once

#include <string>
#include <vector>

#include "generator/plan/cost.hpp"
#include "generator/plan/live_share.hpp"
#include "generator/plan/plan.hpp"

namespace attune {

// What it leaves; templates/tile/backward_rows.cuh.
struct BackwardRows {
  // Numbers that the tensor cores subtract: 16 bytes a row instead of 4.
  bool splits_references = false, splits_deltas = false;
  int padding = 128;               // a head's rows are padded to a multiple of it,
  int at_a_time = 64;              // and made so many at a time
  int sum_columns = 0;             // of dQ's sums, which it zeroes; 0: there are none
  int sum_tile = 1, sum_wave = 1;  // of these; WorkspaceRegion
  bool all_have_sums = false;      // all heads at a time
  int ahead_warps = 0;             // of a CTA, that make rows of later heads; 0: all come first
  bool takes_items = false;        // CTAs take key tiles off a counter
  bool first_tiles_early = false;  // of heads, before the other tiles of earlier heads
  bool scales = false;             // P and D for what dropout drops
  int turn_rows = 0;               // queries to whose sums CTAs add in order; 0: in none
  // Keys of a tile whose walk is cut into parts, and queries of the tiles that it visits; 0: it is
  // not. templates/tile/walk_parts.cuh.
  int part_keys = 0, walk_tile = 0;
};

// How a family adds up gradients of tensors.
enum class LearnedSums {
  kByWarps,         // as learned_plan.hpp says
  kByWarpsInLoops,  // so, in items that may take all batches or heads
  kByItems,         // in order, but for tensors of which a head has no known number of elements
};

// kUnsupported where a family's backward kernels cannot do the spec.
Status backward_serves(const AttentionSpec& spec, LearnedSums sums);

Launch backward_rows_launch(const BackwardRows& rows = {});
// Of kernels whose tensor cores subtract LSE and D themselves: where these are subtracted from the
// products as they are. Without sums.
BackwardRows split_rows(const AttentionSpec& spec);
std::vector<WorkspaceRegion> backward_row_regions(const BackwardRows& rows);
std::string backward_row_constants(const BackwardRows& rows);

// Of a pass whose second kernel makes dQ: the share of its products, and tiles of its items.
struct QueriesKernel {
  double share;
  int rows, step_keys;
  bool are_listed = false;  // of packed sequences
  // Of the first kernel, whose last round leaves processors to the second's items; 0: the second
  // waits for all of the first.
  double keys_items = 0;
};
// How many times as long both kernels' tiles take as all products would as the first one's.
// `keys`: of the first, `keys_slowdown` its own.
double with_queries_kernel(const ShapeCost& keys, double keys_tile_elements, double keys_slowdown,
                           const QueriesKernel& queries, double queries_slowdown,
                           const ProblemShape& shape, const DeviceFacts& device,
                           const LiveWork& work);

// Of a kernel whose items are tiles of keys, which a mask may leave of uneven lengths: where each
// has a processor for itself all wait for the longest, of so many times the mean's tiles.
double longest_key_tile(const LiveWork& work);
// Of items of packed sequences, the longest first: mean ones that a processor takes as long as,
// where each is cut into so many parts.
double listed_rounds(double items, double parts, const ProblemShape& shape,
                     const DeviceFacts& device);

// What parts of walks leave, on its way to L2: a guess.
inline constexpr double kPartClocks = 3000;
// Of a kernel that may cut them, where its items are whole so far. `short_parts`: by how much more
// than its share a part takes of a mask's walks over few query tiles of heads wider than 64.
void cut_walks(const AttentionSpec& spec, bool cuts, int tile_q, int tile_kv, double short_parts,
               const ProblemShape& shape, const DeviceFacts& device, ShapeCost& cost);

// Of a kernel whose items are tiles of keys; `row_bytes`: moved for a query row besides.
ShapeCost backward_shape_cost(int tile_q, int tile_kv, double row_bytes, const ProblemShape& shape,
                              const DeviceFacts& device, const LiveWork& work);
// Whether nothing hides what the launches move that make rows and dQ: a ShapeCost's `seen`.
bool rows_are_in_open(const AttentionSpec& spec, const ProblemShape& shape, const LiveWork& work,
                      double rounds);

}  // namespace attune
