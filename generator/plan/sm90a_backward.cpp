// The sm90a family's plans of the backward pass. What they mean in the kernels:
// templates/kernels/sm90_backward.cuh.
#include "generator/plan/sm90a_backward.hpp"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "generator/expr/build.hpp"
#include "generator/expr/derivative.hpp"
#include "generator/expr/global_keys.hpp"
#include "generator/expr/score_core.hpp"
#include "generator/plan/backward.hpp"
#include "generator/plan/family.hpp"
#include "generator/plan/learned_plan.hpp"
#include "generator/plan/live_share.hpp"
#include "generator/plan/mask_tensors.hpp"
#include "generator/plan/sm90a_parts.hpp"
#include "generator/plan/wgmma.hpp"

namespace attune {
namespace {

using namespace sm90a_backward;

constexpr int kWarpgroups = 2;
constexpr int kStoreRows = 16;
constexpr int kTallTileQ = 80;
constexpr int kStagedRows = 32;  // of O and dO; templates/tile/sm90_backward_rows_ahead.cuh
constexpr int kStagedRowsApart = 16;
constexpr int kMaxColumns = 128;  // dK and dV of more leave no registers for S and dP

// Whether a CTA takes one key tile after the other off a counter. Short sequences have many of few
// query tiles each, so those of packed ones always do.
bool takes_items(const AttentionSpec& spec, const Sm90aBackwardPlan& tile) {
  return tile.takes_items || is_packed(spec);
}

// Of O and dO, of which a warp beside the loader makes rows.
int staged_rows_of(const AttentionSpec& spec, const Sm90aBackwardPlan& tile) {
  return loads_keys_apart(spec, tile) ? kStagedRowsApart : kStagedRows;
}

// Whether the first key tiles of heads, which all queries see, begin before the others.
bool has_early_tiles(const AttentionSpec& spec) {
  if (spec.deterministic || is_packed(spec)) return false;
  const auto scalars = constant_scalars(spec);
  return scalars && expr::has_global_keys(spec.mask, *scalars);
}

// Key tiles of a group of heads that take turns: with a mask so many that a head has few CTAs at a
// time, which then wait less for one another, but whose sums stay in L2. 4096 and 16384 keys on an
// H200: d 64 causal 256 tiles 1650 and 5923 us, 512 1625 and 5846, 768 1749 and 6137; d 128 256
// 1377 and 4912, 512 1606 and 5282.
int tiles_of_turns(const AttentionSpec& spec) { return spec.mask && !is_wide(spec) ? 512 : 256; }

BackwardRows rows_of(const AttentionSpec& spec, const Sm90aBackwardPlan& tile) {
  BackwardRows rows = split_rows(spec);
  rows.takes_items = takes_items(spec, tile);
  // templates/tile/dropped_elements.cuh
  rows.scales =
      has_dropout(spec) && expr::look_up_derivatives(spec.score, spec.environment).empty();
  rows.sum_columns = slabs(spec.head_dim_qk) * kSlabColumns;
  if (tile.cuts_walks) {
    rows.part_keys = tile_kv(tile);
    rows.walk_tile = tile.tile_q;
  }
  if (is_long(tile) && (spec.deterministic || loads_keys_apart(spec, tile))) {
    rows.at_a_time = kLongTileQ;
  }
  // How many key tiles a packed sequence has the host does not know.
  if (is_packed(spec)) {
    rows.sum_wave = 0;
    return rows;
  }
  rows.sum_tile = kKeys * kWarpgroups;
  rows.first_tiles_early = has_early_tiles(spec);
  if (is_tall(tile)) {
    rows.padding = 2 * kTallTileQ;
    rows.at_a_time = kTallTileQ;
  }
  // CTAs of an H200; where heads come in groups those of one, templates/tile/backward_order.cuh. Of
  // wide heads twice as many, as one long item keeps its head's sums while those of many later
  // heads are done: four keys that all queries see and a window of 1024, 8192 keys, d 128, on an
  // H200 1640 us, so 980; a window alone 720 and 715, documents 856 and 741, causal, 4096 keys,
  // 1224 and 1231.
  rows.sum_wave = spec.deterministic       ? tiles_of_turns(spec)
                  : !spec.mask             ? 132
                  : rows.first_tiles_early ? 1024
                  : is_wide(spec)          ? 512
                                           : 256;
  // Those beside the loader's. In a deterministic pass they wait for turns.
  if (loads_keys_apart(spec, tile)) {
    if (!rows.first_tiles_early && !spec.deterministic) rows.sum_wave = 256;
    rows.all_have_sums = true;
    rows.ahead_warps = spec.deterministic ? 0 : 2;
  } else if (!spec.deterministic) {
    rows.ahead_warps = is_tall(tile) ? 2 : 3;
  }
  if (spec.deterministic) rows.turn_rows = tile.tile_q;
  return rows;
}

// Whether CTAs may take key tiles off a counter. Without a mask wide heads' items are long enough.
bool may_take_items(const AttentionSpec& spec) {
  return (!is_wide(spec) || spec.mask || spec.deterministic) && !is_packed(spec);
}

// Whether CTAs may share the walk of a key tile, where keys are loaded apart. Sums of what is
// learned have a place for each key tile, and turns an order of these.
bool may_cut_walks(const AttentionSpec& spec) {
  return !spec.deterministic && expr::look_up_derivatives(spec.score, spec.environment).empty();
}

// Columns of dQ that a warpgroup makes; templates/tile/sm90_backward_layout.cuh.
int dq_columns(const AttentionSpec& spec, const Sm90aBackwardPlan& tile) {
  const int columns = slabs(spec.head_dim_qk) * kSlabColumns;
  return is_long(tile) ? columns : columns / tile.warpgroups;
}

Status serves(const AttentionSpec& spec, Target target) {
  ATT_CHECK(sm90a_family().serves(spec, target));
  if (is_packed(spec) && spec.deterministic) {
    return plan_unsupported(
        "dQ of packed sequences is added up in the order in which blocks come to it, which "
        "`deterministic: true` rules out");
  }
  for (const int dim : {spec.head_dim_qk, spec.head_dim_v}) {
    if (dim > kMaxColumns) {
      return plan_unsupported(fmt::format(
          "the sm90a family's backward kernels have head dims up to {}, not {}", kMaxColumns, dim));
    }
  }
  return backward_serves(spec, LearnedSums::kByWarps);
}

int shared_bytes(const AttentionSpec& spec, const Sm90aBackwardPlan& tile) {
  const BackwardRows rows = rows_of(spec, tile);
  const int dims = slabs(spec.head_dim_qk) + slabs(spec.head_dim_v);
  const int matrices = dims * (tile_kv(tile) + tile.stages * tile.tile_q) * kSlabRowBytes +
                       2 * tile.warpgroups * tile.tile_q * kSlabRowBytes;
  const int row_bytes = (rows.splits_references ? 16 : 4) + (rows.splits_deltas ? 16 : 4);
  constexpr int kHalvesBytes = 128;
  const int barriers =
      8 * (4 * tile.stages + 9) + (rows.takes_items ? 32 + 8 * 7 : 0) + (tile.cuts_walks ? 32 : 0);
  // O and dO of which rows are made; their barriers.
  const int staged_rows =
      rows.ahead_warps * (2 * staged_rows_of(spec, tile) * 2 * spec.head_dim_v + 8);
  const int turns = spec.deterministic ? (spec.mask ? 4 : 2) * (8 + 8 * 3) : 0;
  // dV on its way out and a barrier; of packed sequences twice as much of an item, and two more.
  const int apart =
      loads_keys_apart(spec, tile) ? 8 + slabs(spec.head_dim_v) * tile_kv(tile) * kSlabRowBytes : 0;
  const int packed = is_packed(spec) ? 32 + 8 * 2 : 0;
  const int drawn = rows.scales ? 2 * tile.warpgroups * 512 : 0;
  return matrices + tile.stages * tile.tile_q * row_bytes + kHalvesBytes + 16 * (tile.stages + 1) +
         staged_rows + apart + packed + barriers + turns + drawn + kReadAgainBytes;
}

PlanResources resources_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm90aBackwardPlan& tile = tile_of(plan);
  PlanResources resources;
  resources.threads = 128 * (tile.warpgroups + 1);
  resources.shared_memory_bytes = shared_bytes(spec, tile);
  // dK and dV, S and dP, and one of P and dS as operands, K and V where they stay; the rest is
  // addresses.
  const int columns = whole_steps(spec.head_dim_qk) + whole_steps(spec.head_dim_v);
  resources.registers_per_thread = columns / 2 + tile.tile_q + tile.tile_q / 4 +
                                   (tile.keys_in_registers ? columns / 4 : 0) + 28 +
                                   (spec.score ? 8 : 0);
  return resources;
}

// Of a thread: all that a processor has. Narrow heads leave the warps enough that look for turns or
// bring dQ to rows; with 232 at d 128 ptxas serialises the products (C7512).
struct Registers {
  int producer, consumer;
};
Registers registers_of(const AttentionSpec& spec, const Sm90aBackwardPlan& tile) {
  const bool has_help = spec.deterministic || tile.takes_items;
  return has_help && is_narrow(spec) ? Registers{40, 232} : Registers{24, 240};
}

// Whether a score is a multiple of the product and something of the position: for the gradients
// nothing of another one is kept beside P.
bool has_even_slope(const AttentionSpec& spec) {
  if (!spec.score) return true;
  const expr::Expr slope =
      expr::derivative(spec.score, expr::make_variable(expr::Variable::kScore));
  return slope->op == expr::Op::kFloat &&
         expr::look_up_derivatives(spec.score, spec.environment).empty();
}

// A softcap's: templates/tile/logistic_scores.cuh.
bool is_logistic(const AttentionSpec& spec) {
  const float scale = spec.softmax_scale.at_launch ? 1.0f : spec.softmax_scale.value;
  return spec.score && expr::score_logistic(spec.score, scale).has_value();
}

// templates/tile/sm90_backward_long_walk.cuh
bool may_be_long(const AttentionSpec& spec) {
  return is_narrow(spec) && split_rows(spec).splits_references && !has_dropout(spec) &&
         expr::look_up_derivatives(spec.score, spec.environment).empty() && !is_packed(spec);
}
// Elsewhere ptxas has too few registers: beside a score in general it spills 45. A softcap without
// a mask spills 18, of which 5 are loaded in the loop, and is 9 % faster. Beside a sink and with
// narrow V it was not tried.
bool may_be_tall(const AttentionSpec& spec) {
  // Not under a mask: dV was wrong (docs/lab/backward.md, 63).
  const bool has_room = !spec.mask && (has_even_slope(spec) || is_logistic(spec));
  return slabs(spec.head_dim_qk) == 2 && slabs(spec.head_dim_v) == 2 && has_room && !spec.sink &&
         !has_dropout(spec) && !is_packed(spec) && !spec.deterministic;
}

Status check(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const Sm90aBackwardPlan& tile = tile_of(plan);
  if (tile.warpgroups != kWarpgroups) return plan_unsupported("two warpgroups");
  const bool has_tile = tile.tile_q == kTileQ || (tile.tile_q == kTallTileQ && may_be_tall(spec)) ||
                        (tile.tile_q == kLongTileQ && may_be_long(spec));
  if (!has_tile) {
    return plan_unsupported(
        "query tiles of 64; of 128 up to head dim 64, without dropout, packing and a score that "
        "multiplies; of 80 above it, without a mask, a sink, dropout, packing and order");
  }
  if (is_long(tile) && (tile.keys_in_registers || tile.cuts_walks)) {
    return plan_unsupported(
        "with query tiles of 128 there are no registers for K and V, and no parts");
  }
  if (tile.stages < 2 || tile.stages > 4) return plan_unsupported("2 to 4 stages");
  if (tile.rotated && spec.mask) return plan_unsupported("a mask says where key tiles begin");
  if (tile.rotated && spec.deterministic) {
    return plan_unsupported("key tiles that add in their order begin with the same query tile");
  }
  // Beside what is learned ptxas has too few and serialises the products (C7512); of packed
  // sequences, whose items may have no tiles, it does so as well.
  const bool has_room = is_narrow(spec) && !is_packed(spec) &&
                        expr::look_up_derivatives(spec.score, spec.environment).empty();
  if (tile.keys_in_registers && !has_room) {
    return plan_unsupported(
        "K and V stay in registers up to head dim 64, where no tensor is learned and sequences are "
        "not packed");
  }
  if (tile.takes_items && !may_take_items(spec)) {
    return plan_unsupported(
        "key tiles are taken off a counter up to head dim 64, where there is a mask or in order; "
        "of packed sequences always");
  }
  if (tile.takes_items && spec.deterministic && !loads_keys_apart(spec, tile)) {
    return plan_unsupported(
        "in order key tiles come off a counter where their keys are loaded apart");
  }
  if (tile.keys_apart && (!tile.takes_items || !is_narrow(spec))) {
    return plan_unsupported(
        "keys are loaded apart off a counter: up to head dim 64 by choice, above it always");
  }
  if (tile.cuts_walks && tile.rotated) {
    return plan_unsupported("a part of a walk begins where the one before ends");
  }
  if (tile.cuts_walks && !(loads_keys_apart(spec, tile) && may_cut_walks(spec))) {
    return plan_unsupported(
        "walks are cut where keys are loaded apart and nothing is learned of the score; not with "
        "`deterministic: true`");
  }
  const PlanResources needs = resources_of(spec, plan);
  return check_shared_memory(needs, device.shared_memory_per_block_bytes, device);
}

std::vector<KernelPlan> legal(const AttentionSpec& spec, const DeviceFacts& device) {
  std::vector<KernelPlan> plans;
  std::vector<Sm90aBackwardPlan> tiles;
  for (const int stages : {2, 3}) {
    for (const bool rotated : {false, true}) {
      // A third stage gains 2 to 5 % where heads are narrow, else nothing.
      if (stages == 3 && !is_narrow(spec)) continue;
      for (const bool in_registers : {false, true}) {
        for (const auto& [takes_items, apart] :
             {std::pair{false, false}, {true, false}, {true, true}}) {
          tiles.push_back({.stages = stages,
                           .rotated = rotated,
                           .keys_in_registers = in_registers,
                           .takes_items = takes_items,
                           .keys_apart = apart});
        }
      }
    }
  }
  tiles.push_back({.tile_q = kTallTileQ, .stages = 2});
  for (const auto& [takes_items, apart] : {std::pair{false, false}, {true, false}, {true, true}}) {
    for (const bool rotated : {false, true}) {
      tiles.push_back({.tile_q = kLongTileQ,
                       .stages = 2,
                       .rotated = rotated,
                       .takes_items = takes_items,
                       .keys_apart = apart});
    }
  }
  for (const Sm90aBackwardPlan& tile : tiles) {
    for (const bool cuts_walks : {false, true}) {
      KernelPlan plan{.pass = Pass::kBackward, .target = device.target, .tile = tile};
      std::get<Sm90aBackwardPlan>(plan.tile).cuts_walks = cuts_walks;
      if (check(spec, plan, device).ok()) plans.push_back(plan);
    }
  }
  return plans;
}

LaunchRecipe recipe(const AttentionSpec& spec, const KernelPlan& plan) {
  using Tensor = TensorMapRecipe::Tensor;
  const Sm90aBackwardPlan& tile = tile_of(plan);
  const PlanResources needs = resources_of(spec, plan);
  LaunchRecipe recipe;
  const BackwardRows of_rows = rows_of(spec, tile);
  Launch rows = backward_rows_launch(of_rows);
  if (of_rows.ahead_warps > 0) rows.item = WorkItem::kFirstQueryTile;
  recipe.launches = {
      rows,
      {.symbol = "",
       .threads = needs.threads,
       .shared_memory_bytes = needs.shared_memory_bytes,
       .walk_tile = tile.cuts_walks ? tile.tile_q : 0,
       .item = WorkItem::kKeyTile,
       .tile = tile_kv(tile),
       .persistent = takes_items(spec, tile),
       .tensor_maps = {slab_map(Tensor::kQuery, tile.tile_q), slab_map(Tensor::kKey, tile_kv(tile)),
                       slab_map(Tensor::kValue, tile_kv(tile)),
                       slab_map(Tensor::kOutputGradient, tile.tile_q),
                       slab_map(Tensor::kKeyGradient, kStoreRows),
                       slab_map(Tensor::kValueGradient, kStoreRows)},
       .overlaps_previous = true},
      {.symbol = "_queries",
       .threads = 128 * tile.warpgroups * (is_packed(spec) ? of_rows.padding / tile.tile_q : 1),
       .adds_parts = tile.cuts_walks,
       .item = is_packed(spec) ? WorkItem::kSequenceTile : WorkItem::kLastQueryTile,
       .tile = is_packed(spec) ? of_rows.padding : tile.tile_q,
       .overlaps_previous = true}};
  recipe.workspace = backward_row_regions(rows_of(spec, tile));
  add_learned(spec, recipe);
  return recipe;
}

std::vector<WorkspaceRegion> widest_workspace(const AttentionSpec& spec, Target) {
  std::vector<WorkspaceRegion> regions;
  for (const auto& [takes_items, apart] : {std::pair{true, true}, {true, false}, {false, false}}) {
    if (takes_items && !may_take_items(spec)) continue;
    Sm90aBackwardPlan tile{.takes_items = takes_items, .keys_apart = apart};
    tile.cuts_walks = loads_keys_apart(spec, tile) && may_cut_walks(spec);
    BackwardRows rows = rows_of(spec, tile);
    if (may_be_tall(spec)) rows.padding = std::lcm(rows.padding, 2 * kTallTileQ);
    for (const WorkspaceRegion& region : backward_row_regions(rows)) {
      if (!covers(regions, {&region, 1})) regions.push_back(region);
    }
  }
  return with_learned(spec, std::move(regions));
}

TileShape tile_shape_of(const KernelPlan& plan) {
  return {tile_of(plan).tile_q, tile_kv(tile_of(plan))};
}

std::vector<SharedMatrix> shared_matrices_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm90aBackwardPlan& tile = tile_of(plan);
  const int qk = slabs(spec.head_dim_qk) * kSlabColumns, v = slabs(spec.head_dim_v) * kSlabColumns;
  std::vector<SharedMatrix> matrices = {{"K", 1, tile_kv(tile), qk},
                                        {"V", 1, tile_kv(tile), v},
                                        {"Q", tile.stages, tile.tile_q, qk},
                                        {"dO", tile.stages, tile.tile_q, v},
                                        {"dS", 2, tile.tile_q, tile_kv(tile)}};
  if (loads_keys_apart(spec, tile)) matrices.push_back({"dV", 1, tile_kv(tile), v});
  if (const int warps = rows_of(spec, tile).ahead_warps; warps > 0) {
    matrices.push_back(
        {"rows of O and dO", 2 * warps, staged_rows_of(spec, tile), spec.head_dim_v});
  }
  return matrices;
}

