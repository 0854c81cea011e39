// The sm80 family's plans. What they mean in the kernel: templates/kernels/sm80_forward.cuh.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "generator/expr/lowering.hpp"
#include "generator/plan/family.hpp"
#include "generator/plan/live_share.hpp"
#include "generator/plan/running_maximum.hpp"
#include "generator/plan/sequence_lengths.hpp"
#include "generator/plan/sm80_elements.hpp"

namespace attune {
namespace {

int padded(int head_dim) { return (head_dim + 15) / 16 * 16; }

const Sm80Plan& tile_of(const KernelPlan& plan) { return std::get<Sm80Plan>(plan.tile); }

int rows_per_warp(const Sm80Plan& tile) { return std::max(16, tile.tile_q / tile.warps); }

// Warps that have the same rows, each its share of the keys.
int key_groups(const Sm80Plan& tile) { return rows_per_warp(tile) * tile.warps / tile.tile_q; }

Status serves(const AttentionSpec& spec, Target target) {
  if (target == Target::kCpu) return plan_unsupported("the sm80 family needs a GPU");
  ATT_CHECK(check_sm80_dtype(spec));
  for (const int dim : {spec.head_dim_qk, spec.head_dim_v}) {
    if (dim < 16 || dim > 256 || dim % 8 != 0) {
      return plan_unsupported(
          fmt::format("the sm80 family has head dims 16 to 256 in steps of 8, not {}", dim));
    }
  }
  return ok_status();
}

// Registers of the fragments a thread holds through the loop: O, Q when it stays, one chunk's
// scores.
int fragment_registers(const AttentionSpec& spec, const Sm80Plan& tile) {
  const int qk = padded(spec.head_dim_qk);
  const int v = padded(spec.head_dim_v);
  const int blocks = rows_per_warp(tile) / 16;
  const Sm80Elements elements = sm80_elements(spec);
  const int scores = tile.chunk / 2 * elements.score_registers * (tile.unroll > 1 ? 2 : 1);
  const int q = tile.q_in_registers ? qk / elements.step_columns * 4 : 0;
  return blocks * (v / 2 + q + scores + elements.other_registers);
}

// What ptxas can do with 255 registers, NVRTC 13.0: it needs some for addresses, row state, and K
// and V fragments in flight. d 256 c16 qreg (200 for fragments) compiles without spills, d 128 c16
// qreg (208) spills 72 bytes; with 32 rows a warp, scores, dropout and masks that read tensors take
// more, and d 128 c64 (192) spills 8 to 80 bytes.
int most_fragment_registers(const AttentionSpec& spec, const Sm80Plan& tile) {
  if (spec.dtype == DType::kF32) {
    return sm80_elements(spec).most_registers(tile.q_in_registers, rows_per_warp(tile) / 16);
  }
  const bool mask_reads = spec.mask && expr::contains_load(spec.mask);
  const bool busy = spec.score || has_dropout(spec) || mask_reads;
  if (rows_per_warp(tile) <= 16 || !busy) return 200;
  return tile.unroll > 1 ? 150 : 176;
}
// Budgets below 255 need this many more than the fragments to stay clean.
constexpr int kOtherRegisters = 76;

PlanResources resources_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm80Plan& tile = tile_of(plan);
  const Sm80Elements elements = sm80_elements(spec);
  const int qk_bytes = elements.row_bytes(spec.head_dim_qk);
  const int v_bytes = elements.row_bytes(spec.head_dim_v);
  const int q_bytes = tile.tile_q * qk_bytes;
  const int o_bytes = tile.tile_q * v_bytes;
  const int stage_bytes = tile.tile_kv * (qk_bytes + v_bytes);
  PlanResources resources;
  resources.threads = 32 * tile.warps;
  // Q on its way to registers lies where the last stage will be, and O takes everything at the end.
  // The kernel asserts that its layout fits.
  const int last_bytes =
      tile.q_in_registers ? std::max(q_bytes, stage_bytes) : q_bytes + stage_bytes;
  // Each thread of a group of warps but the first leaves its O there, and four numbers.
  const int merged_bytes = (key_groups(tile) - 1) * tile.tile_q * 4 * (padded(spec.head_dim_v) + 8);
  resources.shared_memory_bytes =
      std::max((tile.stages - 1) * stage_bytes + last_bytes, o_bytes + merged_bytes);
  resources.registers_per_thread =
      std::min(kMaxRegistersPerThread, fragment_registers(spec, tile) + kOtherRegisters);
  return resources;
}

Status check(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const Sm80Plan& tile = tile_of(plan);
  if (tile.warps < 1 || tile.warps > 16) return plan_unsupported("1 to 16 warps");
  const Sm80Elements elements = sm80_elements(spec);
  const int rows = rows_per_warp(tile);
  if (tile.tile_q < 16 || (rows != 16 && rows != 32) || tile.tile_q % rows != 0 ||
      key_groups(tile) * tile.tile_q != rows * tile.warps ||
      key_groups(tile) > elements.most_key_groups) {
    return plan_unsupported(fmt::format("each of {} warps takes 16 or 32 of the tile's {} rows",
                                        tile.warps, tile.tile_q));
  }
  if (tile.tile_kv != elements.least_keys &&
      (tile.tile_kv < 32 || tile.tile_kv > 256 || tile.tile_kv % 32 != 0)) {
    return plan_unsupported(
        fmt::format("a kv tile of 32 to 256 in steps of 32, not {}", tile.tile_kv));
  }
  if (tile.stages < 2 || tile.stages > 4) return plan_unsupported("2 to 4 stages");
  if ((tile.chunk != 16 && tile.chunk != 32 && tile.chunk != 64) ||
      tile.tile_kv % tile.chunk != 0) {
    return plan_unsupported("a chunk of 16, 32 or 64 keys that divides the kv tile");
  }
  if (key_groups(tile) > 1 && (!std::has_single_bit(unsigned(tile.tile_kv / key_groups(tile))) ||
                               tile.tile_kv % (key_groups(tile) * tile.chunk) != 0)) {
    return plan_unsupported(
        fmt::format("a chunk that divides the share of the kv tile that {} groups of warps have",
                    key_groups(tile)));
  }
  if (tile.chunk > elements.longest_chunk) {
    return plan_unsupported(fmt::format("a chunk of at most {} keys in {}", elements.longest_chunk,
                                        to_string(spec.dtype)));
  }
  if (tile.chunk < elements.least_dropped_keys && has_dropout(spec)) {
    return plan_unsupported("a chunk of at least the 32 keys that one random draw serves");
  }
  if (tile.unroll < 1 || tile.unroll > tile.tile_kv / key_groups(tile) / tile.chunk) {
    return plan_unsupported("1 to as many chunks in a loop body as a kv tile has");
  }
  if (tile.unroll > elements.most_chunks) {
    return plan_unsupported("operands in parts leave registers for one chunk in a loop body");
  }
  ATT_CHECK(check_reference(spec, tile.frozen_max));
  const PlanResources needs = resources_of(spec, plan);
  ATT_CHECK(elements.check_copies(spec, needs.threads));
  ATT_CHECK(check_shared_memory(needs, device.shared_memory_per_block_bytes, device));
  const int fragments = fragment_registers(spec, tile);
  if (const int most = most_fragment_registers(spec, tile); fragments > most) {
    return plan_unsupported(
        fmt::format("{} registers a thread for fragments alone, {} leave room", fragments, most));
  }
  if (needs.registers_per_thread * needs.threads > device.registers_per_processor) {
    return plan_unsupported(
        fmt::format("{} threads of {} registers", needs.threads, needs.registers_per_thread));
  }
  return ok_status();
}

// The choices that measurement left open (docs/lab/sm80.md): Q in registers wants small chunks, Q
// in shared memory is worth more keys a read.
std::vector<KernelPlan> legal(const AttentionSpec& spec, const DeviceFacts& device) {
  std::vector<KernelPlan> plans;
  const auto add = [&](const Sm80Plan& tile) {
    const KernelPlan plan{.pass = Pass::kForward, .target = device.target, .tile = tile};
    if (check(spec, plan, device).ok()) plans.push_back(plan);
  };
  constexpr std::array<std::array<int, 2>, 8> kRowsAndWarps = {
      {{128, 4}, {128, 8}, {64, 4}, {64, 2}, {32, 2}, {64, 8}, {32, 4}, {32, 8}}};
  const bool is_wide = spec.dtype == DType::kF32;
  for (const auto& [tile_q, warps] : kRowsAndWarps) {
    if ((tile_q < 64 || warps * 16 > tile_q) && !is_wide) continue;
    for (int tile_kv = is_wide ? 16 : 32; tile_kv <= 128; tile_kv *= 2) {
      for (const int stages : {2, 3}) {
        Sm80Plan tile{.tile_q = tile_q, .tile_kv = tile_kv, .stages = stages, .warps = warps};
        for (const bool q_in_registers : {false, true}) {
          tile.q_in_registers = q_in_registers;
          const int least_chunk = q_in_registers || is_wide ? 16 : 32;
          for (const int chunk : {least_chunk, 2 * least_chunk}) {
            tile.chunk = chunk;
            for (const int unroll : {1, 2}) {
              tile.unroll = unroll;
              add(tile);
            }
          }
        }
        // For scores that outgrow every reference, and where the largest exponentials are to be
        // exact: the running maximum throughout.
        const bool alone = takes_running_maximum_alone(spec);
        for (const bool q_in_registers : {false, true}) {
          if (!alone && (stages != 2 || q_in_registers)) continue;
          add({.tile_q = tile_q,
               .tile_kv = tile_kv,
               .stages = stages,
               .warps = warps,
               .q_in_registers = q_in_registers,
               .frozen_max = false,
               .chunk = std::min(32, tile_kv)});
        }
      }
    }
  }
  return plans;
}

// The share of the part's dense matrix rate that mma.sync can reach: all of it before Hopper;
// the datasheet's rate needs wgmma on sm_90a and tcgen05 on sm_100.
double mma_share(Target target) {
  switch (target) {
    case Target::kSm90a:
      return 0.62;
    case Target::kSm100:
      return 0.5;
    default:
      return 1.0;
  }
}

// Clocks an SM spends on one kv tile of one CTA while others keep it busy. The weights are a fit to
// 60 plans measured on an H200, within 5 % for most: matrix work, plus what of shared-memory
// traffic, exponentials and loop ends is not hidden under it.
double kv_tile_clocks(const AttentionSpec& spec, const Sm80Plan& tile, double flops_per_clock) {
  const Sm80Elements dtype = sm80_elements(spec);
  const double qk = padded(spec.head_dim_qk);
  const double dims = qk + padded(spec.head_dim_v);
  const double elements = double(tile.tile_q) * tile.tile_kv;
  const double matrix = dtype.matrix_clocks * 2.0 * elements * dims / flops_per_clock;
  const double chunks = double(tile.tile_kv) / tile.chunk;
  // Every warp reads its keys of K and V; Q, where it is not in registers, once a chunk.
  const int groups = key_groups(tile);
  const double own_keys = double(tile.tile_kv) / groups;
  const double shared_bytes = dtype.bytes * (tile.warps * own_keys * dims +
                                             (tile.q_in_registers ? 0 : chunks * tile.tile_q * qk));
  // What a lane of each of the four schedulers' warps splits, Q once a chunk. It adds to the
  // products: 16 x 1500 queries of d 256 take an H200 883 us, 8 clocks an element 1288.
  const double split =
      dtype.split_clocks * tile.warps / 4 *
      (own_keys * dims / 32 + own_keys / tile.chunk * rows_per_warp(tile) / 16 * qk / 2);
  const double exponentials = elements / 16;
  constexpr double kLoopClocks = 60;
  constexpr double kBarrierClocks = 150;
  const double clocks = matrix + split + 0.6 * shared_bytes / 128 + 0.25 * exponentials +
                        kLoopClocks * chunks / groups / tile.unroll + kBarrierClocks;
  // Q of fp32 in registers leaves products and splits no room to overlap: 191 us instead of 179,
  // d 128, 2 x 1024 queries of 8 heads.
  const double crowded = tile.q_in_registers && dtype.split_clocks > 0 ? 1.07 : 1;
  return crowded * (tile.frozen_max ? clocks : 1.2 * clocks);
}

constexpr double kItemClocks = 2500;  // Q and the first K and V come in, O goes out

// Of these, what shows of an item under so many other CTAs: of 1536 heads with 49 queries of d 32,
// eight CTAs at a time, an H200 does each in 1000, tiles included.
double shown_item_clocks(const AttentionSpec& spec, const KernelPlan& plan,
                         const DeviceFacts& device) {
  return kItemClocks *
         std::min(1.0, 5.0 / std::max(1, resident_ctas(resources_of(spec, plan), device)));
}

PlanCost plan_cost(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const Sm80Plan& tile = tile_of(plan);
  const double flops_per_clock = device.matrix_tflops * 1e3 * mma_share(plan.target) /
                                 (device.processor_count * device.clock_ghz);
  constexpr double kLaunchUs = 3;
  // Groups of warps leave what they found in shared memory.
  const double merged = (key_groups(tile) - 1.0) * tile.tile_q * padded(spec.head_dim_v) / 16;
  return {.item = shown_item_clocks(spec, plan, device) + merged,
          .tile = kv_tile_clocks(spec, tile, flops_per_clock),
          .launch_us = kLaunchUs + tile_list_us(spec),
          .group = {tile.tile_q, tile.tile_kv, tile.warps,
                    resident_ctas(resources_of(spec, plan), device)}};
}

Tiling tiling(const AttentionSpec&, const KernelPlan& plan, const ProblemShape&,
              const DeviceFacts&) {
  return {.tile_q = tile_of(plan).tile_q, .tile_kv = tile_of(plan).tile_kv, .order = {}};
}

// What a short launch takes less than what is said of it beside the other families that a Hopper
// GPU has, whose kernels begin and end later. H200, us, the fastest of these and here: 2 x 64, 16
// heads, d 64, 8.8 and 8.0; 8 x 77 of 12 10.5 and 9.9; causal, 3 x 128 of 20, d 96, 11.7 and 10.7.
// Not of more keys: 4 x 197 of 16, d 96, 14.0 and 15.6. Of many items a processor they take longer:
// 32 x 128 of 12, d 64, 15.8 and 21.5. Not measured with few queries, nor with scores.
double sooner_us(const AttentionSpec& spec, const ProblemShape& shape, const DeviceFacts& device,
                 double items) {
  constexpr double kSoonerUs = 2, kLaterUs = 2, kManyItems = 2;
  constexpr std::int64_t kLeastQueries = 64, kMostKeys = 130;
  constexpr int kMostColumns = 128, kNarrow = 32;
  const bool is_plain = !spec.score && !has_dropout(spec) && !is_packed(spec) && !is_paged(spec) &&
                        spec.environment.tensors.empty() && spec.dtype != DType::kF32 &&
                        spec.residues == 1;
  const bool is_short = shape.q_len >= kLeastQueries && shape.kv_len <= kMostKeys &&
                        std::max(spec.head_dim_qk, spec.head_dim_v) <= kMostColumns;
  if (device.target != Target::kSm90a || !is_plain || !is_short) return 0;
  if (items <= device.processor_count) return kSoonerUs;
  const bool is_later = spec.head_dim_qk > kNarrow && items > kManyItems * device.processor_count;
  return is_later ? -kLaterUs : 0;
}

ShapeCost shape_cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                     const DeviceFacts& device, const LiveWork& work) {
  const Sm80Plan& tile = tile_of(plan);
  const double q_tiles = mean_query_tiles(spec, shape, tile.tile_q);
  const double filled = filled_share(spec, shape, work.share);
  // The busiest SM's items; with fewer than eight warps there, latencies show: 1.5 times at four.
  const double items = q_tiles * double(shape.heads) * double(shape.batch);
  const double items_per_processor = std::ceil(items / device.processor_count);
  // Of fp32 the longest come first (sm80_forward.cuh), elsewhere heads follow one another.
  const bool longest_first = spec.dtype == DType::kF32 && work.longest > 1.1 * work.shortest;
  const double rounds =
      longest_first ? std::max(work.longest, items / device.processor_count + 0.25 * work.shortest)
                    : items_per_processor;
  const double resident = std::min<double>(
      std::max(1, resident_ctas(resources_of(spec, plan), device)), items_per_processor);
  const double idle = std::max(0.0, 1 - resident * tile.warps / 8);

  const double dims = padded(spec.head_dim_qk) + padded(spec.head_dim_v);
  constexpr double kMemoryShare = 0.8;  // of the datasheet's rate, as of the sm90a family
  // As of the sm90a family, whose tiles of packed sequences are as empty then; it was not timed.
  constexpr std::int64_t kFewQueries = 9;
  constexpr double kOfFew = 1.3;
  const double bytes =
      sm80_elements(spec).bytes * dims * double(shape.batch) *
      (double(shape.heads) * double(shape.q_len) +
       double(shape.kv_heads) * double(shape.kv_len) * seen_keys(work, shape) * filled);
  return {.rounds = std::max(rounds, 1 / filled),
          .tiles = std::ceil(double(shape.kv_len) / tile.tile_kv) * work.share * filled,
          .slowdown = (1 + idle) * (is_packed(spec) && shape.q_len < kFewQueries ? kOfFew : 1),
          .units_per_us = device.clock_ghz * 1e3,
          .transfer_us = bytes / (kMemoryShare * device.memory_gb_per_s * 1e3),
          .beside_us =
              (kItemClocks - shown_item_clocks(spec, plan, device)) / (device.clock_ghz * 1e3) -
              sooner_us(spec, shape, device, items),
          .seen = seen_of_tiles(spec, shape, tile.tile_q)};
}

