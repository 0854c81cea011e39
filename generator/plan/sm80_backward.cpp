// The sm80 family's plans of the backward pass. What they mean in the kernels:
// templates/kernels/sm80_backward.cuh.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "generator/plan/backward.hpp"
#include "generator/plan/family.hpp"
#include "generator/plan/learned_plan.hpp"
#include "generator/plan/live_share.hpp"
#include "generator/plan/sm80_elements.hpp"

namespace attune {
namespace {

int padded(int head_dim) { return (head_dim + 15) / 16 * 16; }

const Sm80BackwardPlan& tile_of(const KernelPlan& plan) {
  return std::get<Sm80BackwardPlan>(plan.tile);
}

using Keys = Sm80BackwardPlan::Keys;

// Warps that share 32 keys; 1: none do.
int sharers(const Sm80BackwardPlan& tile) {
  return tile.keys == Keys::kByTwo ? 2 : tile.keys == Keys::kByFour ? 4 : 1;
}

// Whether four of its warps make P and four dS.
bool has_roles(const Sm80BackwardPlan& tile) {
  return tile.keys == Keys::kByFour && tile.warps == 8;
}

int rows(const Sm80BackwardPlan& tile) {
  const int keys = tile.keys == Keys::kThirtyTwo ? 32 : 32 / std::max(2, sharers(tile));
  return keys * tile.warps;
}

// dK and dV of a warp's 16 keys take half a register a column and lane: of more than 128 columns
// each, an item makes half, and computes S and dP for them alone.
int column_parts(const AttentionSpec& spec, const Sm80BackwardPlan& tile) {
  if (tile.keys == Keys::kByFour) return 1;
  return padded(spec.head_dim_qk) + padded(spec.head_dim_v) > 256 ? 2 : 1;
}

Status serves(const AttentionSpec& spec, Target target) {
  ATT_CHECK(sm80_family().serves(spec, target));
  return backward_serves(spec, LearnedSums::kByWarpsInLoops);
}

PlanResources resources_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm80BackwardPlan& tile = tile_of(plan);
  const Sm80Elements elements = sm80_elements(spec);
  const int dims = padded(spec.head_dim_qk) + padded(spec.head_dim_v);
  const int row_bytes = elements.row_bytes(spec.head_dim_qk) + elements.row_bytes(spec.head_dim_v);
  constexpr int kStatisticsBytes = 8;  // of a query: its reference and its delta
  PlanResources resources;
  resources.threads = 32 * tile.warps;
  const int score_tiles = sharers(tile) > 1 ? 2 : tile.adds_queries ? 1 : 0;
  resources.shared_memory_bytes =
      rows(tile) * row_bytes + tile.stages * tile.step * (row_bytes + kStatisticsBytes) +
      score_tiles * 2 * rows(tile) * tile.step + (has_roles(tile) ? 4 * rows(tile) * tile.step : 0);
  const int blocks = tile.keys == Keys::kThirtyTwo ? 2 : 1;  // of 16 keys whose scores a warp has
  const int parts = sharers(tile) == 4 ? 2 : column_parts(spec, tile);
  const int sums = std::max(dims / 2 / parts, padded(spec.head_dim_qk) / 2);
  resources.registers_per_thread = std::min(
      kMaxRegistersPerThread, blocks * (sums + tile.step * 3 / 2 * elements.score_registers) +
                                  elements.other_registers + 64);
  return resources;
}

// Of dQ's sums, which are padded to whole blocks of the tensor cores.
BackwardRows rows_of(const AttentionSpec& spec, const Sm80BackwardPlan& tile) {
  BackwardRows rows;
  rows.sum_columns = tile.adds_queries ? padded(spec.head_dim_qk) : 0;
  rows.sum_wave = 0;
  return rows;
}

// Of warps with 32 keys, shared or not. A sharer's columns begin at a whole step of a row's layout.
Status check_keys(const AttentionSpec& spec, const Sm80BackwardPlan& tile) {
  const int all = sharers(tile);
  const auto can_share = [&](int head_dim) { return head_dim == 64 || head_dim == 128; };
  if (all == 2 && !(can_share(spec.head_dim_qk) && can_share(spec.head_dim_v)))
    return plan_unsupported("two warps share the columns of head dims 64 and 128");
  if (all == 4 && (spec.head_dim_qk != 256 || spec.head_dim_v != 256 || tile.warps % 4 != 0))
    return plan_unsupported("four warps share the columns of head dim 256");
  if (all == 1 && padded(spec.head_dim_qk) + padded(spec.head_dim_v) > 128)
    return plan_unsupported("gradients of 32 keys leave a warp no registers for so many columns");
  if (std::ranges::any_of(spec.environment.tensors, &expr::TensorDecl::grad))
    return plan_unsupported("what is learned is added up by warps with keys of their own");
  if (all > 1 && tile.step == 64 && has_dropout(spec) && spec.head_dim_qk + spec.head_dim_v > 128)
    return plan_unsupported("dropout leaves no registers for 64 queries of so many columns");
  if (all > 1 && tile.step < 32)
    return plan_unsupported("warps that share keys share out 32 queries or more");
  if (all == 1 && tile.step > 32)
    return plan_unsupported("scores of 32 keys leave a warp no registers for so many queries");
  return ok_status();
}

Status check_sums(const AttentionSpec& spec, const Sm80BackwardPlan& tile) {
  if (!tile.adds_queries) {
    return tile.keys == Keys::kSixteen ? ok_status()
                                       : plan_unsupported("warps with 32 keys add up dQ");
  }
  if (spec.deterministic)
    return plan_unsupported("dQ is added up in any order, which `deterministic: true` rules out");
  if (spec.dtype == DType::kF32) return plan_unsupported("fp32 has its dQ by query tiles");
  if (column_parts(spec, tile) > 1)
    return plan_unsupported("dQ by key tiles wants all columns of a key tile's gradients at once");
  if (tile.keys != Keys::kSixteen) ATT_CHECK(check_keys(spec, tile));
  if (16 * tile.warps < tile.step)
    return plan_unsupported("more queries at a time than warps share");
  return ok_status();
}

// Hopper's own kernels have five products and sums of fewer heads: there this family stands in for
// strides that they cannot take, and room for sums of all would be promised for nothing.
bool offers_sums(Target target) { return target != Target::kSm90a; }

Status check(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const Sm80BackwardPlan& tile = tile_of(plan);
  ATT_CHECK(check_sums(spec, tile));
  if (tile.warps < 2 || tile.warps > 8) return plan_unsupported("2 to 8 warps");
  const Sm80Elements elements = sm80_elements(spec);
  const int least = elements.least_keys;
  if (tile.step != least && tile.step != 2 * least) {
    return plan_unsupported(fmt::format("a step of {} or {}", least, 2 * least));
  }
  if (tile.stages < 2 || tile.stages > 4) return plan_unsupported("2 to 4 stages");
  const PlanResources needs = resources_of(spec, plan);
  ATT_CHECK(elements.check_copies(spec, needs.threads));
  ATT_CHECK(check_shared_memory(needs, device.shared_memory_per_block_bytes, device));
  const int dims = padded(spec.head_dim_qk) + padded(spec.head_dim_v);
  // In pairs a warp has half of the queries at a time.
  if (tile.step == 64 && tile.keys == Keys::kSixteen &&
      dims > (spec.score || has_dropout(spec) ? 128 : 192)) {
    return plan_unsupported("a step of 64 leaves no registers for so many columns");
  }
  return ok_status();
}

std::vector<KernelPlan> legal(const AttentionSpec& spec, const DeviceFacts& device) {
  std::vector<KernelPlan> plans;
  for (const int warps : {4, 8, 2}) {
    for (const int step : {16, 32, 64}) {
      for (const int stages : {2, 3}) {
        for (const bool adds : {true, false}) {
          if (adds && !offers_sums(device.target)) continue;
          for (const Keys keys : {Keys::kByTwo, Keys::kByFour, Keys::kThirtyTwo, Keys::kSixteen}) {
            const KernelPlan plan{.pass = Pass::kBackward,
                                  .target = device.target,
                                  .tile = Sm80BackwardPlan{.warps = warps,
                                                           .step = step,
                                                           .stages = stages,
                                                           .adds_queries = adds,
                                                           .keys = keys}};
            if (check(spec, plan, device).ok()) plans.push_back(plan);
          }
        }
      }
    }
  }
  return plans;
}

// Of the rate that seven products reach with four warps and 32 queries at a time. H200, full, s
// 8192, bf16, TFLOP/s of five products: d 128 seven 211, sums w4 254, w8 248, pairs w8 t64 303, w4
// t64 307, w8 t32 229; d 64 seven w4 t64 218, sums w4 t64 260, wide w4 296, w8 239, pairs w8 t64
// 225; d 256 fours w8 t64 284, t32 249.
double relative_rate(const AttentionSpec& spec, const Sm80BackwardPlan& tile) {
  const double by_warps = tile.warps == 4 ? 1.0 : 0.95;
  const double by_step = tile.step == 64 ? 1.05 : 1.0;
  if (!tile.adds_queries) return by_warps * by_step;
  if (tile.keys == Keys::kThirtyTwo) return tile.warps == 4 && tile.step == 32 ? 0.97 : 0.78;
  if (sharers(tile) == 4) return tile.warps == 4 ? 0.68 : tile.step == 64 ? 0.95 : 0.84;
  if (sharers(tile) > 1) {
    const bool is_wide = padded(spec.head_dim_qk) + padded(spec.head_dim_v) > 192;
    return is_wide && tile.step == 64 ? (tile.warps == 8 ? 1.03 : 1.04) : 0.76;
  }
  return 0.86 * by_warps;
}

PlanCost plan_cost(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const Sm80BackwardPlan& tile = tile_of(plan);
  // S and dP twice, and where registers are short once more.
  const double products = tile.adds_queries ? 5.0 : 7.0 + 2.0 * (column_parts(spec, tile) - 1);
  const double flops = sm80_elements(spec).matrix_clocks * products *
                       (spec.head_dim_qk + spec.head_dim_v) * double(rows(tile)) * tile.step;
  // Not fitted: only which plan is tried first hangs on it.
  const double rate = (device.target == Target::kSm90a ? 0.3 : 0.45) * relative_rate(spec, tile) *
                      (tile.stages == 2 ? 1.0 : 0.99);
  const double flops_per_clock =
      rate * device.matrix_tflops * 1e3 / (device.processor_count * device.clock_ghz);
  // Beside others an item's beginning and end are hidden. H200, us: 40 heads of 32 x 17, d 32,
  // causal, 24, of 49 of 64 x 49 40; 12 of 16 x 32 on 257, d 64, 36.
  constexpr double kItemClocks = 5000, kHiddenItemClocks = 3500, kLaunchesUs = 12;
  constexpr int kManyBeside = 4, kNarrow = 64;
  const int at_once = resident_ctas(resources_of(spec, plan), device);
  const bool is_hidden = device.target == Target::kSm90a && at_once >= kManyBeside &&
                         std::max(spec.head_dim_qk, spec.head_dim_v) <= kNarrow;
  return {.item = is_hidden ? kHiddenItemClocks : kItemClocks,
          .tile = flops / flops_per_clock,
          .launch_us = kLaunchesUs,
          .group = {rows(tile), tile.step, tile.warps, tile.adds_queries, at_once}};
}

Tiling tiling(const AttentionSpec&, const KernelPlan& plan, const ProblemShape&,
              const DeviceFacts&) {
  return {.tile_q = tile_of(plan).step, .tile_kv = rows(tile_of(plan)), .order = {}};
}

ShapeCost shape_cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                     const DeviceFacts& device, const LiveWork& work) {
  const Sm80BackwardPlan& tile = tile_of(plan);
  ShapeCost cost = backward_shape_cost(
      tile.step, rows(tile), 2.0 * sm80_elements(spec).bytes * (spec.head_dim_qk + spec.head_dim_v),
      shape, device, work);
  // A processor with fewer than eight warps waits for them (H200, two warps: 32 heads on 8 of 500
  // keys, d 128, 135 us, where eight would take 44).
  const int at_once = std::max(1, resident_ctas(resources_of(spec, plan), device));
  const auto slowdown = [&](double items) {
    const double of_processor = std::ceil(items / device.processor_count);
    return std::max(1.0, 8 / (std::min<double>(at_once, of_processor) * tile.warps));
  };
  const double keys_items =
      std::ceil(double(shape.kv_len) / rows(tile)) * double(shape.kv_heads) * double(shape.batch);
  if (tile.adds_queries) {
    cost.slowdown = slowdown(keys_items);
    return cost;
  }
  const double query_items =
      std::ceil(double(shape.q_len) / rows(tile)) * double(shape.heads) * double(shape.batch);
  cost.slowdown =
      with_queries_kernel(cost, double(rows(tile)) * tile.step, slowdown(keys_items),
                          {.share = 3.0 / 7, .rows = rows(tile), .step_keys = tile.step},
                          slowdown(query_items), shape, device, work);
  return cost;
}

