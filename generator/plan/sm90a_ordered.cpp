// The sm90a family's ordered plans of the backward pass. What they mean in the kernels:
// templates/kernels/sm90_ordered_backward.cuh.
#include <fmt/format.h>

#include <algorithm>

#include "generator/plan/backward.hpp"
#include "generator/plan/family.hpp"
#include "generator/plan/live_share.hpp"
#include "generator/plan/sm90a_parts.hpp"
#include "generator/plan/wgmma.hpp"

namespace attune {
namespace {

constexpr int kWarpgroups = 2;
constexpr int kKeys = 64;  // of a CTA of the keys' kernel
constexpr int kRows = 64 * kWarpgroups;
constexpr int kStoreRows = 16;
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

const Sm90aOrderedPlan& tile_of(const KernelPlan& plan) {
  return std::get<Sm90aOrderedPlan>(plan.tile);
}

int qk_bytes(const AttentionSpec& spec, int rows) {
  return slabs(spec.head_dim_qk) * rows * kSlabRowBytes;
}
int v_bytes(const AttentionSpec& spec, int rows) {
  return slabs(spec.head_dim_v) * rows * kSlabRowBytes;
}

Status serves(const AttentionSpec& spec, Target target) {
  ATT_CHECK(sm90a_backward_serves(spec, target));
  return backward_serves(spec, LearnedSums::kByAtomics);
}

// As in templates/tile/sm90_ordered_layout.cuh: KeysMemory.
int keys_bytes(const AttentionSpec& spec, const Sm90aOrderedPlan& tile) {
  const BackwardRows rows = split_rows(spec);
  const int row_bytes = (rows.splits_references ? 16 : 4) + (rows.splits_deltas ? 16 : 4);
  constexpr int kHalvesBytes = 128, kTileInfoBytes = 16;
  return qk_bytes(spec, kKeys) + v_bytes(spec, kKeys) +
         tile.stages * (qk_bytes(spec, tile.tile_q) + v_bytes(spec, tile.tile_q) +
                        tile.tile_q * row_bytes + 2 * kTileInfoBytes) +
         kKeys * tile.tile_q * 4 + kHalvesBytes + 8 * (4 * tile.stages + 3);
}

// QueriesMemory.
int queries_bytes(const AttentionSpec& spec, const Sm90aOrderedPlan& tile, int value_stages) {
  return qk_bytes(spec, kRows) + v_bytes(spec, kRows) +
         tile.stages * (qk_bytes(spec, tile.step_keys) + 8) +
         value_stages * v_bytes(spec, tile.step_keys) +
         8 * (2 * tile.stages + 2 * value_stages + 1);
}

// V is needed for a shorter time than K, and one tile of it will do.
int value_stages(const AttentionSpec& spec, const Sm90aOrderedPlan& tile,
                 const DeviceFacts& device) {
  return queries_bytes(spec, tile, 2) <= device.shared_memory_per_block_bytes ? 2 : 1;
}

// Of the kernel that takes more.
PlanResources resources_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm90aOrderedPlan& tile = tile_of(plan);
  PlanResources resources;
  resources.threads = 128 * (kWarpgroups + 1);
  resources.shared_memory_bytes =
      std::max(keys_bytes(spec, tile),
               queries_bytes(spec, tile, value_stages(spec, tile, device_facts(plan.target))));
  // A gradient, a product or two, and an operand; the rest is addresses.
  const int gradient = std::max(spec.head_dim_qk, spec.head_dim_v) / 2;
  resources.registers_per_thread =
      gradient + tile.tile_q + tile.tile_q / 4 + 28 + (spec.score ? 8 : 0);
  return resources;
}

Status check(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const Sm90aOrderedPlan& tile = tile_of(plan);
  if (tile.tile_q != 64 && tile.tile_q != 128) return plan_unsupported("query tiles of 64 or 128");
  if (tile.step_keys != 64 && tile.step_keys != 128) return plan_unsupported("64 or 128 keys");
  if (tile.stages < 2 || tile.stages > 4) return plan_unsupported("2 to 4 stages");
  const PlanResources needs = resources_of(spec, plan);
  // dQ, S, dP and dS of 128 keys; dV or dK, S or dP with slopes, and an operand of 128 queries.
  const int widest = std::max(spec.head_dim_qk, spec.head_dim_v);
  if ((tile.step_keys > 64 && spec.head_dim_qk > 64) || (tile.tile_q > 64 && widest > 128)) {
    return plan_unsupported("tiles of 128 leave no registers for so many columns");
  }
  return check_shared_memory(needs, device.shared_memory_per_block_bytes, device);
}

std::vector<KernelPlan> legal(const AttentionSpec& spec, const DeviceFacts& device) {
  std::vector<KernelPlan> plans;
  for (const int tile_q : {64, 128}) {
    for (const int step_keys : {64, 128}) {
      for (const int stages : {2, 3}) {
        const KernelPlan plan{
            .pass = Pass::kBackward,
            .target = device.target,
            .tile = Sm90aOrderedPlan{.tile_q = tile_q, .step_keys = step_keys, .stages = stages}};
        if (check(spec, plan, device).ok()) plans.push_back(plan);
      }
    }
  }
  return plans;
}

PlanCost plan_cost(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const Sm90aOrderedPlan& tile = tile_of(plan);
  const double flops = 7.0 * (spec.head_dim_qk + spec.head_dim_v) * double(tile.tile_q) * kKeys;
  // Measured on an H200, 4096 queries and keys without a mask: d 256 reaches 0.73 of the dense
  // rate, d 128 0.60, d 64 0.48. There larger tiles and a third stage gain 2 % each, at d 128 5 %.
  const int widest = std::max(spec.head_dim_qk, spec.head_dim_v);
  const double gain = widest > 64 ? 1.05 : 1.02;
  const double rate = (widest > 128  ? 0.72
                       : widest > 64 ? 0.60
                                     : 0.48) *
                      (tile.tile_q > 64 ? gain : 1.0) * (tile.step_keys > 64 ? gain : 1.0) *
                      (tile.stages > 2 ? (tile.tile_q > 64 ? 1.0 : gain) : 1.0);
  const double flops_per_clock =
      rate * device.matrix_tflops * 1e3 / (device.processor_count * device.clock_ghz);
  constexpr double kItemClocks = 9000, kLaunchesUs = 10;
  return {.item = kItemClocks,
          .tile = flops / flops_per_clock,
          .launch_us = kLaunchesUs,
          .group = {tile.tile_q, kKeys}};
}

Tiling tiling(const AttentionSpec&, const KernelPlan& plan, const ProblemShape&,
              const DeviceFacts&) {
  return {.tile_q = tile_of(plan).tile_q, .tile_kv = kKeys, .order = {}};
}

ShapeCost shape_cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                     const DeviceFacts& device, const LiveWork& work) {
  return backward_shape_cost(tile_of(plan).tile_q, kKeys,
                             4.0 * (spec.head_dim_qk + spec.head_dim_v), shape, device, work);
}

