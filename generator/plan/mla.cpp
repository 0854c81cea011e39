// The mla family's plans: few queries on keys whose first columns are the values. What they mean in
// the kernel: templates/kernels/mla_forward.cuh.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "generator/expr/ast.hpp"
#include "generator/expr/lowering.hpp"
#include "generator/plan/family.hpp"
#include "generator/plan/item_counts.hpp"
#include "generator/plan/live_share.hpp"
#include "generator/plan/pieces.hpp"
#include "generator/plan/sm90a_parts.hpp"
#include "generator/plan/wgmma.hpp"
#include "templates/work_items.h"

namespace attune {
namespace {

constexpr int kElementBytes = 2;
constexpr int kSmallTableBytes = 2304;  // static shared memory: the units of a mask, and a flag
constexpr int kFlagBytes = 16;
constexpr int kTakenBytes = 224;  // with 64 rows: the pieces of a stretch
constexpr int kColumnStep = 64;   // eight threads bring 128 bytes of a row at a time

const MlaPlan& tile_of(const KernelPlan& plan) { return std::get<MlaPlan>(plan.tile); }

Status serves(const AttentionSpec& spec, Target target) {
  if (target == Target::kCpu) return plan_unsupported("the mla family needs a GPU");
  if (!spec.v_in_k) return plan_unsupported("the mla family is of specs with v_in_k");
  if (spec.dtype != DType::kF16 && spec.dtype != DType::kBf16) {
    return plan_unsupported(
        fmt::format("the mla family computes in fp16 and bf16, not {}", to_string(spec.dtype)));
  }
  ATT_CHECK(check_plain_cache(spec, "mla"));
  for (const int dim : {spec.head_dim_qk, spec.head_dim_v}) {
    if (dim % kColumnStep != 0) {
      return plan_unsupported(
          fmt::format("the mla family has head dims in steps of {}, not {}", kColumnStep, dim));
    }
  }
  if (has_dropout(spec)) return plan_unsupported("the mla family has no dropout");
  return ok_status();
}

// Rows that wgmma multiplies at once. Items of so many have a kernel of their own, in which two
// warpgroups make P of a tile each and have one half of O each
// (templates/kernels/sm90_mla_forward.cuh).
constexpr int kWgmmaRows = 64;
constexpr MlaPlan kWgmmaPlan = {
    .tile_q = kWgmmaRows, .step_keys = 64, .stages = 2, .warps = 8, .pieces = 1};
bool has_wgmma(const MlaPlan& tile) { return tile.tile_q == kWgmmaRows; }

int blocks(const MlaPlan& tile) { return tile.tile_q / 16; }
// Warps that share out a tile's keys; each has 16 of the rows.
int key_warps(const MlaPlan& tile) { return tile.warps / blocks(tile); }

// P of the first tile; that of the second one lies in its keys' last columns where these are no
// values.
int wgmma_p_tiles(const AttentionSpec& spec) { return spec.head_dim_qk > spec.head_dim_v ? 1 : 2; }

int stage_bytes(const AttentionSpec& spec, const MlaPlan& tile) {
  return tile.step_keys * spec.head_dim_qk * kElementBytes;
}

// Registers of the fragments a thread holds through the loop: O, Q, a tile's scores.
int fragment_registers(const AttentionSpec& spec, const MlaPlan& tile) {
  const int keys_of_warp = tile.step_keys / key_warps(tile);
  return blocks(tile) * spec.head_dim_v / tile.warps / 2 + spec.head_dim_qk / 4 + keys_of_warp;
}
// With more of them ptxas spills within the loop, NVRTC 13.0.
constexpr int kMostFragmentRegisters = 224;
constexpr int kMostWithStretch = 200;  // where a CTA keeps its stretch meanwhile
constexpr int kOtherRegisters = 40;

PlanResources resources_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const MlaPlan& tile = tile_of(plan);
  PlanResources resources;
  resources.threads = 32 * tile.warps;
  if (has_wgmma(tile)) {
    // Q, two tiles, P, two references of rows, a barrier for 64 columns of a tile, a flag, the
    // units of a mask.
    resources.shared_memory_bytes =
        3 * stage_bytes(spec, tile) +
        wgmma_p_tiles(spec) * kWgmmaRows * tile.step_keys * kElementBytes + 2 * kWgmmaRows * 4 +
        2 * (spec.head_dim_qk / kColumnStep) * 8 + kFlagBytes +
        (spec.mask ? kSmallTableBytes - 128 : 0) + (tile.stretches ? kTakenBytes : 0);
    resources.registers_per_thread = kMaxRegistersPerThread;
    return resources;
  }
  resources.shared_memory_bytes = tile.stages * stage_bytes(spec, tile) +
                                  tile.tile_q * tile.step_keys * kElementBytes +
                                  tile.tile_q * key_warps(tile) * 4;
  resources.registers_per_thread =
      std::min(kMaxRegistersPerThread, fragment_registers(spec, tile) + kOtherRegisters);
  return resources;
}

Status check_wgmma(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  MlaPlan tile = tile_of(plan);
  if (plan.target != Target::kSm90a) return plan_unsupported("64 rows of an item on sm_90a only");
  if (tile.pieces < 1 || tile.pieces > kMostPieces) {
    return plan_unsupported(fmt::format("1 to {} pieces", kMostPieces));
  }
  tile.pieces = kWgmmaPlan.pieces;
  tile.stretches = false;
  if (tile != kWgmmaPlan) return plan_unsupported("k64, s2 and w8 with 64 rows of an item");
  if (spec.head_dim_v % 128 != 0) {
    return plan_unsupported(
        fmt::format("{} columns of O are no two halves in steps of 64", spec.head_dim_v));
  }
  if (kWgmmaRows * (spec.head_dim_v + kMostPieces + 8) * 4 > 3 * stage_bytes(spec, tile))
    return plan_unsupported("results do not fit where Q and keys were");
  return check_shared_memory(resources_of(spec, plan), device.shared_memory_per_block_bytes,
                             device);
}

Status check(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const MlaPlan& tile = tile_of(plan);
  if (tile.stretches && !is_packed(spec))
    return plan_unsupported("stretches are of packed sequences");
  if (spec.shared_prefixes && !tile.stretches)
    return plan_unsupported("lists of pieces are of sequences that share nothing");
  if (has_wgmma(tile)) return check_wgmma(spec, plan, device);
  if (tile.tile_q != 16 && tile.tile_q != 32)
    return plan_unsupported("16, 32 or 64 rows of an item");
  if (tile.step_keys != 32 && tile.step_keys != 64)
    return plan_unsupported("tiles of 32 or 64 keys");
  if (tile.warps != 4 && tile.warps != 8) return plan_unsupported("4 or 8 warps");
  if (tile.stages < 2 || tile.stages > 8) return plan_unsupported("2 to 8 stages");
  if (tile.pieces < 1 || tile.pieces > kMostPieces) {
    return plan_unsupported(fmt::format("1 to {} pieces", kMostPieces));
  }
  if (const int keys = tile.step_keys / key_warps(tile); keys != 8 && keys != 16) {
    return plan_unsupported(fmt::format("8 or 16 keys of a tile for each warp, not {}", keys));
  }
  if (spec.head_dim_v % (16 * tile.warps) != 0) {
    return plan_unsupported(fmt::format(
        "{} columns of O are no multiple of 16 for each of {} warps", spec.head_dim_v, tile.warps));
  }
  const int most_fragments = tile.stretches ? kMostWithStretch : kMostFragmentRegisters;
  if (const int fragments = fragment_registers(spec, tile); fragments > most_fragments) {
    return plan_unsupported(fmt::format("{} registers a thread for fragments alone, {} leave room",
                                        fragments, most_fragments));
  }
  const int ring_bytes = tile.stages * stage_bytes(spec, tile);
  const int results_bytes = tile.tile_q * (spec.head_dim_v + tile.pieces + 8) * 4;
  if (results_bytes > ring_bytes) return plan_unsupported("results do not fit where keys were");
  const PlanResources needs = resources_of(spec, plan);
  const int table_bytes = spec.mask ? kSmallTableBytes : kFlagBytes;
  ATT_CHECK(check_shared_memory(needs, device.shared_memory_per_block_bytes - table_bytes, device));
  if (needs.registers_per_thread * needs.threads > device.registers_per_processor) {
    return plan_unsupported(
        fmt::format("{} threads of {} registers", needs.threads, needs.registers_per_thread));
  }
  return ok_status();
}

// Those that deal out keys in some way and have this tile otherwise.
void add_pieces(const AttentionSpec& spec, const DeviceFacts& device, MlaPlan tile,
                std::vector<KernelPlan>& plans) {
  for (const int pieces : kPieces) {
    if (leaves_sequences_to_few(spec, pieces)) continue;
    for (const bool stretches : {false, true}) {
      tile.pieces = pieces;
      tile.stretches = stretches;
      const KernelPlan plan{.pass = Pass::kForward, .target = device.target, .tile = tile};
      if (check(spec, plan, device).ok()) plans.push_back(plan);
    }
  }
}

std::vector<KernelPlan> legal(const AttentionSpec& spec, const DeviceFacts& device) {
  std::vector<KernelPlan> plans;
  for (const int tile_q : {16, 32}) {
    for (const int step_keys : {64, 32}) {
      for (const int warps : {8, 4}) {
        for (const int stages : {3, 4, 5, 6, 2}) {
          add_pieces(spec, device,
                     {.tile_q = tile_q, .step_keys = step_keys, .stages = stages, .warps = warps},
                     plans);
        }
      }
    }
  }
  add_pieces(spec, device, kWgmmaPlan, plans);
  return plans;
}

int resident(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  PlanResources needs = resources_of(spec, plan);
  if (spec.mask && !has_wgmma(tile_of(plan))) needs.shared_memory_bytes += kSmallTableBytes;
  return std::max(1, resident_ctas(needs, device));
}

int ctas_at_once(const AttentionSpec& spec, const KernelPlan& plan) {
  return std::clamp(resident(spec, plan, device_facts(plan.target)), 1, 8);
}

// What a warp does with a tile one product after the other, between two barriers. An H200 took 2924
// clocks for 16 rows and 64 keys on 8 warps, 4220 for 32 rows, and for 32 keys 2445 (16 rows on 4
// warps) and 2730 (32 rows on 8).
double step_clocks(const AttentionSpec& spec, const MlaPlan& tile) {
  const double of_scores = spec.head_dim_qk / 16.0 * tile.step_keys / key_warps(tile) / 8;
  const double of_values =
      blocks(tile) * tile.step_keys / 16.0 * spec.head_dim_v / tile.warps / 8.0;
  return 1400 + 19 * (of_scores + of_values);
}

// Times are those of tiles of kUnitKeys keys, of a CTA among as many as a processor holds.
PlanCost plan_cost(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const MlaPlan& tile = tile_of(plan);
  const int ctas = resident(spec, plan, device);
  // As the decode family's: what is on its way in the time that memory takes to answer, up to what
  // a processor's port lets through. A tile must have come before the products of the one before it
  // are done.
  constexpr double kLatencyClocks = 1000;
  constexpr double kPortBytesPerClock = 30;
  const double unit_bytes = double(kUnitKeys) * spec.head_dim_qk * kElementBytes;
  const double ahead = has_wgmma(tile) ? 1 : tile.stages - 1.5;
  const double transfer = unit_bytes / std::min(kPortBytesPerClock / ctas,
                                                ahead * stage_bytes(spec, tile) / kLatencyClocks);
  // Two warpgroups' products, and what is between them: as 128 heads of 128 x 4096 keys took 267 us
  // on an H200.
  constexpr double kWgmmaFlopsPerClock = 4096;
  constexpr double kWgmmaWaitClocks = 1200;
  const double compute = has_wgmma(tile)
                             ? 2.0 * kWgmmaRows * kUnitKeys * (spec.head_dim_qk + spec.head_dim_v) /
                                       kWgmmaFlopsPerClock +
                                   kWgmmaWaitClocks
                             : step_clocks(spec, tile) * kUnitKeys / tile.step_keys;
  constexpr double kItemClocks = 4000;  // Q and the first keys come in, O goes out
  constexpr double kLaunchUs = 3;
  constexpr double kDealUs = 4;       // a launch in front deals out the keys of packed sequences
  constexpr double kStretchUs = 2.5;  // CTAs find theirs
  constexpr double kMergeUs = 4;      // counters are zeroed, CTAs wait for one another
  // A CTA leaves what it found, and reads as much again: its share of what all pieces found.
  const double piece_us =
      tile.tile_q * spec.head_dim_v * 4.0 / kPortBytesPerClock / (device.clock_ghz * 1e3);
  return {.item = kItemClocks,
          .tile = std::max(transfer, compute),
          .launch_us = kLaunchUs +
                       (tile.stretches    ? kStretchUs
                        : is_packed(spec) ? kDealUs
                                          : 0) +
                       (tile.pieces > 1 ? kMergeUs + 2 * piece_us : 0),
          .group = {tile.tile_q, tile.pieces, ctas, tile.stretches}};
}

Tiling tiling(const AttentionSpec&, const KernelPlan& plan, const ProblemShape&,
              const DeviceFacts&) {
  return {.tile_q = tile_of(plan).tile_q, .tile_kv = kUnitKeys, .order = {}};
}

// Of `items` items of a K/V head in each sequence, of `units` units of keys, that CTAs take
// stretches of (templates/tile/stretches.cuh): pieces of a CTA, and their tiles.
ShapeCost stretch_cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                       const DeviceFacts& device, double items, double units) {
  const MlaPlan& tile = tile_of(plan);
  using att::kItemUnits;
  const std::int64_t lines =
      shape.kv_heads *
      att::packed_tiles<std::int64_t>(shape.heads, shape.kv_heads, 1, tile.tile_q).head_parts;
  const int ctas =
      std::min(resident(spec, plan, device) * device.processor_count, att::kMostStretches);
  const double stretches = double(std::max<std::int64_t>(1, ctas / lines));
  const double of_line =
      std::ceil(items * double(shape.kv_heads) / double(lines)) * double(shape.batch);  // items
  const double width = units + kItemUnits;
  // One of all may have half of all keys; of sequences in pages none has more than said.
  const double longest = is_paged(spec) ? width : std::max(width, of_line * width / 2);
  const double equal = of_line * width / stretches;
  const double of_pieces = tile.pieces > 1 ? longest / (tile.pieces - 1) : 0;
  const double length = std::max({equal, of_pieces, double(att::kLeastStretch)});
  const double rounds_up = std::ceil(length / width) * width;
  const bool cuts = rounds_up - length > length / att::kMostRounding;
  const double taken = cuts ? length : rounds_up;
  const double pieces = taken / width + (cuts ? 1 : 0);
  // Where all lengths are as likely, sequences in pages come to half of the most that they may
  // have, and stretches would be so much shorter, but for the longest one's pieces (H200: 8 of 1000
  // to 32768 keys, 16 heads, 91 us with 16 at most, packed with 48 67).
  const double mean = is_paged(spec) ? (1 + 1 / double(shape.batch)) / 2 : 1;
  const double waits = std::max(1.0, of_pieces / (equal * mean));
  return {.rounds = pieces,
          .tiles = taken / width * units / pieces,
          .slowdown = is_paged(spec) ? (1 + waits) / 2 : 1,
          .units_per_us = device.clock_ghz * 1e3};
}