LaunchRecipe recipe(const AttentionSpec& spec, const KernelPlan& plan) {
  const PlanResources needs = resources_of(spec, plan);
  const int tile = rows(tile_of(plan));
  const BackwardRows rows_made = rows_of(spec, tile_of(plan));
  LaunchRecipe recipe;
  recipe.launches = {backward_rows_launch(rows_made),
                     {.symbol = "",
                      .threads = needs.threads,
                      .shared_memory_bytes = needs.shared_memory_bytes,
                      .parts = column_parts(spec, tile_of(plan)),
                      .item = WorkItem::kKeyTile,
                      .tile = tile},
                     {.symbol = "_queries",
                      .threads = needs.threads,
                      .shared_memory_bytes = needs.shared_memory_bytes,
                      .item = WorkItem::kQueryTile,
                      .tile = tile}};
  recipe.workspace = backward_row_regions(rows_made);
  add_learned(spec, recipe);
  return recipe;
}

std::vector<WorkspaceRegion> widest_workspace(const AttentionSpec& spec, Target target) {
  Sm80BackwardPlan adding{.adds_queries = true};
  if (column_parts(spec, adding) > 1) adding.keys = Keys::kByFour;
  const bool adds = offers_sums(target) && check_sums(spec, adding).ok();
  return with_learned(spec, backward_row_regions(adds ? rows_of(spec, adding) : BackwardRows{}));
}