LaunchRecipe recipe(const AttentionSpec& spec, const KernelPlan& plan) {
  using Tensor = TensorMapRecipe::Tensor;
  const Sm90aOrderedPlan& tile = tile_of(plan);
  const int threads = 128 * (kWarpgroups + 1);
  LaunchRecipe recipe;
  recipe.launches = {
      backward_rows_launch(),
      {.symbol = "",
       .threads = threads,
       .shared_memory_bytes = keys_bytes(spec, tile),
       .item = WorkItem::kKeyTile,
       .tile = kKeys,
       .tensor_maps = {slab_map(Tensor::kQuery, tile.tile_q), slab_map(Tensor::kKey, kKeys),
                       slab_map(Tensor::kValue, kKeys),
                       slab_map(Tensor::kOutputGradient, tile.tile_q),
                       slab_map(Tensor::kKeyGradient, kStoreRows),
                       slab_map(Tensor::kValueGradient, kStoreRows)}},
      {.symbol = "_queries",
       .threads = threads,
       .shared_memory_bytes =
           queries_bytes(spec, tile, value_stages(spec, tile, device_facts(plan.target))),
       .item = WorkItem::kQueryTile,
       .tile = kRows,
       .tensor_maps = {slab_map(Tensor::kQuery, kRows), slab_map(Tensor::kKey, tile.step_keys),
                       slab_map(Tensor::kValue, tile.step_keys),
                       slab_map(Tensor::kOutputGradient, kRows)}}};
  recipe.workspace = backward_row_regions(split_rows(spec));
  return recipe;
}

std::vector<WorkspaceRegion> widest_workspace(const AttentionSpec& spec) {
  return backward_row_regions(split_rows(spec));
}

