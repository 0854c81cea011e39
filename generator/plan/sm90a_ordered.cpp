// The sm90a family's ordered plans of the backward pass. What they mean in the kernels:
// templates/kernels/sm90_ordered_backward.cuh and sm90_ordered_both_backward.cuh.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "generator/expr/derivative.hpp"
#include "generator/plan/backward.hpp"
#include "generator/plan/family.hpp"
#include "generator/plan/item_counts.hpp"
#include "generator/plan/learned_plan.hpp"
#include "generator/plan/live_share.hpp"
#include "generator/plan/sm90a_parts.hpp"
#include "generator/plan/wgmma.hpp"

namespace attune {
namespace {

constexpr int kWarpgroups = 2;  // consumers of the keys' kernel
constexpr int kKeys = 64;       // of a warpgroup
constexpr int kStoreRows = 16;
constexpr int kNarrow = 64;        // columns
constexpr int kMostForBoth = 128;  // columns: dK and dV of more leave no registers for S and dP

// Of a thread, with so many consumer warpgroups: all that a processor has.
struct Registers {
  int producer, consumer;
};
constexpr Registers registers_of(int warpgroups) {
  return warpgroups == 2 ? Registers{24, 240} : Registers{32, 160};
}

const Sm90aOrderedPlan& tile_of(const KernelPlan& plan) {
  return std::get<Sm90aOrderedPlan>(plan.tile);
}

// Of a CTA of the keys' kernel.
int tile_kv(const Sm90aOrderedPlan& tile) {
  return tile.both_gradients ? kKeys * kWarpgroups : kKeys;
}
// Of one of the queries' kernel.
int tile_rows(const Sm90aOrderedPlan& tile) { return 64 * tile.query_warpgroups; }

int widest(const AttentionSpec& spec) { return std::max(spec.head_dim_qk, spec.head_dim_v); }

int qk_bytes(const AttentionSpec& spec, int rows) {
  return slabs(spec.head_dim_qk) * rows * kSlabRowBytes;
}
int v_bytes(const AttentionSpec& spec, int rows) {
  return slabs(spec.head_dim_v) * rows * kSlabRowBytes;
}

Status serves(const AttentionSpec& spec, Target target) {
  ATT_CHECK(sm90a_family().serves(spec, target));
  // Of wider ones in steps of 8 no gradient was judged on a GPU.
  if (widest(spec) > 128 && (spec.head_dim_qk % 16 != 0 || spec.head_dim_v % 16 != 0)) {
    return plan_unsupported("Hopper's backward passes of head dims above 128 go in steps of 16");
  }
  return backward_serves(spec, LearnedSums::kByWarps);
}

// Of packed sequences: what the CTA has of the list, and a barrier.
int listed_bytes(const AttentionSpec& spec) { return is_packed(spec) ? 32 + 8 : 0; }

// As in templates/tile/sm90_ordered_keys_layout.cuh: KeysMemory; with both gradients as in
// sm90_backward_layout.cuh, without dS.
int keys_bytes(const AttentionSpec& spec, const Sm90aOrderedPlan& tile) {
  const BackwardRows rows = split_rows(spec);
  const int row_bytes = (rows.splits_references ? 16 : 4) + (rows.splits_deltas ? 16 : 4);
  constexpr int kHalvesBytes = 128, kTileInfoBytes = 16;
  const int matrices = qk_bytes(spec, tile_kv(tile)) + v_bytes(spec, tile_kv(tile)) +
                       tile.stages * (qk_bytes(spec, tile.tile_q) + v_bytes(spec, tile.tile_q));
  const int known = tile.stages * tile.tile_q * row_bytes + kHalvesBytes + kReadAgainBytes;
  if (tile.both_gradients) {
    return matrices + known + tile.stages * kTileInfoBytes + 8 * (4 * tile.stages + 2);
  }
  const int slopes = kKeys * tile.tile_q * 4;
  return matrices + known + slopes + 2 * tile.stages * kTileInfoBytes + 8 * (4 * tile.stages + 3) +
         listed_bytes(spec);
}

// QueriesMemory.
int queries_bytes(const AttentionSpec& spec, const Sm90aOrderedPlan& tile, int value_stages) {
  const int rows = tile_rows(tile);
  return qk_bytes(spec, rows) + v_bytes(spec, rows) +
         tile.stages * (qk_bytes(spec, tile.step_keys) + 8) +
         value_stages * v_bytes(spec, tile.step_keys) +
         8 * (2 * tile.stages + 2 * value_stages + 1) + listed_bytes(spec);
}

// V is needed for a shorter time than K, and one tile of it will do.
int value_stages(const AttentionSpec& spec, const Sm90aOrderedPlan& tile,
                 const DeviceFacts& device) {
  return queries_bytes(spec, tile, 2) <= device.shared_memory_per_block_bytes ? 2 : 1;
}

// Of one tiling of each head dim, so that workspaces have room for its parts alone. Sums of what is
// learned have a place for each key tile, not for parts.
bool may_cut_walks(const AttentionSpec& spec, const Sm90aOrderedPlan& tile) {
  // Of packed sequences the kernels of five products cut narrow heads' walks, but where they are
  // not deterministic.
  const bool may_be_narrow = is_packed(spec) && spec.deterministic && tile.tile_q == kKeys;
  return (tile.both_gradients || widest(spec) > kMostForBoth || may_be_narrow) &&
         expr::look_up_derivatives(spec.score, spec.environment).empty();
}

BackwardRows rows_of(const AttentionSpec& spec, const Sm90aOrderedPlan& tile) {
  BackwardRows rows = split_rows(spec);
  if (tile.cuts_walks) {
    rows.part_keys = tile_kv(tile);
    rows.walk_tile = tile.tile_q;
  }
  return rows;
}

// Of the kernel that takes more.
PlanResources resources_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm90aOrderedPlan& tile = tile_of(plan);
  PlanResources resources;
  resources.threads = 128 * (std::max(kWarpgroups, tile.query_warpgroups) + 1);
  resources.shared_memory_bytes =
      std::max(keys_bytes(spec, tile),
               queries_bytes(spec, tile, value_stages(spec, tile, device_facts(plan.target))));
  // A gradient or two, a product or two, and an operand; the rest is addresses.
  const int gradients =
      (tile.both_gradients ? whole_steps(spec.head_dim_qk) + whole_steps(spec.head_dim_v)
                           : whole_steps(widest(spec))) /
      2;
  resources.registers_per_thread =
      gradients + tile.tile_q + tile.tile_q / 4 + 28 + (spec.score ? 8 : 0);
  return resources;
}

Status check(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const Sm90aOrderedPlan& tile = tile_of(plan);
  if (tile.tile_q != 64 && tile.tile_q != 128) return plan_unsupported("query tiles of 64 or 128");
  if (tile.step_keys != 64 && tile.step_keys != 128) return plan_unsupported("64 or 128 keys");
  if (tile.stages < 2 || tile.stages > 4) return plan_unsupported("2 to 4 stages");
  if (tile.query_warpgroups != 2 && tile.query_warpgroups != 3) {
    return plan_unsupported("2 or 3 warpgroups of queries");
  }
  const PlanResources needs = resources_of(spec, plan);
  // dQ, S, dP and dS of 128 keys; dV or dK, S or dP with slopes, and an operand of 128 queries.
  if ((tile.step_keys > 64 && spec.head_dim_qk > 64) || (tile.tile_q > 64 && widest(spec) > 128)) {
    return plan_unsupported("tiles of 128 leave no registers for so many columns");
  }
  if (tile.both_gradients && (widest(spec) > kMostForBoth || tile.tile_q > 64)) {
    return plan_unsupported("dK and dV of a warpgroup leave no registers for so many columns");
  }
  if (tile.query_warpgroups > 2 && (spec.head_dim_qk > 96 || tile.step_keys > 64)) {
    return plan_unsupported("three warpgroups leave no registers for so many columns");
  }
  if (tile.both_gradients && is_packed(spec)) {
    return plan_unsupported(
        fmt::format("kernels of warpgroups that keep both gradients do not know layout `{}`",
                    to_string(spec.layout)));
  }
  if (tile.cuts_walks && !may_cut_walks(spec, tile)) {
    return plan_unsupported(
        "walks are cut of key tiles whose warpgroups keep both gradients, or of wide heads, where "
        "nothing is learned of the score");
  }
  // Of 64 columns of Q beside 128 of dO dQ came out wrong, and is right of 96 (H200): ptxas (13.0)
  // gives dS registers of dO's fragments, which the loop still reads. Of narrower heads no GPU has
  // run them.
  const int narrowest = std::min(spec.head_dim_qk, spec.head_dim_v);
  if (tile.rows_in_registers && (tile.step_keys > 64 || tile.query_warpgroups > 2 ||
                                 widest(spec) > kMostForBoth || narrowest <= kNarrow)) {
    return plan_unsupported("rows in registers: head dims 65 to 128, two warpgroups, 64 keys");
  }
  return check_shared_memory(needs, device.shared_memory_per_block_bytes, device);
}

std::vector<KernelPlan> legal(const AttentionSpec& spec, const DeviceFacts& device) {
  std::vector<KernelPlan> plans;
  const auto add = [&](Sm90aOrderedPlan tile) {
    const auto add_one = [&] {
      const KernelPlan plan{.pass = Pass::kBackward, .target = device.target, .tile = tile};
      const bool is_legal = check(spec, plan, device).ok();
      if (is_legal) plans.push_back(plan);
      return is_legal;
    };
    const bool is_legal = add_one();
    tile.cuts_walks = true;
    add_one();
    return is_legal;
  };
  for (const int step_keys : {64, 128}) {
    for (const int stages : {2, 3}) {
      for (const int warpgroups : {2, 3}) {
        Sm90aOrderedPlan tile{.step_keys = step_keys,
                              .stages = stages,
                              .both_gradients = true,
                              .query_warpgroups = warpgroups,
                              .rows_in_registers = true};
        if (add(tile)) continue;
        tile.rows_in_registers = false;
        add(tile);
      }
      for (const int tile_q : {64, 128}) {
        // Beside both gradients a warpgroup, two of these will do.
        if (widest(spec) <= kMostForBoth && !is_packed(spec) && (step_keys > 64 || stages > 2)) {
          continue;
        }
        add({.tile_q = tile_q, .step_keys = step_keys, .stages = stages});
      }
    }
  }
  return plans;
}

PlanCost plan_cost(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const Sm90aOrderedPlan& tile = tile_of(plan);
  const double flops = 7.0 * (whole_steps(spec.head_dim_qk) + whole_steps(spec.head_dim_v)) *
                       double(tile.tile_q) * tile_kv(tile);
  // Measured on an H200, 4096 queries and keys without a mask: d 256 reaches 0.73 of the dense
  // rate, d 128 0.60, d 64 0.48. There larger tiles and a third stage gain 2 % each, at d 128 5 %.
  // Both gradients a warpgroup: a guess, from what the four products of sm90_backward.cuh reach
  // without dQ's; less where dropout's bits do not fit into registers beside 128 columns of each.
  // So is what three warpgroups of queries gain, where two of narrow heads wait for themselves, and
  // what rows in registers do.
  const bool both = tile.both_gradients;
  const bool spills = both && widest(spec) > 96 && has_dropout(spec);
  // Both kernels draw. H200, d 64, 12 heads of 1500, causal: 76 us, where the five products, of
  // which one draws, take 63.
  const double draws = has_dropout(spec) && widest(spec) <= kMostForBoth ? 0.62 : 1.0;
  const double gain = widest(spec) > 64 ? 1.05 : 1.02;
  const double rate = (widest(spec) > 128  ? 0.72
                       : widest(spec) > 64 ? (both ? 0.68 : 0.60)
                                           : (both ? 0.55 : 0.48)) *
                      (spills ? 0.8 : 1.0) * draws *
                      (tile.query_warpgroups > 2 && widest(spec) <= 64 ? 1.03 : 1.0) *
                      (tile.rows_in_registers ? 1.02 : 1.0) * (tile.tile_q > 64 ? gain : 1.0) *
                      (tile.step_keys > 64 ? gain : 1.0) *
                      (tile.stages > 2 ? (tile.tile_q > 64 ? 1.0 : gain) : 1.0);
  const double flops_per_clock =
      rate * device.matrix_tflops * 1e3 / (device.processor_count * device.clock_ghz);
  // A part that is whole takes longer: 28 heads of 4 x 64, d 64, 15.3 us, uncut 14.8 (H200).
  constexpr double kItemClocks = 9000, kCutClocks = 500, kLaunchesUs = 9;
  return {.item = kItemClocks + (tile.cuts_walks ? kCutClocks : 0),
          .tile = flops / flops_per_clock,
          .launch_us = kLaunchesUs,
          .group = {tile.tile_q, tile_kv(tile), tile_rows(tile), tile.step_keys, tile.cuts_walks}};
}

Tiling tiling(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape&,
              const DeviceFacts&) {
  return {.tile_q = tile_of(plan).tile_q,
          .tile_kv = tile_kv(tile_of(plan)),
          .order = {},
          .by_keys = spec.mask != nullptr && !is_packed(spec)};
}

// CTAs of the keys' kernel.
double key_items(const AttentionSpec& spec, const Sm90aOrderedPlan& tile,
                 const ProblemShape& shape) {
  const std::int64_t parts =
      tile.cuts_walks ? walk_parts(shape, tile_kv(tile), tile.tile_q, spec.mask != nullptr) : 1;
  return std::ceil(double(shape.kv_len) / tile_kv(tile)) * double(shape.kv_heads) *
         double(shape.batch) * double(parts);
}

ShapeCost shape_cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                     const DeviceFacts& device, const LiveWork& work) {
  const Sm90aOrderedPlan& tile = tile_of(plan);
  ShapeCost cost = backward_shape_cost(
      tile.tile_q, tile_kv(tile), 4.0 * (spec.head_dim_qk + spec.head_dim_v), shape, device, work);
  // H200, 32 heads on 8, d 128, causal, 1024: 67 us expected, 93 measured; 40 on 8 85, 107; 32 on 8
  // of 2 x 1024 116, 163.
  constexpr double kOrderedShortParts = 1.3;
  cut_walks(spec, tile.cuts_walks, tile.tile_q, tile_kv(tile), kOrderedShortParts, shape, device,
            cost);
  if (cost.rounds <= 1 && !is_packed(spec)) cost.tiles *= longest_key_tile(work);
  cost.slowdown = with_queries_kernel(cost, double(tile.tile_q) * tile_kv(tile), 1,
                                      {.share = 3.0 / 7,
                                       .rows = tile_rows(tile),
                                       .step_keys = tile.step_keys,
                                       .are_listed = is_packed(spec),
                                       .keys_items = key_items(spec, tile, shape)},
                                      1, shape, device, work);
  // Items take longer there, too, where one comes after the other: 8 x 640 of 32 heads on 8, d 128,
  // causal, 239 us, expected without it 215; of 16 heads of 16 x 128 47 and 37 (H200).
  constexpr double kNextItemClocks = 11000;
  if (rows_are_in_open(spec, shape, work, cost.rounds)) {
    cost.seen = 1;
    cost.beside_us += cost.rounds * kNextItemClocks / cost.units_per_us;
  }
  return cost;
}