ShapeCost shape_cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                     const DeviceFacts& device, const LiveWork& work) {
  const MlaPlan& tile = tile_of(plan);
  const std::int64_t of_kv_head = packed_items_of_head(shape, tile.tile_q);
  const std::int64_t items = packed_items(shape, tile.tile_q);
  const double units = double(shape.kv_len) * work.share / kUnitKeys;
  const double bytes = double(kElementBytes) * spec.head_dim_qk * double(shape.batch) *
                       double(shape.kv_heads) * double(shape.kv_len) * work.share;
  constexpr double kMemoryShare = 0.85;  // of the datasheet's rate: 4.0 TB/s of 4.8
  // Keys that other items of the head have brought come out of L2, at most at so much the rate.
  constexpr double kL2Rate = 1.3;
  const double memory_us = bytes / (kMemoryShare * device.memory_gb_per_s * 1e3);
  const double transfer_us = memory_us * std::max(1.0, double(of_kv_head) / kL2Rate);
  if (tile.stretches) {
    ShapeCost cost = stretch_cost(spec, plan, shape, device, double(of_kv_head), units);
    cost.transfer_us = transfer_us * cost.slowdown;  // CTAs that wait draw nothing from memory
    return cost;
  }
  const PiecesOfSequences of_sequences = pieces_of_sequences(
      spec, shape, double(of_kv_head), tile.pieces, true, units, device.processor_count);
  const double pieces = is_packed(spec)
                            ? of_sequences.of_mean
                            : double(att::piece_count<std::int64_t>(items, tile.pieces));
  const double rounds =
      std::ceil(double(items) * pieces / (device.processor_count * resident(spec, plan, device)));
  const double tiles = std::ceil(units / pieces);
  return {.rounds = rounds,
          .tiles = is_packed(spec) ? tiles_with_longest(of_sequences, tiles, rounds) : tiles,
          .slowdown = 1,
          .units_per_us = device.clock_ghz * 1e3,
          .transfer_us = transfer_us};
}