LaunchRecipe recipe(const AttentionSpec& spec, const KernelPlan& plan) {
  const PlanResources needs = resources_of(spec, plan);
  LaunchRecipe recipe;
  recipe.launches.push_back({.symbol = "",
                             .threads = needs.threads,
                             .shared_memory_bytes = needs.shared_memory_bytes,
                             .item = WorkItem::kQueryTile,
                             .tile = tile_of(plan).tile_q});
  return recipe;
}

std::vector<WorkspaceRegion> widest_workspace(const AttentionSpec&, Target) { return {}; }

TileShape tile_shape_of(const KernelPlan& plan) {
  return {tile_of(plan).tile_q, tile_of(plan).tile_kv};
}

std::vector<SharedMatrix> shared_matrices_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm80Plan& tile = tile_of(plan);
  const Sm80Elements elements = sm80_elements(spec);
  const int qk = elements.row_bytes(spec.head_dim_qk) / elements.bytes;
  const int v = elements.row_bytes(spec.head_dim_v) / elements.bytes;
  std::vector<SharedMatrix> matrices = {{"K", tile.stages, tile.tile_kv, qk},
                                        {"V", tile.stages, tile.tile_kv, v}};
  if (!tile.q_in_registers) matrices.push_back({"Q", 1, tile.tile_q, qk});
  return matrices;
}