std::vector<int> choices(const KernelPlan& plan) {
  const Sm90aBackwardPlan& t = tile_of(plan);
  return {t.warpgroups,        t.tile_q,      t.stages,     t.rotated,
          t.keys_in_registers, t.takes_items, t.keys_apart, t.cuts_walks};
}

std::string tile_text(const KernelPlan& plan) {
  const Sm90aBackwardPlan& tile = tile_of(plan);
  return fmt::format("w{} q{} s{}{}{}{}{}{}", tile.warpgroups, tile.tile_q, tile.stages,
                     tile.rotated ? " rot" : "", tile.keys_in_registers ? " kreg" : "",
                     tile.takes_items ? " counter" : "", tile.keys_apart ? " apart" : "",
                     tile.cuts_walks ? " parts" : "");
}

Status parse_tile(std::span<const std::string_view> words, KernelPlan& plan) {
  Sm90aBackwardPlan tile;
  int seen = 0;
  for (const std::string_view word : words) {
    if (word == "rot") {
      tile.rotated = true;
    } else if (word == "kreg") {
      tile.keys_in_registers = true;
    } else if (word == "counter") {
      tile.takes_items = true;
    } else if (word == "apart") {
      tile.keys_apart = true;
    } else if (word == "parts") {
      tile.cuts_walks = true;
    } else if (parse_word(word, "w", tile.warpgroups) || parse_word(word, "q", tile.tile_q) ||
               parse_word(word, "s", tile.stages)) {
      ++seen;
    } else {
      return plan_text_error(fmt::format("`{}` is no word of an sm90a backward plan", word));
    }
  }
  if (seen != 3) return plan_text_error("an sm90a backward plan needs w, q and s once each");
  plan.tile = tile;
  return ok_status();
}

