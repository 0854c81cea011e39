#include "generator/plan/launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>

#include "generator/plan/item_counts.hpp"
#include "generator/spec/shape.hpp"
#include "templates/params.h"
#include "templates/shared_prefix.h"
#include "templates/work_items.h"

namespace attune {
namespace {

constexpr std::int64_t kAlignmentBytes = 16;

std::int64_t sum(std::int64_t a, std::int64_t b) {
  std::int64_t value = 0;
  return __builtin_add_overflow(a, b, &value) ? kTooLarge : value;
}

// Items of a query tile in all heads.
std::int64_t head_sets(const Launch& launch, const ProblemShape& shape) {
  return att::head_sets<std::int64_t>(shape.heads, shape.kv_heads, launch.heads);
}

std::int64_t listed_pieces(const AttentionSpec& spec, const ProblemShape& shape,
                           std::int64_t tile) {
  if (spec.shared_prefixes) {
    return att::shared_item_count(shape.q_len, shape.batch, shape.heads, shape.kv_heads, tile);
  }
  return spec.batch_invariant
             ? att::fixed_piece_item_count(shape.q_len, shape.batch, shape.heads, shape.kv_heads,
                                           tile)
             : att::piece_item_count(shape.q_len, shape.batch, shape.heads, shape.kv_heads, tile);
}

// Of each of the items, of which a plan wants `pieces`.
std::int64_t piece_count(const ProblemShape& shape, std::int64_t items, int pieces) {
  return pieces == kFixedPieces ? att::dealt_pieces(items, shape.kv_len)
                                : att::piece_count<std::int64_t>(items, pieces);
}

// What the workspace of pieces has room for: results, each of a tile of rows; and counters.
struct PieceRoom {
  std::int64_t results, counters;
};
PieceRoom piece_room(const AttentionSpec& spec, const WorkspaceRegion& region,
                     const ProblemShape& shape) {
  if (region.of_query_tiles) {
    // Pieces of tiles of any number of rows have no more than so many rows. Of packed sequences one
    // item alone may be cut.
    const bool may_be_cut =
        is_packed(spec) ? att::may_cut_listed(shape.heads, shape.q_len)
                        : product({shape.batch, shape.heads, shape.q_len}) <= att::kMostKeyRows / 2;
    return may_be_cut ? PieceRoom{att::kMostKeyRows, att::kKeyCounters} : PieceRoom{0, 0};
  }
  if (is_packed(spec) && region.pieces == kFixedPieces)
    return {att::kMostFixedResults, att::kMostFixedResults};
  if (is_packed(spec) && region.pieces == kSharedPieces) {
    const std::int64_t room = att::shared_result_room(shape.batch, shape.kv_heads) * shape.kv_heads;
    return {room, room + 1};  // a counter of the launch in front
  }
  if (is_packed(spec)) return {att::kMostPieces, att::kMostPieces};
  const std::int64_t items = packed_items(shape, region.length_unit);
  const std::int64_t pieces = piece_count(shape, items, region.pieces);
  return pieces == 1 ? PieceRoom{0, 0} : PieceRoom{items * pieces, items};
}

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return value > kTooLarge - unit ? kTooLarge : att::tile_count(value, unit) * unit;
}

// Units that the rows of a slice take, of `length` rows in all. Packed sequences begin one each.
std::int64_t unit_count(const AttentionSpec& spec, const ProblemShape& shape, std::int64_t length,
                        std::int64_t unit) {
  if (!is_packed(spec)) return round_up(length, unit) / unit;
  return unit == 1 ? length : att::sequence_item_count(length, shape.batch, unit);
}

// Of the walk of a key tile.
std::int64_t walk_parts(const AttentionSpec& spec, const ProblemShape& shape, int tile_kv,
                        int tile_q) {
  const bool uneven = spec.mask != nullptr;
  return is_packed(spec) ? most_listed_parts(shape, tile_kv, tile_q, uneven)
                         : attune::walk_parts(shape, tile_kv, tile_q, uneven);
}

// Of each item of a launch.
std::int64_t parts_of_walks(const AttentionSpec& spec, const Launch& launch,
                            const ProblemShape& shape) {
  return launch.walk_tile > 0 ? walk_parts(spec, shape, launch.tile, launch.walk_tile) : 1;
}

// CTAs of a launch that add up what parts of walks left.
std::int64_t sum_ctas(const AttentionSpec& spec, const LaunchRecipe& recipe, const Launch& launch,
                      const ProblemShape& shape) {
  if (!launch.adds_parts) return 0;
  const Launch& keys = recipe.main();
  const std::int64_t parts = walk_parts(spec, shape, keys.tile, keys.walk_tile);
  if (is_packed(spec)) {
    const auto tiles = att::sequence_item_count<std::int64_t>(shape.kv_len, shape.batch, keys.tile);
    return att::ctas_of_listed_sums<std::int64_t>(parts, product({tiles, shape.kv_heads}),
                                                  keys.tile);
  }
  return att::ctas_of_sums<std::int64_t>(
      parts, product({shape.kv_len, shape.kv_heads, shape.batch}),
      std::int64_t{spec.head_dim_qk} + spec.head_dim_v, launch.threads);
}

const expr::TensorDecl& tensor_of(const AttentionSpec& spec, int slot) {
  return spec.environment.tensors[static_cast<std::size_t>(slot)];
}

// Of sums of dQ.
att::SumHeads<std::int64_t> sum_heads(const WorkspaceRegion& region, const ProblemShape& shape) {
  return att::sum_heads<std::int64_t>(product({shape.batch, shape.kv_heads}),
                                      att::tile_count<std::int64_t>(shape.kv_len, region.sum_tile),
                                      region.sum_wave, region.all_have_sums);
}

}  // namespace