std::vector<int> choices(const KernelPlan& plan) {
  const Sm80Plan& t = tile_of(plan);
  return {t.tile_q,         t.tile_kv,    t.stages, t.warps,
          t.q_in_registers, t.frozen_max, t.chunk,  t.unroll};
}

std::string tile_text(const KernelPlan& plan) {
  const Sm80Plan& tile = tile_of(plan);
  return fmt::format("q{} k{} s{} w{} c{} u{}{}{}", tile.tile_q, tile.tile_kv, tile.stages,
                     tile.warps, tile.chunk, tile.unroll, tile.q_in_registers ? " qreg" : "",
                     tile.frozen_max ? " frozen" : "");
}

Status parse_tile(std::span<const std::string_view> words, KernelPlan& plan) {
  Sm80Plan tile;
  tile.q_in_registers = false;
  tile.frozen_max = false;
  int seen = 0;
  for (const std::string_view word : words) {
    if (word == "qreg") {
      tile.q_in_registers = true;
    } else if (word == "frozen") {
      tile.frozen_max = true;
    } else if (parse_word(word, "q", tile.tile_q) || parse_word(word, "k", tile.tile_kv) ||
               parse_word(word, "s", tile.stages) || parse_word(word, "w", tile.warps) ||
               parse_word(word, "c", tile.chunk) || parse_word(word, "u", tile.unroll)) {
      ++seen;
    } else {
      return plan_text_error(fmt::format("`{}` is no word of an sm80 plan", word));
    }
  }
  if (seen != 6) return plan_text_error("an sm80 plan needs q, k, s, w, c and u once each");
  plan.tile = tile;
  return ok_status();
}