std::string symbol_part(const KernelPlan& plan) {
  const Sm90aBackwardPlan& tile = tile_of(plan);
  return fmt::format("q{}k{}s{}", tile.tile_q, tile_kv(tile), tile.stages);
}

std::string head_constants(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm90aBackwardPlan& tile = tile_of(plan);
  std::string products =
      wgmma_product(spec, "multiply_s", tile.tile_q, spec.head_dim_qk, tile.keys_in_registers) +
      wgmma_product(spec, "multiply_dp", tile.tile_q, spec.head_dim_v, tile.keys_in_registers) +
      wgmma_gradient(spec, "multiply_dv", spec.head_dim_v, tile.tile_q) +
      wgmma_gradient(spec, "multiply_half_dv", spec.head_dim_v, tile.tile_q / 2) +
      wgmma_gradient(spec, "multiply_dk", spec.head_dim_qk, tile.tile_q, !is_tall(tile)) +
      wgmma_function({.name = "multiply_dq",
                      .element = wgmma_element(spec.dtype),
                      .columns = is_tall(tile) ? tile.tile_q : dq_columns(spec, tile),
                      .steps = tile_kv(tile) / 16,
                      .accumulates = false,
                      .a_in_registers = false,
                      .transposes_b = !is_tall(tile),
                      .transposes_a = is_tall(tile)});
  const BackwardRows rows = rows_of(spec, tile);
  // Named in every kernel, called where a number is subtracted so.
  products += wgmma_split_function("multiply_split", tile.tile_q, tile.keys_in_registers);
  return fmt::format(
      "constexpr int kWarpgroups = {};\n"
      "constexpr int kTileQ = {};\n"
      "constexpr int kStages = {};\n"
      "constexpr bool kRotated = {};\n"
      "constexpr bool kKeysInRegisters = {};\n"
      "constexpr bool kHasShortMask = {};\n"
      "constexpr int kProducerRegisters = {};\n"
      "constexpr int kConsumerRegisters = {};\n"
      "constexpr int kSharedBytes = {};\n"
      "{}"
      "\n"
      "// S^T = K Q^T and dP^T = V dO^T; dV += P^T dO and dK += dS^T Q; dQ = dS K.\n"
      "{}",
      tile.warpgroups, tile.tile_q, tile.stages, tile.rotated, tile.keys_in_registers,
      has_short_mask(spec), registers_of(spec, tile).producer, registers_of(spec, tile).consumer,
      shared_bytes(spec, tile), backward_row_constants(rows) + learned_constants(spec), products);
}

}  // namespace

const FamilyOperations& sm90a_backward_family() {
  static constexpr FamilyOperations kOperations = {
      .family = Family::kSm90a,
      .pass = Pass::kBackward,
      .name = "sm90a",
      .symbol_name = "sm90",
      .template_path = "templates/kernels/sm90_backward.cuh",
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