TileShape tile_shape_of(const KernelPlan& plan) {
  return {tile_of(plan).step, rows(tile_of(plan))};
}

// Of the keys' kernel; the queries' has Q and dO where this one has K and V.
std::vector<SharedMatrix> shared_matrices_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm80BackwardPlan& tile = tile_of(plan);
  const Sm80Elements elements = sm80_elements(spec);
  const int qk = elements.row_bytes(spec.head_dim_qk) / elements.bytes;
  const int v = elements.row_bytes(spec.head_dim_v) / elements.bytes;
  std::vector<SharedMatrix> matrices = {{"K", 1, rows(tile), qk},
                                        {"V", 1, rows(tile), v},
                                        {"Q", tile.stages, tile.step, qk},
                                        {"dO", tile.stages, tile.step, v}};
  if (tile.adds_queries) matrices.push_back({"dS^T", 1, rows(tile), tile.step});
  if (sharers(tile) > 1) matrices.push_back({"P^T", 1, rows(tile), tile.step});
  if (has_roles(tile)) matrices.push_back({"slopes", 2, rows(tile), tile.step});
  return matrices;
}

std::vector<int> choices(const KernelPlan& plan) {
  const Sm80BackwardPlan& t = tile_of(plan);
  return {t.warps, t.step, t.stages, t.adds_queries, static_cast<int>(t.keys)};
}