LaunchRecipe recipe(const AttentionSpec& spec, const KernelPlan& plan) {
  using Tensor = TensorMapRecipe::Tensor;
  const Sm90aOrderedPlan& tile = tile_of(plan);
  const int keys = tile_kv(tile), rows = tile_rows(tile);
  LaunchRecipe recipe;
  recipe.launches = {
      backward_rows_launch(),
      {.symbol = "",
       .threads = 128 * (kWarpgroups + 1),
       .shared_memory_bytes = keys_bytes(spec, tile),
       .walk_tile = tile.cuts_walks ? tile.tile_q : 0,
       .item = WorkItem::kKeyTile,
       .tile = keys,
       .tensor_maps = {slab_map(Tensor::kQuery, tile.tile_q), slab_map(Tensor::kKey, keys),
                       slab_map(Tensor::kValue, keys),
                       slab_map(Tensor::kOutputGradient, tile.tile_q),
                       slab_map(Tensor::kKeyGradient, kStoreRows),
                       slab_map(Tensor::kValueGradient, kStoreRows)},
       .overlaps_previous = true},
      {.symbol = "_queries",
       .threads = 128 * (tile.query_warpgroups + 1),
       .shared_memory_bytes =
           queries_bytes(spec, tile, value_stages(spec, tile, device_facts(plan.target))),
       .adds_parts = tile.cuts_walks,
       .item = WorkItem::kQueryTile,
       .tile = rows,
       .tensor_maps = {slab_map(Tensor::kQuery, rows), slab_map(Tensor::kKey, tile.step_keys),
                       slab_map(Tensor::kValue, tile.step_keys),
                       slab_map(Tensor::kOutputGradient, rows)},
       .overlaps_previous = true}};
  recipe.workspace = backward_row_regions(rows_of(spec, tile));
  add_learned(spec, recipe);
  return recipe;
}