TileShape tile_shape_of(const KernelPlan& plan) { return {tile_of(plan).tile_q, kKeys}; }

// Of the keys' kernel.
std::vector<SharedMatrix> shared_matrices_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm90aOrderedPlan& tile = tile_of(plan);
  const int qk = slabs(spec.head_dim_qk) * kSlabColumns, v = slabs(spec.head_dim_v) * kSlabColumns;
  return {{"K", 1, kKeys, qk},
          {"V", 1, kKeys, v},
          {"Q", tile.stages, tile.tile_q, qk},
          {"dO", tile.stages, tile.tile_q, v}};
}

std::vector<int> choices(const KernelPlan& plan) {
  const Sm90aOrderedPlan& t = tile_of(plan);
  return {t.tile_q, t.step_keys, t.stages};
}

std::string tile_text(const KernelPlan& plan) {
  const Sm90aOrderedPlan& tile = tile_of(plan);
  return fmt::format("q{} k{} s{}", tile.tile_q, tile.step_keys, tile.stages);
}

Status parse_tile(std::span<const std::string_view> words, KernelPlan& plan) {
  Sm90aOrderedPlan tile;
  ATT_CHECK(parse_numbers(words, {{"q", &tile.tile_q}, {"k", &tile.step_keys}, {"s", &tile.stages}},
                          "an ordered plan"));
  plan.tile = tile;
  return ok_status();
}

std::string symbol_part(const KernelPlan& plan) {
  const Sm90aOrderedPlan& tile = tile_of(plan);
  return fmt::format("q{}k{}s{}", tile.tile_q, tile.step_keys, tile.stages);
}

std::string head_constants(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm90aOrderedPlan& tile = tile_of(plan);
  std::string products = wgmma_product(spec, "multiply_s", tile.tile_q, spec.head_dim_qk) +
                         wgmma_product(spec, "multiply_dp", tile.tile_q, spec.head_dim_v) +
                         wgmma_gradient(spec, "multiply_dv", spec.head_dim_v, tile.tile_q) +
                         wgmma_gradient(spec, "multiply_dk", spec.head_dim_qk, tile.tile_q) +
                         wgmma_product(spec, "multiply_row_s", tile.step_keys, spec.head_dim_qk) +
                         wgmma_product(spec, "multiply_row_dp", tile.step_keys, spec.head_dim_v) +
                         wgmma_gradient(spec, "multiply_dq", spec.head_dim_qk, tile.step_keys);
  const BackwardRows rows = split_rows(spec);
  // Named in every kernel, called where a number is subtracted so.
  products += wgmma_split_function("multiply_split", tile.tile_q);
  const int v_stages = value_stages(spec, tile, device_facts(plan.target));
  return fmt::format(
      "constexpr int kWarpgroups = {};\n"
      "constexpr int kTileQ = {};\n"
      "constexpr int kStages = {};\n"
      "constexpr int kStepKeys = {};\n"
      "constexpr int kStepStages = {};\n"
      "constexpr int kQueryWarpgroups = 2;\n"
      "constexpr int kQueryProducerRegisters = 24;\n"
      "constexpr int kQueryConsumerRegisters = 240;\n"
      "constexpr int kStepValueStages = {};\n"
      "constexpr int kProducerRegisters = {};\n"
      "constexpr int kConsumerRegisters = {};\n"
      "constexpr int kKeysBytes = {};\n"
      "constexpr int kQueriesBytes = {};\n"
      "{}"
      "\n"
      "// S^T = K Q^T and dP^T = V dO^T; dV += P^T dO and dK += dS^T Q. S = Q K^T and dP = dO "
      "V^T;\n"
      "// dQ += dS K.\n"
      "{}",
      kWarpgroups, tile.tile_q, tile.stages, tile.step_keys, tile.stages, v_stages,
      kProducerRegisters, kConsumerRegisters, keys_bytes(spec, tile),
      queries_bytes(spec, tile, v_stages), backward_row_constants(rows), products);
}

}  // namespace

const FamilyOperations& sm90a_ordered_family() {
  static constexpr FamilyOperations kOperations = {
      .family = Family::kSm90aOrdered,
      .pass = Pass::kBackward,
      .name = "sm90a_ordered",
      .symbol_name = "sm90o",
      .template_path = "templates/kernels/sm90_ordered_backward.cuh",
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