constexpr std::pair<std::string_view, Keys> kKeysWords[] = {
    {"pairs", Keys::kByTwo}, {"fours", Keys::kByFour}, {"wide", Keys::kThirtyTwo}};

std::string keys_word(const Sm80BackwardPlan& tile) {
  for (const auto& [word, keys] : kKeysWords) {
    if (keys == tile.keys) return fmt::format(" {}", word);
  }
  return "";
}

std::string tile_text(const KernelPlan& plan) {
  const Sm80BackwardPlan& tile = tile_of(plan);
  return fmt::format("w{} t{} s{}{}{}", tile.warps, tile.step, tile.stages,
                     tile.adds_queries ? " sums" : "", keys_word(tile));
}

Status parse_tile(std::span<const std::string_view> words, KernelPlan& plan) {
  Sm80BackwardPlan tile;
  const auto ends_with = [&](std::string_view word) {
    const bool is_last = !words.empty() && words.back() == word;
    if (is_last) words = words.first(words.size() - 1);
    return is_last;
  };
  for (const auto& [word, keys] : kKeysWords) {
    if (ends_with(word)) tile.keys = keys;
  }
  tile.adds_queries = ends_with("sums");
  ATT_CHECK(parse_numbers(words, {{"w", &tile.warps}, {"t", &tile.step}, {"s", &tile.stages}},
                          "an sm80 backward plan"));
  plan.tile = tile;
  return ok_status();
}