LaunchRecipe recipe(const AttentionSpec& spec, const KernelPlan& plan) {
  const MlaPlan& tile = tile_of(plan);
  LaunchRecipe recipe =
      piece_recipe(spec, plan.target, resources_of(spec, plan), tile.tile_q, tile.pieces);
  if (tile.stretches) take_stretches(recipe, ctas_at_once(spec, plan));
  if (has_wgmma(tile)) {
    TensorMapRecipe keys = slab_map(TensorMapRecipe::Tensor::kKey, tile.step_keys);
    keys.is_optional = true;
    recipe.launches.back().tensor_maps = {keys};
    recipe.launches.back().otherwise = "_copies";
  }
  return recipe;
}

std::vector<WorkspaceRegion> widest_workspace(const AttentionSpec& spec, Target) {
  return widest_piece_regions(spec, kMostPieces, {16, 32, kWgmmaRows});
}

TileShape tile_shape_of(const KernelPlan& plan) { return {tile_of(plan).tile_q, kUnitKeys}; }

std::vector<SharedMatrix> shared_matrices_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const MlaPlan& tile = tile_of(plan);
  if (has_wgmma(tile)) {
    return {{"Q", 1, tile.tile_q, spec.head_dim_qk},
            {"K", tile.stages, tile.step_keys, spec.head_dim_qk},
            {"P", wgmma_p_tiles(spec), tile.tile_q, tile.step_keys}};
  }
  return {{"K", tile.stages, tile.step_keys, spec.head_dim_qk},
          {"P", 1, tile.tile_q, tile.step_keys}};
}