const Launch& LaunchRecipe::main() const {
  return *std::ranges::find(launches, symbol, &Launch::symbol);
}

bool LaunchRecipe::needs_tensor_maps() const {
  return std::ranges::any_of(launches, [](const Launch& l) {
    return !std::ranges::all_of(l.tensor_maps, &TensorMapRecipe::is_optional);
  });
}

RangeGeometry range_geometry(const expr::TensorDecl& tensor, const ProblemShape& shape) {
  RangeGeometry geometry;
  for (std::size_t i = 0; i < tensor.dims.size(); ++i) {
    const std::int64_t size = dim_size(tensor.dims[i], shape);
    if (i + 1 < tensor.dims.size()) {
      geometry.rows = product({geometry.rows, size});
    } else {
      geometry.length = size;
    }
  }
  const std::int64_t blocks = att::tile_count<std::int64_t>(geometry.length, att::kRangeBlock);
  geometry.pairs = product({geometry.rows, blocks});
  return geometry;
}

std::int64_t item_count(const AttentionSpec& spec, const LaunchRecipe& recipe, const Launch& launch,
                        const ProblemShape& shape) {
  const std::int64_t tile = launch.tile;
  switch (launch.item) {
    case WorkItem::kQueryTile: {
      const std::int64_t items = att::tile_count(shape.q_len, tile * launch.cluster) *
                                 head_sets(launch, shape) * shape.batch;
      const std::int64_t pieces = att::key_piece_count<std::int64_t>(
          items, std::int64_t{launch.tile} * launch.heads, launch.pieces);
      return items * pieces + sum_ctas(spec, recipe, launch, shape);
    }
    case WorkItem::kFirstQueryTile:
    case WorkItem::kLastQueryTile: {
      const auto& region = *std::ranges::find(
          recipe.workspace, WorkspaceRegion::Content::kQuerySums, &WorkspaceRegion::content);
      const auto sums = sum_heads(region, shape);
      std::int64_t kv_heads = shape.batch * shape.kv_heads;
      if (launch.item == WorkItem::kFirstQueryTile) {
        const std::int64_t tiles = att::tile_count<std::int64_t>(shape.kv_len, region.sum_tile);
        const bool uneven = spec.mask != nullptr;
        kv_heads = std::max(
            sums.slots, att::heads_with_rows(kv_heads, tiles, sums, uneven, region.all_have_sums));
      } else if (!region.all_have_sums) {
        kv_heads -= sums.converted;
      }
      return att::tile_count(shape.q_len, tile) * kv_heads * (shape.heads / shape.kv_heads) +
             sum_ctas(spec, recipe, launch, shape);
    }
    case WorkItem::kPackedQueryTile: {
      const std::int64_t items = packed_items(shape, tile);
      return items * piece_count(shape, items, launch.pieces);
    }
    case WorkItem::kSequenceTile: {
      const std::int64_t items =
          att::sequence_item_count<std::int64_t>(shape.q_len, shape.batch, tile * launch.cluster) *
          head_sets(launch, shape);
      return items * piece_count(shape, items, launch.pieces) +
             sum_ctas(spec, recipe, launch, shape);
    }
    case WorkItem::kSequenceKeyTile:
      return att::sequence_item_count<std::int64_t>(shape.kv_len, shape.batch,
                                                    tile * launch.cluster) *
             launch.parts * shape.kv_heads * parts_of_walks(spec, launch, shape);
    case WorkItem::kListedPiece:
      return listed_pieces(spec, shape, tile) * shape.kv_heads;
    case WorkItem::kStretch:
      return std::max<std::int64_t>(att::kMostStretches, shape.kv_heads);
    case WorkItem::kFoundTile:
      return att::packed_tile_count<std::int64_t>(shape.q_len, shape.batch, shape.heads,
                                                  shape.kv_heads, tile) *
             shape.kv_heads;
    case WorkItem::kKeyTile:
      return att::tile_count(shape.kv_len, tile * launch.cluster) * launch.parts * shape.kv_heads *
             shape.batch * parts_of_walks(spec, launch, shape);
    case WorkItem::kKvHead:
      return shape.kv_heads * shape.batch;
    case WorkItem::kHeadPart:
      return att::head_parts(shape.kv_heads * shape.batch) * shape.kv_heads * shape.batch;
    case WorkItem::kSequence:
      return shape.batch;
    case WorkItem::kPass:
      return 1;
    case WorkItem::kRows:
      return att::tile_count(slice_count(spec, shape) * shape.heads * shape.q_len, tile);
    case WorkItem::kRangePairs:
      break;
  }
  std::int64_t pairs = 0;
  for (const WorkspaceRegion& region : recipe.workspace) {
    if (region.content != WorkspaceRegion::Content::kBlockRanges) continue;
    pairs = sum(pairs, range_geometry(tensor_of(spec, region.slot), shape).pairs);
  }
  const std::int64_t run_rows =
      spec.runs ? range_geometry(tensor_of(spec, spec.runs->numbers), shape).rows : 0;
  return sum(run_rows, pairs / tile + (pairs % tile != 0 ? 1 : 0));
}

