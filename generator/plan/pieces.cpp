#include "generator/plan/pieces.hpp"

#include <algorithm>
#include <cmath>

#include "templates/piece_choice.h"

namespace attune {
namespace {

// Results of pieces that wait to be merged, how many have come, and, of packed sequences, the list.
std::vector<WorkspaceRegion> regions_of_pieces(const AttentionSpec& spec, int tile_q, int pieces) {
  using Content = WorkspaceRegion::Content;
  std::vector<WorkspaceRegion> regions = {{.content = Content::kPieceResults,
                                           .slot = tile_q,
                                           .length_unit = tile_q,
                                           .columns = spec.head_dim_v + 2,
                                           .pieces = pieces},
                                          {.content = Content::kPieceArrivals,
                                           .slot = tile_q,
                                           .length_unit = tile_q,
                                           .pieces = pieces}};
  if (is_packed(spec)) {
    regions.push_back({.content = Content::kPieceItems, .slot = tile_q, .length_unit = tile_q});
  }
  return regions;
}

// The host's twin of the launch that deals pieces out (templates/kernels/piece_items.cuh), for
// `items` of the same `units` each.
std::int64_t chosen_length(std::int64_t all, std::int64_t units, std::int64_t items,
                           std::int64_t processors, int most, std::int64_t least) {
  std::int64_t best = least;
  long long least_units = 0;
  for (int which = 0; which < att::kLengthsCompared; ++which) {
    const std::int64_t length =
        std::max(least, att::compared_length<std::int64_t>(all, processors, which));
    const auto pieces = att::pieces_of_units<std::int64_t>(units, length, most);
    const att::CutItems cut = {.pieces = items * pieces,
                               .longest = static_cast<int>((units + pieces - 1) / pieces),
                               .most = static_cast<int>(pieces)};
    const long long done = att::units_until_done(cut, all, processors);
    if (which == 0 || done < least_units) {
      best = length;
      least_units = done;
    }
  }
  return best;
}

}  // namespace

LaunchRecipe piece_recipe(const AttentionSpec& spec, Target target, const PlanResources& needs,
                          int tile_q, int pieces) {
  LaunchRecipe recipe;
  recipe.launches.push_back(
      {.symbol = "",
       .threads = needs.threads,
       .shared_memory_bytes = needs.shared_memory_bytes,
       .pieces = pieces,
       .item = is_packed(spec) ? WorkItem::kListedPiece : WorkItem::kPackedQueryTile,
       .tile = tile_q});
  if (pieces != 1 || is_packed(spec)) {
    recipe.workspace = regions_of_pieces(spec, tile_q, pieces);
    // The launch that deals out pieces zeroes their counters.
    if (is_packed(spec)) {
      recipe.launches.back().overlaps_previous = target >= Target::kSm90a;
    } else {
      recipe.launches.back().zeroed = {WorkspaceRegion::Content::kPieceArrivals};
    }
  }
  return recipe;
}

std::vector<WorkspaceRegion> widest_piece_regions(const AttentionSpec& spec, int pieces,
                                                  std::initializer_list<int> rows) {
  std::vector<WorkspaceRegion> widest;
  for (const int tile_q : rows) {
    for (const WorkspaceRegion& region : regions_of_pieces(spec, tile_q, pieces)) {
      widest.push_back(region);
    }
  }
  return widest;
}

bool leaves_sequences_to_few(const AttentionSpec& spec, int pieces, bool in_cluster) {
  constexpr int kLeastDealt = 16, kLeastOfCluster = 4;
  return is_packed(spec) && !spec.batch_invariant &&
         pieces < (in_cluster ? kLeastOfCluster : kLeastDealt);
}

PiecesOfSequences pieces_of_sequences(const AttentionSpec& spec, const ProblemShape& shape,
                                      double items, int most, bool is_dealt, double units,
                                      int processors) {
  const double all = units * items * double(shape.batch);
  const auto whole = [](double count) { return static_cast<std::int64_t>(std::ceil(count)); };
  std::int64_t of_piece = att::units_of_piece(whole(all), shape.kv_heads);
  if (processors > 0) {
    of_piece =
        chosen_length(whole(all), whole(units), whole(items * double(shape.batch)),
                      std::max<std::int64_t>(1, processors / shape.kv_heads), most, of_piece);
  }
  const auto pieces = [&](double of_sequence) {
    return is_dealt ? double(att::pieces_of_units<std::int64_t>(whole(of_sequence), of_piece, most))
                    : double(most);
  };
  // Of sequences in pages the length is the most that a row of the table has room for.
  const double longest = is_paged(spec) ? units : std::max(units, units * double(shape.batch) / 2);
  return {.of_mean = pieces(units), .longest_units = longest / pieces(longest)};
}

double tiles_with_longest(const PiecesOfSequences& of, double tiles, double rounds) {
  return (tiles + std::max(tiles, of.longest_units / rounds)) / 2;
}

}  // namespace attune
