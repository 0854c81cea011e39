#include "generator/plan/pieces.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "generator/plan/item_counts.hpp"
#include "templates/piece_choice.h"
#include "templates/work_items.h"

namespace attune {
namespace {

// Results of pieces that wait to be merged, how many have come, and, of packed sequences, the list.
std::vector<WorkspaceRegion> regions_of_pieces(const AttentionSpec& spec, int tile_q, int pieces) {
  using Content = WorkspaceRegion::Content;
  constexpr int kCounterInts = 2;  // of att::MarkedCounter, templates/ptx/arrive.cuh
  std::vector<WorkspaceRegion> regions = {{.content = Content::kPieceResults,
                                           .slot = tile_q,
                                           .length_unit = tile_q,
                                           .columns = spec.head_dim_v + 2,
                                           .pieces = pieces},
                                          {.content = Content::kPieceArrivals,
                                           .slot = tile_q,
                                           .length_unit = tile_q,
                                           .columns = kCounterInts,
                                           .pieces = pieces}};
  if (is_packed(spec)) {
    regions.push_back({.content = Content::kPieceItems, .slot = tile_q, .length_unit = tile_q});
  }
  return regions;
}

// Items of the same length.
struct AlikeItems {
  std::int64_t count, units;
};

// The host's twin of the launch that deals pieces out (templates/kernels/piece_items.cuh).
std::int64_t chosen_length(std::initializer_list<AlikeItems> items, std::int64_t kv_heads,
                           int processors, int most) {
  std::int64_t all = 0;
  for (const AlikeItems& of : items) all += of.count * of.units;
  const std::int64_t least = att::units_of_piece(all, kv_heads);
  if (processors == 0) return least;
  const std::int64_t share =
      att::tile_count<std::int64_t>(all, std::max<std::int64_t>(processors / kv_heads, 1));
  const int counted = static_cast<int>(std::min<std::int64_t>(all, 1 << 29));
  const float of_round = float(kv_heads) / float(processors);
  std::int64_t chosen = least;
  float least_time = std::numeric_limits<float>::infinity();
  for (int which = 0; which < att::kLengthsCompared; ++which) {
    const std::int64_t length = std::max(least, att::compared_length(share, which));
    std::int64_t all_pieces = 0;
    att::CutItems cut = {};
    for (const AlikeItems& of : items) {
      const auto pieces = att::pieces_of_units<std::int64_t>(of.units, length, most);
      all_pieces += of.count * pieces;
      cut.longest = std::max(cut.longest, static_cast<int>(att::tile_count(of.units, pieces)));
      cut.most = std::max(cut.most, static_cast<int>(pieces));
    }
    cut.pieces = static_cast<int>(std::min<std::int64_t>(all_pieces, 1 << 24));
    const float time = att::units_until_done(cut, counted, of_round);
    if (time > least_time) continue;
    chosen = length;
    least_time = time;
  }
  return chosen;
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

void take_stretches(LaunchRecipe& recipe, int ctas_per_processor) {
  Launch& main = recipe.launches.back();
  main.item = WorkItem::kStretch;
  main.persistent = true;
  main.ctas_per_processor = ctas_per_processor;
  std::erase_if(recipe.workspace, [](const WorkspaceRegion& region) {
    return region.content == WorkspaceRegion::Content::kPieceItems;
  });
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

bool has_pieces_of_fewer(const AttentionSpec& spec, const KernelPlan& plan,
                         const ProblemShape& shape) {
  // Those of sequences are dealt out by their lengths, those of batch-invariant specs by their
  // keys.
  if (is_packed(spec) || spec.batch_invariant) return false;
  const auto* decode = std::get_if<DecodePlan>(&plan.tile);
  const auto* mla = std::get_if<MlaPlan>(&plan.tile);
  if ((decode == nullptr || decode->in_cluster) && mla == nullptr) return false;
  const int tile_q = decode != nullptr ? decode->tile_q : mla->tile_q;
  const int pieces = decode != nullptr ? decode->pieces : mla->pieces;
  const std::int64_t items = packed_items(shape, tile_q);
  const auto of_launch = [&](int most) { return att::piece_count<std::int64_t>(items, most); };
  return std::ranges::any_of(
      kPieces, [&](int fewer) { return fewer < pieces && of_launch(fewer) == of_launch(pieces); });
}

bool leaves_sequences_to_few(const AttentionSpec& spec, int pieces, bool in_cluster) {
  constexpr int kLeastDealt = 16, kLeastOfCluster = 4;
  return is_packed(spec) && !spec.batch_invariant &&
         pieces < (in_cluster ? kLeastOfCluster : kLeastDealt);
}

PiecesOfSequences pieces_of_sequences(const AttentionSpec& spec, const ProblemShape& shape,
                                      double items, int most, bool is_dealt, double units,
                                      int processors) {
  const auto whole = [](double count) { return static_cast<std::int64_t>(std::ceil(count)); };
  const auto pieces = [&](double of_sequence, std::initializer_list<AlikeItems> among) {
    if (!is_dealt) return double(most);
    const std::int64_t of_piece = chosen_length(among, shape.kv_heads, processors, most);
    return double(att::pieces_of_units<std::int64_t>(whole(of_sequence), of_piece, most));
  };
  const double of_mean = pieces(units, {{whole(items * double(shape.batch)), whole(units)}});
  // Of sequences in pages the length is the most that a row of the table has room for.
  const double longest = is_paged(spec) ? units : units * double(shape.batch) / 2;
  if (longest <= units) return {.of_mean = of_mean, .longest_units = units / of_mean};
  const double others = double(shape.batch - 1);
  const double of_longest = pieces(
      longest, {{whole(items), whole(longest)}, {whole(items * others), whole(longest / others)}});
  return {.of_mean = of_mean, .longest_units = longest / of_longest};
}

double tiles_with_longest(const PiecesOfSequences& of, double tiles, double rounds) {
  return (tiles + std::max(tiles, of.longest_units / rounds)) / 2;
}

}  // namespace attune