Result<unsigned> grid_size(const Launch& launch, std::int64_t items, int processor_count) {
  if (items > INT_MAX / launch.cluster) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "launch-too-large",
                 .message = fmt::format("{} work items of {} are more than a launch can have",
                                        items, launch.symbol),
                 .hint = "launch parts of the batch one after the other"};
  }
  const std::int64_t ctas = items * launch.cluster;
  if (!launch.persistent) return static_cast<unsigned>(ctas);
  const std::int64_t resident = static_cast<std::int64_t>(processor_count) *
                                launch.ctas_per_processor / launch.cluster * launch.cluster;
  return static_cast<unsigned>(std::min(ctas, resident));
}

std::int64_t region_bytes(const AttentionSpec& spec, const WorkspaceRegion& region,
                          const ProblemShape& shape) {
  using Content = WorkspaceRegion::Content;
  const auto columns = [&](int usual) { return region.columns > 0 ? region.columns : usual; };
  const std::int64_t slices = slice_count(spec, shape);
  const std::int64_t unit = region.length_unit;
  const std::int64_t q_rows = product({unit_count(spec, shape, shape.q_len, unit), unit});
  const std::int64_t kv_units = unit_count(spec, shape, shape.kv_len, unit);
  const std::int64_t kv_rows = product({kv_units, unit});
  // A single part of a cut walk is stored where it belongs.
  const auto parts_kept = [&]() -> std::int64_t {
    if (region.walk_tile == 0) return 1;
    const std::int64_t parts = walk_parts(spec, shape, region.length_unit, region.walk_tile);
    return parts > 1 ? parts : 0;
  };
  std::int64_t bytes = 0;
  switch (region.content) {
    case Content::kSchedulerCounter:
      bytes = 4;
      break;
    case Content::kBlockRanges:
      bytes = product({range_geometry(tensor_of(spec, region.slot), shape).pairs, 8});
      break;
    case Content::kRunPositions: {
      const RangeGeometry numbers = range_geometry(tensor_of(spec, region.of_slot), shape);
      bytes = product({numbers.rows, numbers.length, 4});
      break;
    }
    case Content::kRowReferences:
    case Content::kRowDeltas:
      bytes = product({slices, shape.heads, q_rows, columns(1), 4});
      break;
    case Content::kQuerySums:
      bytes = region.sum_wave == 0
                  ? product({slices, shape.heads, q_rows, columns(spec.head_dim_qk), 4,
                             region.in_parts ? att::head_parts(slices * shape.kv_heads) : 1})
                  : product({sum_heads(region, shape).slots, shape.heads / shape.kv_heads, q_rows,
                             columns(spec.head_dim_qk), 4});
      break;
    case Content::kHeadCounters:
      bytes = product({slices, shape.kv_heads, sizeof(att::HeadCounters)});
      break;
    case Content::kSumTurns:
      bytes = product({slices, shape.heads, unit_count(spec, shape, shape.q_len, unit), 4});
      break;
    case Content::kKeySums:
      bytes =
          product({parts_kept(), slices, shape.kv_heads, kv_rows, columns(spec.head_dim_qk), 4});
      break;
    case Content::kValueSums:
      bytes = product({parts_kept(), slices, shape.kv_heads, kv_rows, columns(spec.head_dim_v), 4});
      break;
    case Content::kLearnedSums:
      bytes = product({slices, shape.heads, kv_units, columns(1), 4});
      break;
    case Content::kSequenceItems:
      bytes = product(
          {att::sequence_item_count<std::int64_t>(shape.q_len, shape.batch, region.length_unit),
           sizeof(att::SequenceItem)});
      break;
    case Content::kKeyItems:
      bytes = product(
          {att::sequence_item_count<std::int64_t>(shape.kv_len, shape.batch, region.length_unit),
           sizeof(att::SequenceItem)});
      break;
    case Content::kPieceResults:
      bytes =
          product({piece_room(spec, region, shape).results, region.length_unit, region.columns, 4});
      break;
    case Content::kPieceArrivals:
      bytes = product({piece_room(spec, region, shape).counters, columns(1), 4});
      break;
    case Content::kPieceItems:
      bytes =
          spec.shared_prefixes
              ? sum(product({listed_pieces(spec, shape, region.length_unit),
                             sizeof(att::SharedPieceItem)}),
                    product({shape.batch, sizeof(att::SharedSequence)}))
              : product({listed_pieces(spec, shape, region.length_unit), sizeof(att::PieceItem)});
      break;
  }
  return round_up(bytes, kAlignmentBytes);
}

