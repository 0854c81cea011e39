#include "generator/plan/sm90a_pieces.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "generator/expr/lowering.hpp"
#include "generator/plan/family.hpp"
#include "generator/plan/sm90a.hpp"
#include "generator/plan/wgmma.hpp"
#include "templates/work_items.h"

namespace attune::sm90a {
namespace {

constexpr std::array kPieces = {2, 3, 4, 6, 8, 12, 16};

std::int64_t piece_count(const Sm90aPlan& tile, std::int64_t items) {
  return att::key_piece_count<std::int64_t>(items, std::int64_t{tile.warpgroups} * kRows,
                                            tile.pieces);
}

// Of packed sequences, whose CTAs find for themselves how many there are
// (templates/tile/sm90_listed_pieces.cuh), by lengths that are not known here: whole rounds of
// equal items, where theirs let short ones fill the last round.
double listed_pieces(const Sm90aPlan& tile, double items, double tiles, double longest, int ctas) {
  double best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (int pieces = 1; pieces <= tile.pieces; ++pieces) {
    if (items * pieces * tile.warpgroups * kRows > att::kMostKeyRows) break;
    const double time = std::max(std::ceil(items * pieces / ctas), pieces == 1 ? longest : 1) *
                            (tiles / pieces + att::kPieceTiles) +
                        pieces / 2.0;
    if (time >= least) continue;
    least = time;
    best = pieces;
  }
  return best;
}

}  // namespace

std::span<const int> piece_choices(const AttentionSpec& spec) {
  const std::span<const int> all = kPieces;
  return is_packed(spec) ? all.last(1) : all;
}

Status check_pieces(const AttentionSpec& spec, const Sm90aPlan& tile) {
  if (tile.pieces < 1 || tile.pieces > att::kMostKeyPieces) {
    return plan_unsupported(
        fmt::format("1 to {} pieces, not {}", att::kMostKeyPieces, tile.pieces));
  }
  if (is_packed(spec) && tile.schedule == Schedule::kSingle) {
    return plan_unsupported("how many pieces packed sequences have a grid does not know");
  }
  if (tile.cluster > 1) return plan_unsupported("the CTAs of a cluster have the same keys");
  return ok_status();
}

std::array<WorkspaceRegion, 2> piece_regions(const AttentionSpec& spec) {
  using Content = WorkspaceRegion::Content;
  return {{{.content = Content::kPieceResults,
            .columns = whole_steps(spec.head_dim_v) + 8,
            .of_query_tiles = true},
           {.content = Content::kPieceArrivals, .of_query_tiles = true}}};
}

void add_pieces(const AttentionSpec& spec, const Sm90aPlan& tile, Launch& launch,
                std::vector<WorkspaceRegion>& workspace) {
  launch.pieces = tile.pieces;
  // Counters are zeroed between a dense launch and the one before; of packed sequences by the one
  // that lists them.
  launch.overlaps_previous = is_packed(spec);
  if (!is_packed(spec)) launch.zeroed.push_back(WorkspaceRegion::Content::kPieceArrivals);
  for (const WorkspaceRegion& region : piece_regions(spec)) workspace.push_back(region);
}

bool finds_items(const AttentionSpec& spec, const Sm90aPlan& tile) {
  return tile.pieces > 1 && is_packed(spec) && expr::range_slots(spec.mask).empty();
}

bool has_fewer_pieces(const AttentionSpec& spec, const KernelPlan& plan,
                      const ProblemShape& shape) {
  const Sm90aPlan& tile = tile_of(plan);
  if (tile.pieces == 1 || is_packed(spec)) return false;
  const std::int64_t items =
      att::tile_count<std::int64_t>(shape.q_len, item_queries(tile)) * shape.batch *
      att::head_sets<std::int64_t>(shape.heads, shape.kv_heads, std::int64_t{tile.heads});
  return piece_count(tile, items) < tile.pieces;
}

CutItems cut_items(const AttentionSpec& spec, const Sm90aPlan& tile, double items, double tiles,
                   double longest, int ctas) {
  if (tile.pieces == 1) return {};
  // Counters are zeroed before the launch, results written, and the last CTA reads those of all.
  constexpr double kMergeUs = 4, kPieceUs = 0.6;
  const double pieces = is_packed(spec) ? listed_pieces(tile, items, tiles, longest, ctas)
                                        : double(piece_count(tile, std::llround(items)));
  return {.pieces = pieces, .beside_us = kMergeUs + kPieceUs * pieces};
}

}  // namespace attune::sm90a