std::vector<int> choices(const KernelPlan& plan) {
  const MlaPlan& t = tile_of(plan);
  return {t.tile_q, t.step_keys, t.stages, t.warps, t.pieces, t.stretches};
}

std::string tile_text(const KernelPlan& plan) {
  const MlaPlan& t = tile_of(plan);
  return fmt::format("q{} k{} s{} w{} p{}{}", t.tile_q, t.step_keys, t.stages, t.warps, t.pieces,
                     t.stretches ? " stretches" : "");
}

Status parse_tile(std::span<const std::string_view> words, KernelPlan& plan) {
  MlaPlan tile;
  if (!words.empty() && words.back() == "stretches") {
    tile.stretches = true;
    words = words.first(words.size() - 1);
  }
  ATT_CHECK(parse_numbers(words,
                          {{"q", &tile.tile_q},
                           {"k", &tile.step_keys},
                           {"s", &tile.stages},
                           {"w", &tile.warps},
                           {"p", &tile.pieces}},
                          "an mla plan"));
  plan.tile = tile;
  return ok_status();
}

std::string symbol_part(const KernelPlan& plan) {
  const MlaPlan& tile = tile_of(plan);
  return fmt::format("q{}k{}s{}w{}p{}{}", tile.tile_q, tile.step_keys, tile.stages, tile.warps,
                     tile.pieces, tile.stretches ? "t" : "");
}