std::string symbol_part(const KernelPlan& plan) {
  const Sm80BackwardPlan& tile = tile_of(plan);
  return fmt::format("w{}t{}s{}{}", tile.warps, tile.step, tile.stages,
                     tile.keys == Keys::kByTwo       ? "p"
                     : tile.keys == Keys::kByFour    ? "f"
                     : tile.keys == Keys::kThirtyTwo ? "w"
                     : tile.adds_queries             ? "q"
                                                     : "");
}

std::string head_constants(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm80BackwardPlan& tile = tile_of(plan);
  const PlanResources needs = resources_of(spec, plan);
  const LoopedItems looped = looped_items(spec);
  return fmt::format(
      "constexpr int kWarps = {};\n"
      "constexpr int kStep = {};\n"
      "constexpr int kStages = {};\n"
      "constexpr int kColumnParts = {};\n"
      "constexpr int kSharedBytes = {};\n"
      "constexpr int kMinCtas = {};  // resident CTAs that the register budget must allow\n"
      "constexpr bool kLoopsBatches = {};  // an item takes its keys of all batches, heads\n"
      "constexpr bool kLoopsHeads = {};\n"
      "constexpr bool kAddsQueries = {};\n"
      "constexpr int kSharers = {};  // warps that share 32 keys\n"
      "constexpr bool kHasRoles = {};  // half of the warps make P, the others dS\n"
      "constexpr int kWarpKeys = {};\n"
      "{}{}",
      tile.warps, tile.step, tile.stages, column_parts(spec, tile), needs.shared_memory_bytes,
      std::clamp(resident_ctas(needs, device_facts(plan.target)), 1, 8), looped.batches,
      looped.heads, tile.adds_queries, sharers(tile), has_roles(tile), rows(tile) / tile.warps,
      backward_row_constants(rows_of(spec, tile)) + learned_constants(spec),
      sm80_element_constants(spec));
}

}  // namespace

const FamilyOperations& sm80_backward_family() {
  static constexpr FamilyOperations kOperations = {
      .family = Family::kSm80,
      .pass = Pass::kBackward,
      .name = "sm80",
      .symbol_name = "sm80",
      .template_path = "templates/kernels/sm80_backward.cuh",
      .template_path_fp32 = "templates/kernels/sm80_backward_fp32.cuh",
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