std::vector<WorkspaceRegion> widest_workspace(const AttentionSpec& spec, Target) {
  Sm90aOrderedPlan tile{.both_gradients = widest(spec) <= kMostForBoth && !is_packed(spec)};
  tile.cuts_walks = may_cut_walks(spec, tile);
  return with_learned(spec, backward_row_regions(rows_of(spec, tile)));
}

TileShape tile_shape_of(const KernelPlan& plan) {
  return {tile_of(plan).tile_q, tile_kv(tile_of(plan))};
}

// Of the keys' kernel.
std::vector<SharedMatrix> shared_matrices_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm90aOrderedPlan& tile = tile_of(plan);
  const int qk = slabs(spec.head_dim_qk) * kSlabColumns, v = slabs(spec.head_dim_v) * kSlabColumns;
  return {{"K", 1, tile_kv(tile), qk},
          {"V", 1, tile_kv(tile), v},
          {"Q", tile.stages, tile.tile_q, qk},
          {"dO", tile.stages, tile.tile_q, v}};
}

std::vector<int> choices(const KernelPlan& plan) {
  const Sm90aOrderedPlan& t = tile_of(plan);
  return {t.tile_q,           t.step_keys,         t.stages,    t.both_gradients,
          t.query_warpgroups, t.rows_in_registers, t.cuts_walks};
}