std::string_view template_path_of(const KernelPlan& plan) {
  const MlaPlan& tile = tile_of(plan);
  return !has_wgmma(tile) ? "templates/kernels/mla_forward.cuh"
         : tile.stretches ? "templates/kernels/sm90_mla_stretches.cuh"
                          : "templates/kernels/sm90_mla_forward.cuh";
}

// S = or += Q K^T of 64 columns of a tile, and O += P V of half the columns, P in registers or in
// shared memory.
std::string products(const AttentionSpec& spec, const MlaPlan& tile) {
  const std::string_view element = wgmma_element(spec.dtype);
  WgmmaChain pv{.name = "multiply_pv",
                .element = element,
                .columns = spec.head_dim_v / 2,
                .steps = tile.step_keys / 16,
                .accumulates = true,
                .a_in_registers = true,
                .transposes_b = true};
  std::string text = wgmma_function(pv);
  pv.name = "multiply_pv_shared";
  pv.a_in_registers = false;
  WgmmaChain qk{.name = "multiply_qk",
                .element = element,
                .columns = tile.step_keys,
                .steps = kColumnStep / 16,
                .accumulates = false,
                .a_in_registers = false,
                .transposes_b = false};
  text += wgmma_function(pv) + wgmma_function(qk);
  qk.name = "add_qk";
  qk.accumulates = true;
  return text + wgmma_function(qk);
}

