#include "generator/plan/backward.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "generator/expr/derivative.hpp"
#include "generator/expr/look_up_pattern.hpp"
#include "generator/expr/score_line.hpp"
#include "generator/plan/family.hpp"
#include "generator/plan/item_counts.hpp"
#include "generator/plan/learned_plan.hpp"
#include "templates/work_items.h"

namespace attune {
namespace {

// As in templates/tile/backward_rows.cuh: kRowThreads, kRowPadding.
constexpr int kThreads = 256;
constexpr int kSplitColumns = 4;

// On CPUs, where whatever a head has a known number of is added up in order.
bool adds_by_atomics(const AttentionSpec& spec) {
  const auto in_score = expr::look_up_derivatives(spec.score, spec.environment);
  return std::ranges::any_of(in_score, [&](const expr::LookUpDerivative& d) {
    return expr::look_up_pattern(d.look_up, spec.environment).bins == 0;
  });
}

}  // namespace

Status backward_serves(const AttentionSpec& spec, LearnedSums sums) {
  if (has_scaled_cache(spec)) {
    return plan_unsupported("`kv_dtype` is of a cache that is read: there is no backward pass");
  }
  if (spec.v_in_k) {
    return plan_unsupported("`v_in_k` has no backward kernels yet",
                            "the forward pass is there: passes: [forward]");
  }
  if (is_paged(spec)) {
    return plan_unsupported(
        fmt::format("layout `{}` has no backward kernels yet", to_string(spec.layout)),
        "the forward pass is there: passes: [forward]");
  }
  if (sums != LearnedSums::kByItems) {
    return learns_in_order(spec, sums == LearnedSums::kByWarpsInLoops);
  }
  if (spec.deterministic && adds_by_atomics(spec)) {
    return plan_unsupported(
        "gradients of tensors are added up in the order in which blocks come to it, which "
        "`deterministic: true` rules out",
        "without `grad: true`, or without `deterministic: true`, there are plans");
  }
  return ok_status();
}

Launch backward_rows_launch(const BackwardRows& rows) {
  return {
      .symbol = "_rows", .threads = kThreads, .item = WorkItem::kQueryTile, .tile = rows.padding};
}

BackwardRows split_rows(const AttentionSpec& spec) {
  const bool only_adds = !spec.score || expr::score_bias(spec.score);
  return {.splits_references =
              only_adds && !spec.softmax_scale.at_launch && spec.softmax_scale.value > 0,
          .splits_deltas = !has_dropout(spec)};
}

std::vector<WorkspaceRegion> backward_row_regions(const BackwardRows& rows) {
  using Content = WorkspaceRegion::Content;
  std::vector<WorkspaceRegion> regions = {{.content = Content::kRowReferences,
                                           .length_unit = rows.padding,
                                           .columns = rows.splits_references ? kSplitColumns : 1},
                                          {.content = Content::kRowDeltas,
                                           .length_unit = rows.padding,
                                           .columns = rows.splits_deltas ? kSplitColumns : 1}};
  if (rows.sum_columns > 0) {
    regions.push_back({.content = Content::kQuerySums,
                       .length_unit = rows.padding,
                       .columns = rows.sum_columns,
                       .sum_tile = rows.sum_tile,
                       .sum_wave = rows.sum_wave,
                       .all_have_sums = rows.all_have_sums});
    if (rows.sum_wave > 0) regions.push_back({.content = Content::kHeadCounters});
    if (rows.takes_items) regions.push_back({.content = Content::kSchedulerCounter});
    if (rows.turn_rows > 0) {
      regions.push_back({.content = Content::kSumTurns, .length_unit = rows.turn_rows});
    }
  }
  if (rows.part_keys > 0) {
    for (const Content content : {Content::kKeySums, Content::kValueSums}) {
      regions.push_back(
          {.content = content, .length_unit = rows.part_keys, .walk_tile = rows.walk_tile});
    }
  }
  return regions;
}

std::string backward_row_constants(const BackwardRows& rows) {
  return fmt::format(
      "constexpr int kRowPadding = {};\n"
      "constexpr int kRowsAtATime = {};\n"
      "constexpr bool kSplitReferences = {};\n"
      "constexpr bool kSplitDeltas = {};\n"
      "constexpr int kSumColumns = {};\n"
      "constexpr int kSumTile = {};\n"
      "constexpr int kSumWave = {};\n"
      "constexpr bool kAllHaveSums = {};\n"
      "constexpr int kRowWarps = {};\n"
      "constexpr bool kTakesItems = {};\n"
      "constexpr bool kFirstTilesEarly = {};\n"
      "constexpr bool kScalesRows = {};\n"
      "constexpr int kPartKeys = {};\n",
      rows.padding, rows.at_a_time, rows.splits_references, rows.splits_deltas, rows.sum_columns,
      rows.sum_tile, rows.sum_wave, rows.all_have_sums, rows.ahead_warps, rows.takes_items,
      rows.first_tiles_early, rows.scales, rows.part_keys);
}

namespace {

// What items that take `time` each take on their own behind others of `before`, of which the last
// round has left `idle` processors.
double time_behind(double items, double time, double before, double idle, double processors) {
  const double beside = idle * std::floor(before / time);
  const double rounds = std::ceil(std::max(0.0, items - beside) / processors);
  if (idle == 0) return rounds * time;
  return std::min(rounds * time, std::max(0.0, std::ceil(items / idle) * time - before));
}

}  // namespace

double with_queries_kernel(const ShapeCost& keys, double keys_tile_elements, double keys_slowdown,
                           const QueriesKernel& queries, double queries_slowdown,
                           const ProblemShape& shape, const DeviceFacts& device,
                           const LiveWork& work) {
  const double items =
      std::ceil(double(shape.q_len) / queries.rows) * double(shape.heads) * double(shape.batch);
  const double tiles = std::ceil(double(shape.kv_len) / queries.step_keys) * work.share;
  const double elements = double(queries.rows) * queries.step_keys / keys_tile_elements;
  const double rounds = queries.are_listed ? listed_rounds(items, 1, shape, device)
                                           : std::ceil(items / device.processor_count);
  const double keys_time = std::max(1e-9, keys.rounds * keys.tiles);
  double beside = rounds * tiles * elements / keys_time;
  if (queries.keys_items > 0 && !queries.are_listed) {
    const double processors = device.processor_count, share = queries.share;
    const double time = std::max(1e-9, share * tiles * elements);
    const double idle = std::max(0.0, keys.rounds * processors - queries.keys_items);
    beside =
        time_behind(items, time, (1 - share) * keys.tiles, idle, processors) / (share * keys_time);
  }
  return (1 - queries.share) * keys_slowdown + queries.share * beside * queries_slowdown;
}

double longest_key_tile(const LiveWork& work) {
  double longest = 0, all = 0;
  for (const double live : work.of_keys) {
    longest = std::max(longest, live);
    all += live;
  }
  return all > 0 ? longest * double(work.of_keys.size()) / all : 1;
}

namespace {

// The longest of packed sequences over the mean, of which nothing is known: of lengths as far apart
// as times between random events, 1 + 1/2 + 1/3 + ..., or less.
double longest_sequence(const ProblemShape& shape) {
  constexpr double kMost = 2;
  double longest = 0;
  for (std::int64_t i = 1; i <= shape.batch && longest < kMost; ++i) longest += 1 / double(i);
  return std::min(longest, kMost);
}

}  // namespace

double listed_rounds(double items, double parts, const ProblemShape& shape,
                     const DeviceFacts& device) {
  return std::max(longest_sequence(shape) / parts, items / device.processor_count + 0.5 / parts);
}

void cut_walks(const AttentionSpec& spec, bool cuts, int tile_q, int tile_kv, double short_parts,
               const ProblemShape& shape, const DeviceFacts& device, ShapeCost& cost) {
  if (!cuts && !is_packed(spec)) return;
  const std::int64_t items =
      att::tile_count<std::int64_t>(shape.kv_len, tile_kv) * shape.kv_heads * shape.batch;
  const bool uneven = spec.mask != nullptr;
  const std::int64_t parts = !cuts             ? 1
                             : is_packed(spec) ? listed_parts(shape, tile_kv, tile_q, uneven)
                                               : walk_parts(shape, tile_kv, tile_q, uneven);
  // Four batches of 8 heads, d 256, causal, whose walks stayed whole: 1483 us, 1468 uncut.
  constexpr double kSinglePart = 1.01;
  const double whole = cost.tiles * (cuts && parts == 1 ? kSinglePart : 1);
  if (is_packed(spec)) {
    cost.rounds = double(items * parts) / device.processor_count + 0.5;
    cost.tiles = whole * listed_rounds(double(items), double(parts), shape, device) / cost.rounds;
    return;
  }
  cost.rounds = std::ceil(double(items * parts) / device.processor_count);
  cost.tiles = parts > 1 ? std::max(1.0, whole / double(parts)) : whole;
  // As far as `short_parts` were measured: 1024 queries in tiles of 64.
  constexpr std::int64_t kFewQueryTiles = 16;
  if (cuts && uneven && std::max(spec.head_dim_qk, spec.head_dim_v) > 64 &&
      att::tile_count<std::int64_t>(shape.q_len, tile_q) <= kFewQueryTiles) {
    cost.tiles *= short_parts;
  }
}

// Under a mask the rows of heads of so few keys are all made before the first key tile
// (att::heads_with_rows), and their sums become dQ behind the last. Causal, H200, us, expected
// without and with what these launches move, measured: d 64, 24 heads of 64 x 77, 70, 92, 95; 8 of
// 64 x 100 31, 41, 41; d 128, 16 of 16 x 128 27, 39, 39; 28/14, d 112, of 64 x 384 399, 647, 629;
// 32 on 8, d 128, of 8 x 640 177, 238, 258. Counted only where both families were measured: head
// dims over 96, 640 queries and more, long walks one behind another.
bool rows_are_in_open(const AttentionSpec& spec, const ProblemShape& shape, const LiveWork& work,
                      double rounds) {
  constexpr std::int64_t kShortKeys = 15 * 128, kLeastQueries = 640, kLongWalk = 32 * 64;
  constexpr double kMuchLive = 0.4;
  const int columns = std::max(spec.head_dim_qk, spec.head_dim_v);
  const bool is_plain = !spec.score && !has_dropout(spec) && !spec.deterministic &&
                        !is_packed(spec) && spec.environment.tensors.empty();
  const bool is_long = shape.q_len >= kLeastQueries && rounds > 1 &&
                       shape.q_len * (shape.heads / shape.kv_heads) >= kLongWalk;
  return spec.mask && is_plain && is_long && columns > 96 && columns <= 128 &&
         shape.kv_len <= kShortKeys && work.share >= kMuchLive;
}

ShapeCost backward_shape_cost(int tile_q, int tile_kv, double row_bytes, const ProblemShape& shape,
                              const DeviceFacts& device, const LiveWork& work) {
  const double items =
      std::ceil(double(shape.kv_len) / tile_kv) * double(shape.kv_heads) * double(shape.batch);
  const double group = double(shape.heads) / double(shape.kv_heads);
  const double rows = double(shape.batch) * double(shape.heads) * double(shape.q_len);
  return {.rounds = std::ceil(items / device.processor_count),
          .tiles = group * std::ceil(double(shape.q_len) / tile_q) * work.share,
          .slowdown = 1,
          .units_per_us = device.clock_ghz * 1e3,
          .transfer_us = rows * row_bytes / (device.memory_gb_per_s * 1e3)};
}

}  // namespace attune