std::string symbol_part(const KernelPlan& plan) {
  const Sm80Plan& tile = tile_of(plan);
  return fmt::format("q{}k{}s{}", tile.tile_q, tile.tile_kv, tile.stages);
}

std::string head_constants(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm80Plan& tile = tile_of(plan);
  const PlanResources needs = resources_of(spec, plan);
  return fmt::format(
      "constexpr int kTileQ = {};\n"
      "constexpr int kTileKv = {};\n"
      "constexpr int kStages = {};\n"
      "constexpr int kWarps = {};\n"
      "constexpr bool kQInRegisters = {};\n"
      "constexpr bool kFrozenMax = {};\n"
      "constexpr int kChunk = {};\n"
      "constexpr int kUnroll = {};\n"
      "constexpr int kSharedBytes = {};\n"
      "constexpr int kMinCtas = {};  // resident CTAs that the register budget must allow\n"
      "{}",
      tile.tile_q, tile.tile_kv, tile.stages, tile.warps, tile.q_in_registers, tile.frozen_max,
      tile.chunk, tile.unroll, needs.shared_memory_bytes,
      std::clamp(resident_ctas(needs, device_facts(plan.target)), 1, 8),
      sm80_element_constants(spec));
}

}  // namespace

const FamilyOperations& sm80_family() {
  static constexpr FamilyOperations kOperations = {
      .family = Family::kSm80,
      .pass = Pass::kForward,
      .name = "sm80",
      .symbol_name = "sm80",
      .template_path = "templates/kernels/sm80_forward.cuh",
      .template_path_fp32 = "templates/kernels/sm80_forward_fp32.cuh",
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
