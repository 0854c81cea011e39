// The cpu family's plans of the backward pass. What they mean in the kernels:
// templates/kernels/cpu_backward.h.
#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cmath>

#include "generator/expr/derivative.hpp"
#include "generator/expr/look_up_pattern.hpp"
#include "generator/plan/backward.hpp"
#include "generator/plan/cpu_registers.hpp"
#include "generator/plan/family.hpp"
#include "templates/work_items.h"

namespace attune {
namespace {

constexpr int kRowsOfItem = 64;  // of the launch that prepares them
// Each tile of keys has sums of its own of what is learned.
constexpr int kLeastLearningTile = 128;

const CpuBackwardPlan& tile_of(const KernelPlan& plan) {
  return std::get<CpuBackwardPlan>(plan.tile);
}

RegisterBlock block_of(const CpuBackwardPlan& tile) {
  return {.vector_bytes = tile.vector_bytes, .unroll = tile.unroll, .columns = tile.columns};
}

// Numbers that a head has of what the score learns.
int learned_columns(const AttentionSpec& spec) {
  int columns = 0;
  for (const auto& d : expr::look_up_derivatives(spec.score, spec.environment)) {
    columns += expr::look_up_pattern(d.look_up, spec.environment).bins;
  }
  return columns;
}

// Whether there is a launch that finishes gradients of tensors or of the sink.
bool learns(const AttentionSpec& spec) {
  return spec.sink != nullptr || !expr::look_up_derivatives(spec.score, spec.environment).empty();
}

bool may_be_in_parts(const AttentionSpec& spec) {
  return !is_packed(spec) && learned_columns(spec) == 0;
}

Status serves(const AttentionSpec& spec, Target target) {
  ATT_CHECK(cpu_family().serves(spec, target));
  return backward_serves(spec, LearnedSums::kByItems);
}

PlanResources resources_of(const AttentionSpec&, const KernelPlan& plan) {
  PlanResources resources;
  resources.threads = 1;
  resources.registers_per_thread = block_of(tile_of(plan)).registers();
  return resources;
}

Status check(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const CpuBackwardPlan& tile = tile_of(plan);
  const RegisterBlock block = block_of(tile);
  ATT_CHECK(check_registers(block, device));
  if (tile.step < tile.unroll || tile.step > 1024 || tile.step % tile.unroll != 0) {
    return plan_unsupported(
        fmt::format("at most 1024 rows at a time in steps of {}, not {}", tile.unroll, tile.step));
  }
  if (tile.tile < 1 || tile.tile > 1024 || tile.tile % block.width() != 0) {
    return plan_unsupported(fmt::format("a tile of at most 1024 rows in steps of {}, not {}",
                                        block.width(), tile.tile));
  }
  if (tile.in_parts && !(tile.whole_heads && may_be_in_parts(spec))) {
    return plan_unsupported(
        "heads have parts in plans of whole heads, dense and without what is learned");
  }
  if (!tile.whole_heads && tile.tile < kLeastLearningTile && learned_columns(spec) > 0) {
    return plan_unsupported(
        fmt::format("learned numbers are summed in tiles of at least {} keys", kLeastLearningTile));
  }
  return ok_status();
}

std::vector<KernelPlan> legal(const AttentionSpec& spec, const DeviceFacts& device) {
  std::vector<KernelPlan> plans;
  for (const RegisterBlock& block : register_blocks(device)) {
    // Multiples of 12 stand in for powers of two where 6 and 12 rows need them.
    const int unit = block.unroll % 3 == 0 ? 48 : 64;
    for (const int blocks : {1, 2, 4, 8}) {
      for (const int step : {unit, 2 * unit}) {
        const auto add = [&](bool whole_heads, bool in_parts) {
          const KernelPlan plan{.pass = Pass::kBackward,
                                .target = Target::kCpu,
                                .tile = CpuBackwardPlan{.tile = block.width() * blocks,
                                                        .step = step,
                                                        .unroll = block.unroll,
                                                        .columns = block.columns,
                                                        .vector_bytes = block.vector_bytes,
                                                        .whole_heads = whole_heads,
                                                        .in_parts = in_parts}};
          if (check(spec, plan, device).ok()) plans.push_back(plan);
        };
        add(true, false);
        add(true, true);
        add(false, false);
      }
    }
  }
  return plans;
}

// Every plan is a group of its own: there are a few dozen, and a launch's time is its shape's.
PlanCost plan_cost(const AttentionSpec&, const KernelPlan& plan, const DeviceFacts&) {
  const CpuBackwardPlan& tile = tile_of(plan);
  return {.tile = 1,
          .launch_us = 15,
          .group = {tile.tile, tile.step, tile.unroll, tile.columns, tile.vector_bytes,
                    tile.whole_heads, tile.in_parts}};
}

Tiling tiling(const AttentionSpec&, const KernelPlan&, const ProblemShape&, const DeviceFacts&) {
  return {};
}

// Numbers that a tile keeps for each of its own rows, and reads and writes for each row that it
// walks.
double own_numbers(const AttentionSpec& spec, const CpuBackwardPlan& tile) {
  return (tile.whole_heads ? 3.0 : 2.0) * spec.head_dim_qk + 2.0 * spec.head_dim_v;
}
double walked_numbers(const AttentionSpec& spec, const CpuBackwardPlan& tile) {
  return (tile.whole_heads ? 3.0 : 1.0) * spec.head_dim_qk + spec.head_dim_v;
}

constexpr double kFarBytesPerClock = 16;

// What comes from beyond L2: rows that are walked once a tile, where they do not fit, and a tile's
// own, once a step. On a Cascade Lake 192 keys, d 128, s 4096, are 8 % faster than 48.
double far_clocks(const AttentionSpec& spec, const CpuBackwardPlan& tile, double walked,
                  const DeviceFacts& device) {
  const double room = double(device.l2_bytes);
  const double walked_bytes = 4 * walked * walked_numbers(spec, tile);
  const double own_bytes = 4.0 * tile.tile * own_numbers(spec, tile);
  const double bytes = (walked_bytes > room ? walked_bytes : 0) +
                       (own_bytes > room ? own_bytes * walked / tile.step : 0);
  return bytes / kFarBytesPerClock;
}

// Of a tile of `own` rows that walks `walked` rows and makes products of `depth` elements with
// each.
double tile_clocks(const AttentionSpec& spec, const CpuBackwardPlan& tile, double own,
                   double walked, double depth, const DeviceFacts& device) {
  const RegisterBlock block = block_of(tile);
  const double vectors = std::ceil(std::min(double(tile.tile), own) / block.lanes());
  // Blocks and steps on a mask's edge are done whole.
  const double rows = walked + (spec.mask != nullptr ? tile.step + block.width() : 0);
  const double of_scores = spec.head_dim_qk + spec.head_dim_v;
  const double flops = 2.0 * vectors * block.lanes() * rows;  // an element of depth
  const double clocks =
      product_clocks(block, flops * of_scores, device) +
      product_clocks(block, flops * (depth - of_scores), device, spec.head_dim_qk);
  // A gradient's sums are loaded and stored once a step. P and dS are read between the products,
  // and fill L1 soon.
  constexpr double kNearBytes = 32768, kSlowdown = 1.04;
  const double scores = 8.0 * tile.step * block.width() > kNearBytes ? kSlowdown : 1;
  return clocks * (1 + 2.0 / tile.step) * scores + far_clocks(spec, tile, rows, device) +
         copy_clocks(spec, rows, spec.head_dim_qk + spec.head_dim_v);
}

ShapeCost shape_cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                     const DeviceFacts& device, const LiveWork&) {
  const CpuBackwardPlan& tile = tile_of(plan);
  const double qk = spec.head_dim_qk, v = spec.head_dim_v;
  const double heads = double(shape.batch) * double(shape.heads);
  const double kv_heads = double(shape.batch) * double(shape.kv_heads);
  const double q_len = double(shape.q_len), kv_len = double(shape.kv_len);
  const double key_tiles = std::ceil(kv_len / tile.tile);
  const double threads = device.processor_count;
  // Threads end apart by a fifth of an item: 16 heads on 16 threads leave that much of them idle
  // (Sapphire Rapids, d 128, s 1024 and 2048).
  const auto rounds = [&](double items) {
    return std::ceil(items / threads) + (threads > 1 ? 0.2 : 0);
  };
  const double walked = q_len * heads / kv_heads;
  double clocks = 0;
  if (tile.whole_heads) {
    const double parts = tile.in_parts ? att::head_parts(kv_heads) : 1.0;
    clocks = rounds(kv_heads * parts) * std::ceil(key_tiles / parts) *
             tile_clocks(spec, tile, kv_len, walked, 3 * qk + 2 * v, device);
    // dQ of parts is zeroed and added up.
    if (tile.in_parts) clocks += 8 * heads * q_len * qk * parts / kFarBytesPerClock / threads;
  } else {
    clocks = rounds(kv_heads * key_tiles) *
                 tile_clocks(spec, tile, kv_len, walked, 2 * qk + 2 * v, device) +
             rounds(heads * std::ceil(q_len / tile.tile)) *
                 tile_clocks(spec, tile, q_len, kv_len, 2 * qk + v, device);
  }
  const double bytes =
      2.0 * element_bytes(spec.dtype) * (heads * q_len * (qk + v) + kv_heads * kv_len * (qk + v));
  return {.tiles = clocks,
          .units_per_us = device.clock_ghz * 1e3,
          .transfer_us = bytes / (device.memory_gb_per_s * 1e3)};
}

enum class QuerySums { kNone, kWhole, kInParts };
// `lanes`: of a vector; `tile`: the keys whose sums of what is learned are together.
std::vector<WorkspaceRegion> regions(const AttentionSpec& spec, QuerySums sums, int lanes,
                                     int tile) {
  using Content = WorkspaceRegion::Content;
  std::vector<WorkspaceRegion> all = {{.content = Content::kRowReferences},
                                      {.content = Content::kRowDeltas}};
  if (sums != QuerySums::kNone) {
    all.push_back({.content = Content::kQuerySums,
                   .columns = (spec.head_dim_qk + lanes - 1) / lanes * lanes,
                   .in_parts = sums == QuerySums::kInParts});
  }
  if (const int columns = learned_columns(spec); columns > 0) {
    all.push_back({.content = Content::kLearnedSums, .length_unit = tile, .columns = columns});
  }
  return all;
}

LaunchRecipe recipe(const AttentionSpec& spec, const KernelPlan& plan) {
  const CpuBackwardPlan& tile = tile_of(plan);
  LaunchRecipe recipe;
  recipe.launches = {{.symbol = "_rows", .item = WorkItem::kRows, .tile = kRowsOfItem}};
  if (tile.whole_heads) {
    recipe.launches.push_back(
        {.symbol = "", .item = tile.in_parts ? WorkItem::kHeadPart : WorkItem::kKvHead});
    if (tile.in_parts) {
      recipe.launches.push_back(
          {.symbol = "_queries", .item = WorkItem::kRows, .tile = kRowsOfItem});
    }
  } else {
    recipe.launches.push_back({.symbol = "", .item = WorkItem::kKeyTile, .tile = tile.tile});
    recipe.launches.push_back(
        {.symbol = "_queries", .item = WorkItem::kQueryTile, .tile = tile.tile});
  }
  if (learns(spec)) recipe.launches.push_back({.symbol = "_learned", .item = WorkItem::kPass});
  const QuerySums sums = tile.in_parts      ? QuerySums::kInParts
                         : tile.whole_heads ? QuerySums::kWhole
                                            : QuerySums::kNone;
  recipe.workspace =
      regions(spec, sums, block_of(tile).lanes(), tile.whole_heads ? INT_MAX : tile.tile);
  return recipe;
}

std::vector<WorkspaceRegion> widest_workspace(const AttentionSpec& spec, Target) {
  constexpr int kMostLanes = 16;
  return regions(spec, may_be_in_parts(spec) ? QuerySums::kInParts : QuerySums::kWhole, kMostLanes,
                 kLeastLearningTile);
}

TileShape tile_shape_of(const KernelPlan& plan) { return {tile_of(plan).step, tile_of(plan).tile}; }

std::vector<int> choices(const KernelPlan& plan) {
  const CpuBackwardPlan& t = tile_of(plan);
  return {t.tile, t.step, t.unroll, t.columns, t.vector_bytes, t.whole_heads, t.in_parts};
}

std::string tile_text(const KernelPlan& plan) {
  const CpuBackwardPlan& tile = tile_of(plan);
  return fmt::format("t{} s{} u{} c{} v{}{}{}", tile.tile, tile.step, tile.unroll, tile.columns,
                     tile.vector_bytes, tile.whole_heads ? " heads" : "",
                     tile.in_parts ? " parts" : "");
}

Status parse_tile(std::span<const std::string_view> words, KernelPlan& plan) {
  CpuBackwardPlan tile;
  int seen = 0;
  for (const std::string_view word : words) {
    if (word == "heads") {
      tile.whole_heads = true;
      continue;
    }
    if (word == "parts") {
      tile.in_parts = true;
      continue;
    }
    if (!parse_word(word, "t", tile.tile) && !parse_word(word, "s", tile.step) &&
        !parse_word(word, "u", tile.unroll) && !parse_word(word, "c", tile.columns) &&
        !parse_word(word, "v", tile.vector_bytes)) {
      return plan_text_error(fmt::format("`{}` is no word of a cpu backward plan", word));
    }
    ++seen;
  }
  if (seen != 5) return plan_text_error("a cpu backward plan needs t, s, u, c and v once each");
  plan.tile = tile;
  return ok_status();
}

std::string symbol_part(const KernelPlan& plan) {
  const CpuBackwardPlan& tile = tile_of(plan);
  return fmt::format("t{}s{}v{}{}{}", tile.tile, tile.step, tile.vector_bytes,
                     tile.whole_heads ? "heads" : "", tile.in_parts ? "parts" : "");
}

std::string head_constants(const AttentionSpec& spec, const KernelPlan& plan) {
  const CpuBackwardPlan& tile = tile_of(plan);
  // The instruction set is chosen by the preprocessor (templates/cpu/vector.h), and which kernels
  // there are.
  return fmt::format(
      "constexpr int kTile = {};\n"
      "constexpr int kStep = {};\n"
      "constexpr int kUnroll = {};\n"
      "constexpr int kColumns = {};\n"
      "constexpr int kRowsOfItem = {};\n"
      "constexpr bool kWholeHeads = {};\n"
      "constexpr bool kInParts = {};\n"
      "#define ATT_VECTOR_BYTES {}\n"
      "#define ATT_WHOLE_HEADS {:d}\n"
      "#define ATT_IN_PARTS {:d}\n"
      "#define ATT_LEARNS {:d}\n",
      tile.tile, tile.step, tile.unroll, tile.columns, kRowsOfItem, tile.whole_heads, tile.in_parts,
      tile.vector_bytes, tile.whole_heads, tile.in_parts, learns(spec));
}

}  // namespace

const FamilyOperations& cpu_backward_family() {
  static constexpr FamilyOperations kOperations = {
      .family = Family::kCpu,
      .pass = Pass::kBackward,
      .name = "cpu",
      .symbol_name = "cpu",
      .template_path = "templates/kernels/cpu_backward.h",
      .serves = serves,
      .legal_plans = legal,
      .check = check,
      .resources = resources_of,
      .plan_cost = plan_cost,
      .tiling = tiling,
      .shape_cost = shape_cost,
      .launch_recipe = recipe,
      .widest_workspace = widest_workspace,
      .takes_any_strides = true,
      .tile_shape = tile_shape_of,
      .choices = choices,
      .tile_text = tile_text,
      .parse_tile = parse_tile,
      .symbol_part = symbol_part,
      .head_constants = head_constants,
  };
  return kOperations;
}

}  // namespace attune