constexpr int kUsualWarpgroups = 2;  // of queries, which a text leaves out

std::string warpgroups_text(std::string_view before, const Sm90aOrderedPlan& tile) {
  if (tile.query_warpgroups == kUsualWarpgroups) return {};
  return fmt::format("{}w{}", before, tile.query_warpgroups);
}

std::string tile_text(const KernelPlan& plan) {
  const Sm90aOrderedPlan& tile = tile_of(plan);
  return fmt::format("q{} k{} s{}{}{}{}{}", tile.tile_q, tile.step_keys, tile.stages,
                     tile.both_gradients ? " both" : "", warpgroups_text(" ", tile),
                     tile.rows_in_registers ? " qreg" : "", tile.cuts_walks ? " parts" : "");
}

Status parse_tile(std::span<const std::string_view> words, KernelPlan& plan) {
  Sm90aOrderedPlan tile;
  std::vector<std::string_view> numbers;
  for (const std::string_view word : words) {
    if (word == "both") {
      tile.both_gradients = true;
    } else if (word == "qreg") {
      tile.rows_in_registers = true;
    } else if (word == "parts") {
      tile.cuts_walks = true;
    } else if (!parse_word(word, "w", tile.query_warpgroups)) {
      numbers.push_back(word);
    }
  }
  ATT_CHECK(parse_numbers(numbers,
                          {{"q", &tile.tile_q}, {"k", &tile.step_keys}, {"s", &tile.stages}},
                          "an ordered plan"));
  plan.tile = tile;
  return ok_status();
}