std::int64_t workspace_bytes(const AttentionSpec& spec, std::span<const WorkspaceRegion> regions,
                             const ProblemShape& shape) {
  std::int64_t bytes = 0;
  for (const WorkspaceRegion& region : regions) {
    bytes = sum(bytes, region_bytes(spec, region, shape));
  }
  return bytes;
}

bool covers(std::span<const WorkspaceRegion> promised, std::span<const WorkspaceRegion> needed) {
  return std::ranges::all_of(needed, [&](const WorkspaceRegion& need) {
    return std::ranges::any_of(promised, [&](const WorkspaceRegion& has) {
      // Smaller tiles are more of them.
      const bool counts_tiles = need.content == WorkspaceRegion::Content::kLearnedSums ||
                                need.content == WorkspaceRegion::Content::kSumTurns ||
                                need.content == WorkspaceRegion::Content::kSequenceItems ||
                                need.content == WorkspaceRegion::Content::kKeyItems;
      const bool of_walks = need.content == WorkspaceRegion::Content::kKeySums ||
                            need.content == WorkspaceRegion::Content::kValueSums;
      const bool has_length = counts_tiles ? has.length_unit <= need.length_unit
                                           : has.length_unit % need.length_unit == 0;
      // All heads' are enough for some.
      const bool has_heads =
          has.sum_tile == need.sum_tile &&
          (has.all_have_sums ? need.sum_wave > 0
                             : has.sum_wave == need.sum_wave && !need.all_have_sums);
      return has.content == need.content && has.slot == need.slot && has_length && has_heads &&
             has.columns >= need.columns && has.pieces >= need.pieces &&
             has.of_query_tiles == need.of_query_tiles && has.walk_tile == need.walk_tile &&
             (!of_walks || has.length_unit == need.length_unit);
    });
  });
}

}  // namespace attune
