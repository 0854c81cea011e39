// The sm90a family's plans of the backward pass of wide heads in five products. What they mean in
// the kernels: templates/kernels/sm90_wide_backward.cuh.
#include <fmt/format.h>

#include "generator/expr/derivative.hpp"
#include "generator/plan/backward.hpp"
#include "generator/plan/family.hpp"
#include "generator/plan/learned_plan.hpp"
#include "generator/plan/live_share.hpp"
#include "generator/plan/sm90a_backward.hpp"
#include "generator/plan/sm90a_parts.hpp"
#include "generator/plan/wgmma.hpp"

namespace attune {
namespace {

constexpr int kWarpgroups = 3;  // consumers
constexpr int kTileQ = 64;
constexpr int kKeys = 80;  // of a CTA: as many as registers hold gradients of
constexpr int kStages = 2;
constexpr int kHeadDim = 192;
constexpr int kStoreRows = 16;
constexpr int kScoreBuffers = 2;  // of P, and of dS

// Of a thread, by warpgroups: together all that a processor has.
constexpr int kProducerRegisters = 24, kScoreRegisters = 120, kGradientRegisters = 184;
static_assert(kProducerRegisters + kScoreRegisters + 2 * kGradientRegisters == 512);

const Sm90aWidePlan& tile_of(const KernelPlan& plan) { return std::get<Sm90aWidePlan>(plan.tile); }

Status serves(const AttentionSpec& spec, Target target) {
  ATT_CHECK(sm90a_family().serves(spec, target));
  ATT_CHECK(backward_serves(spec, LearnedSums::kByWarps));
  if (spec.deterministic) {
    return plan_unsupported(
        "dQ is added up in the order in which blocks come to it, which `deterministic: true` rules "
        "out");
  }
  if (spec.head_dim_qk != kHeadDim || spec.head_dim_v % kSlabColumns != 0 ||
      spec.head_dim_v > kHeadDim) {
    return plan_unsupported(
        "five products of wide heads: head dim 192, and values of 64, 128 or 192 columns");
  }
  if (is_packed(spec) || has_dropout(spec)) {
    return plan_unsupported("five products of wide heads know no packed sequences and no dropout");
  }
  if (!expr::look_up_derivatives(spec.score, spec.environment).empty()) {
    return plan_unsupported("five products of wide heads learn nothing of the score");
  }
  return ok_status();
}

BackwardRows rows_of(const AttentionSpec& spec) {
  BackwardRows rows;
  rows.sum_columns = spec.head_dim_qk;
  rows.sum_wave = 0;  // all heads have them
  return rows;
}

// As in templates/tile/sm90_wide_layout.cuh.
int shared_bytes(const AttentionSpec& spec) {
  const int dims = slabs(spec.head_dim_qk) + slabs(spec.head_dim_v);
  const int matrices =
      (dims * (kKeys + kStages * kTileQ) + 2 * kScoreBuffers * slabs(kKeys) * kTileQ) *
      kSlabRowBytes;
  return matrices + kStages * (kTileQ * 8 + 2 * 16) + 8 * (4 * kStages + 4 * kScoreBuffers + 1) +
         kReadAgainBytes;
}

PlanResources resources_of(const AttentionSpec& spec, const KernelPlan&) {
  PlanResources resources;
  resources.threads = 128 * (kWarpgroups + 1);
  resources.shared_memory_bytes = shared_bytes(spec);
  resources.registers_per_thread = 128;  // on average
  return resources;
}

Status check(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const Sm90aWidePlan& tile = tile_of(plan);
  if (tile.tile_kv != kKeys || tile.stages != kStages) {
    return plan_unsupported("tiles of 80 keys, two stages");
  }
  return check_shared_memory(resources_of(spec, plan), device.shared_memory_per_block_bytes,
                             device);
}

std::vector<KernelPlan> legal(const AttentionSpec& spec, const DeviceFacts& device) {
  const KernelPlan plan{.pass = Pass::kBackward, .target = device.target, .tile = Sm90aWidePlan{}};
  if (!check(spec, plan, device).ok()) return {};
  return {plan};
}

PlanCost plan_cost(const AttentionSpec& spec, const KernelPlan&, const DeviceFacts& device) {
  const double flops = 2.0 * (3 * spec.head_dim_qk + 2 * spec.head_dim_v) * double(kTileQ) * kKeys;
  // H200, 16384 tokens of 16 heads, us, beside seven products in order: full 1024 1189 and 1172,
  // 4096 3740 and 3958, causal 4096 2025 and 2192. The one warpgroup that works out elements is
  // what the others wait for; with scores and long masks it was not measured.
  constexpr double kRate = 0.62;
  const bool is_measured = !spec.score && sm90a_backward::has_short_mask(spec);
  const double flops_per_clock = (is_measured ? kRate : 0.8 * kRate) * device.matrix_tflops * 1e3 /
                                 (device.processor_count * device.clock_ghz);
  constexpr double kItemClocks = 20000, kLaunchesUs = 9;
  return {.item = kItemClocks,
          .tile = flops / flops_per_clock,
          .launch_us = kLaunchesUs,
          .group = {kTileQ, kKeys}};
}

Tiling tiling(const AttentionSpec& spec, const KernelPlan&, const ProblemShape&,
              const DeviceFacts&) {
  return {.tile_q = kTileQ, .tile_kv = kKeys, .order = {}, .by_keys = spec.mask != nullptr};
}

ShapeCost shape_cost(const AttentionSpec& spec, const KernelPlan&, const ProblemShape& shape,
                     const DeviceFacts& device, const LiveWork& work) {
  // Sums of dQ are zeroed, added to once where L2 does not keep them, and read.
  ShapeCost cost = backward_shape_cost(
      kTileQ, kKeys, 4.0 * (spec.head_dim_qk + spec.head_dim_v) + 16.0 * spec.head_dim_qk, shape,
      device, work);
  if (cost.rounds <= 1) cost.tiles *= longest_key_tile(work);
  return cost;
}

LaunchRecipe recipe(const AttentionSpec& spec, const KernelPlan&) {
  using Tensor = TensorMapRecipe::Tensor;
  LaunchRecipe recipe;
  recipe.launches = {
      backward_rows_launch(rows_of(spec)),
      {.symbol = "",
       .threads = 128 * (kWarpgroups + 1),
       .shared_memory_bytes = shared_bytes(spec),
       .item = WorkItem::kKeyTile,
       .tile = kKeys,
       .tensor_maps = {slab_map(Tensor::kQuery, kTileQ), slab_map(Tensor::kKey, kKeys),
                       slab_map(Tensor::kValue, kKeys), slab_map(Tensor::kOutputGradient, kTileQ),
                       slab_map(Tensor::kKeyGradient, kStoreRows),
                       slab_map(Tensor::kValueGradient, kStoreRows)},
       .overlaps_previous = true},
      {.symbol = "_queries",
       .threads = 128 * slabs(spec.head_dim_qk),
       .item = WorkItem::kQueryTile,
       .tile = kTileQ,
       .overlaps_previous = true}};
  recipe.workspace = backward_row_regions(rows_of(spec));
  add_learned(spec, recipe);
  return recipe;
}

// Room for sums of all heads would be promised for nothing where another plan comes first: a kernel
// that begins with this one has it.
std::vector<WorkspaceRegion> widest_workspace(const AttentionSpec& spec, Target) {
  return with_learned(spec, backward_row_regions(BackwardRows{}));
}

TileShape tile_shape_of(const KernelPlan&) { return {kTileQ, kKeys}; }

std::vector<SharedMatrix> shared_matrices_of(const AttentionSpec& spec, const KernelPlan&) {
  const int qk = spec.head_dim_qk, v = spec.head_dim_v;
  return {{"K", 1, kKeys, qk},
          {"V", 1, kKeys, v},
          {"Q", kStages, kTileQ, qk},
          {"dO", kStages, kTileQ, v},
          {"P", kScoreBuffers, kTileQ, slabs(kKeys) * kSlabColumns},
          {"dS", kScoreBuffers, kTileQ, slabs(kKeys) * kSlabColumns}};
}

std::vector<int> choices(const KernelPlan& plan) {
  return {tile_of(plan).tile_kv, tile_of(plan).stages};
}

std::string tile_text(const KernelPlan& plan) {
  return fmt::format("k{} s{}", tile_of(plan).tile_kv, tile_of(plan).stages);
}

Status parse_tile(std::span<const std::string_view> words, KernelPlan& plan) {
  Sm90aWidePlan tile;
  ATT_CHECK(parse_numbers(words, {{"k", &tile.tile_kv}, {"s", &tile.stages}}, "a wide plan"));
  plan.tile = tile;
  return ok_status();
}

std::string symbol_part(const KernelPlan& plan) {
  return fmt::format("k{}s{}", tile_of(plan).tile_kv, tile_of(plan).stages);
}

std::string head_constants(const AttentionSpec& spec, const KernelPlan&) {
  const std::string products = wgmma_product(spec, "multiply_s", kKeys, spec.head_dim_qk) +
                               wgmma_product(spec, "multiply_dp", kKeys, spec.head_dim_v) +
                               wgmma_gradient(spec, "multiply_gradient", kKeys, kTileQ, false) +
                               wgmma_function({.name = "multiply_dq",
                                               .element = wgmma_element(spec.dtype),
                                               .columns = kSlabColumns,
                                               .steps = kKeys / 16,
                                               .accumulates = false,
                                               .a_in_registers = false,
                                               .transposes_b = true,
                                               .keeps_registers = true}) +
                               // Named in every kernel, called where a number is subtracted so.
                               wgmma_split_function("multiply_split", kKeys);
  return fmt::format(
      "constexpr int kWarpgroups = {};\n"
      "constexpr int kTileQ = {};\n"
      "constexpr int kTileKv = {};\n"
      "constexpr int kStages = {};\n"
      "constexpr bool kKeysInRegisters = false;\n"
      "constexpr int kProducerRegisters = {};\n"
      "constexpr int kConsumerRegisters = {};  // on average\n"
      "constexpr int kScoreRegisters = {};\n"
      "constexpr int kGradientRegisters = {};\n"
      "constexpr int kSharedBytes = {};\n"
      "{}"
      "\n"
      "// S = Q K^T and dP = dO V^T; dV^T += dO^T P and dK^T += Q^T dS; dQ = dS K.\n"
      "{}",
      kWarpgroups, kTileQ, kKeys, kStages, kProducerRegisters,
      (kScoreRegisters + 2 * kGradientRegisters) / 3 / 8 * 8, kScoreRegisters, kGradientRegisters,
      shared_bytes(spec), backward_row_constants(rows_of(spec)) + learned_constants(spec),
      products);
}

}  // namespace

const FamilyOperations& sm90a_wide_family() {
  static constexpr FamilyOperations kOperations = {
      .family = Family::kSm90aWide,
      .pass = Pass::kBackward,
      .name = "sm90a_wide",
      .symbol_name = "sm90w",
      .template_path = "templates/kernels/sm90_wide_backward.cuh",
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