std::string symbol_part(const KernelPlan& plan) {
  const Sm90aOrderedPlan& tile = tile_of(plan);
  return fmt::format("q{}k{}s{}{}{}{}{}", tile.tile_q, tile.step_keys, tile.stages,
                     tile.both_gradients ? "both" : "", warpgroups_text("", tile),
                     tile.rows_in_registers ? "qreg" : "", tile.cuts_walks ? "parts" : "");
}

std::string_view template_path_of(const KernelPlan& plan) {
  return tile_of(plan).both_gradients ? "templates/kernels/sm90_ordered_both_backward.cuh"
                                      : "templates/kernels/sm90_ordered_backward.cuh";
}

std::string head_constants(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm90aOrderedPlan& tile = tile_of(plan);
  std::string products =
      wgmma_product(spec, "multiply_s", tile.tile_q, spec.head_dim_qk) +
      wgmma_product(spec, "multiply_dp", tile.tile_q, spec.head_dim_v) +
      wgmma_gradient(spec, "multiply_dv", spec.head_dim_v, tile.tile_q) +
      wgmma_gradient(spec, "multiply_half_dv", spec.head_dim_v, tile.tile_q / 2) +
      wgmma_gradient(spec, "multiply_dk", spec.head_dim_qk, tile.tile_q) +
      wgmma_product(spec, "multiply_row_s", tile.step_keys, spec.head_dim_qk,
                    tile.rows_in_registers) +
      wgmma_product(spec, "multiply_row_dp", tile.step_keys, spec.head_dim_v,
                    tile.rows_in_registers) +
      wgmma_gradient(spec, "multiply_dq", spec.head_dim_qk, tile.step_keys);
  const BackwardRows rows = rows_of(spec, tile);
  // Named in every kernel, called where a number is subtracted so.
  products += wgmma_split_function("multiply_split", tile.tile_q);
  const int v_stages = value_stages(spec, tile, device_facts(plan.target));
  const Registers of_keys = registers_of(kWarpgroups);
  const Registers of_queries = registers_of(tile.query_warpgroups);
  return fmt::format(
      "constexpr int kWarpgroups = {};\n"
      "constexpr int kTileQ = {};\n"
      "constexpr int kStages = {};\n"
      "constexpr bool kRotated = false;\n"
      "constexpr bool kKeysInRegisters = false;\n"
      "constexpr bool kHasShortMask = false;\n"
      "constexpr int kProducerRegisters = {};\n"
      "constexpr int kConsumerRegisters = {};\n"
      "constexpr int kSharedBytes = {};\n"
      "constexpr int kQueryWarpgroups = {};\n"
      "constexpr bool kRowsInRegisters = {};\n"
      "constexpr int kStepKeys = {};\n"
      "constexpr int kStepStages = {};\n"
      "constexpr int kStepValueStages = {};\n"
      "constexpr int kQueryProducerRegisters = {};\n"
      "constexpr int kQueryConsumerRegisters = {};\n"
      "constexpr int kQueriesBytes = {};\n"
      "{}"
      "\n"
      "// S^T = K Q^T and dP^T = V dO^T; dV += P^T dO and dK += dS^T Q. S = Q K^T and dP = dO "
      "V^T;\n"
      "// dQ += dS K.\n"
      "{}",
      kWarpgroups, tile.tile_q, tile.stages, of_keys.producer, of_keys.consumer,
      keys_bytes(spec, tile), tile.query_warpgroups, tile.rows_in_registers, tile.step_keys,
      tile.stages, v_stages, of_queries.producer, of_queries.consumer,
      queries_bytes(spec, tile, v_stages), backward_row_constants(rows) + learned_constants(spec),
      products);
}

}  // namespace

const FamilyOperations& sm90a_ordered_family() {
  static constexpr FamilyOperations kOperations = {
      .family = Family::kSm90aOrdered,
      .pass = Pass::kBackward,
      .name = "sm90a_ordered",
      .symbol_name = "sm90o",
      .template_path = "templates/kernels/sm90_ordered_backward.cuh",
      .template_path_of = template_path_of,
      .serves = serves,
      .legal_plans = legal,
      .check = check,
      .resources = resources_of,
      .plan_cost = plan_cost,
      .tiling = tiling,
      .shape_cost = shape_cost,
      .launch_recipe = recipe,
      .widest_workspace = widest_workspace,
      .takes_any_strides = false,
      .tile_shape = tile_shape_of,
      .shared_matrices = shared_matrices_of,
      .choices = choices,
      .tile_text = tile_text,
      .parse_tile = parse_tile,
      .symbol_part = symbol_part,
      .head_constants = head_constants,
  };
  return kOperations;
}

}  // namespace attune