std::string head_constants(const AttentionSpec& spec, const KernelPlan& plan) {
  const MlaPlan& tile = tile_of(plan);
  const bool reads_head = spec.mask && expr::depends_on(spec.mask, expr::Variable::kHead);
  return fmt::format(
      "constexpr int kTileQ = {};\n"
      "constexpr int kStepKeys = {};\n"
      "constexpr int kStages = {};\n"
      "constexpr int kWarps = {};\n"
      "constexpr int kPieces = {};\n"
      "constexpr bool kInCluster = false;\n"
      "constexpr bool kTakesStretches = {};\n"
      "constexpr bool kFillsProcessors = true;\n"
      "constexpr bool kMarksArrivals = false;\n"
      "constexpr bool kMaskReadsHead = {};\n"
      "constexpr bool kMayReadTensors = {};\n"
      "constexpr int kSharedBytes = {};\n"
      "constexpr int kMinCtas = {};  // resident CTAs that the register budget must allow\n"
      "{}",
      tile.tile_q, tile.step_keys, tile.stages, tile.warps, tile.pieces, tile.stretches, reads_head,
      !spec.environment.tensors.empty(), resources_of(spec, plan).shared_memory_bytes,
      ctas_at_once(spec, plan), has_wgmma(tile) ? products(spec, tile) : "");
}

}  // namespace

const FamilyOperations& mla_family() {
  static constexpr FamilyOperations kOperations = {
      .family = Family::kMla,
      .pass = Pass::kForward,
      .name = "mla",
      .symbol_name = "mla",
      .template_path = "templates/kernels/mla_forward.cuh",
      .template_path_of = template_path_of,
      .serves = serves,
      .legal_plans = legal,
      .check = check,
      .resources = resources_of,
      .plan_cost = plan_cost,
      .tiling = tiling,
      .shape_cost = shape_cost,
      .need_not_be_measured = has_pieces_of_fewer,
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
