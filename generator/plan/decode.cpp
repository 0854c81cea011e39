// The decode family's plans: few queries on many keys. What they mean in the kernel:
// templates/kernels/decode_forward.cuh.
#include "generator/plan/decode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "generator/expr/ast.hpp"
#include "generator/expr/lowering.hpp"
#include "generator/plan/family.hpp"
#include "generator/plan/pieces.hpp"
#include "templates/work_items.h"

namespace attune {

using decode::padded_qk;
using decode::padded_v;
using decode::resident;
using decode::step_bytes;
using decode::tile_of;

namespace {

constexpr int kElementBytes = 2;             // of Q, fp16 and bf16 alike
constexpr int kSharedTableBytes = 6 * 1024;  // so, and rows, where prefixes are shared
// Pieces that such specs have plans for: how long prefixes are no shape says, so the list of pieces
// decides, and what is asked for here is only the most.
constexpr std::array kSharedPieceLimits = {32, 64};
// Pieces that may be a cluster. Of larger ones an H200 does not run eight at once, one of each K/V
// head: 8192 keys take 18.2 us in 8 pieces, 26 in 12 or 16.
constexpr std::array kClusters = {2, 4, 8};

Status serves(const AttentionSpec& spec, Target target) {
  if (target == Target::kCpu) return plan_unsupported("the decode family needs a GPU");
  if (spec.dtype != DType::kF16 && spec.dtype != DType::kBf16) {
    return plan_unsupported(
        fmt::format("the decode family computes in fp16 and bf16, not {}", to_string(spec.dtype)));
  }
  for (const int dim : {spec.head_dim_qk, spec.head_dim_v}) {
    if (dim < 16 || dim > 256 || dim % 8 != 0) {
      return plan_unsupported(
          fmt::format("the decode family has head dims 16 to 256 in steps of 8, not {}", dim));
    }
  }
  if (has_dropout(spec)) return plan_unsupported("the decode family has no dropout");
  return ok_status();
}

// Of batch-invariant specs these follow from the spec alone: they decide in which order a row's
// keys are added up. Rows of an item and stages do not.
constexpr int kInvariantStepKeys = 16;
constexpr int kInvariantWarps = 4;

// With more registers of fragments ptxas spills, NVRTC 13.0.
constexpr int kMostFragmentRegisters = 200;

// Of the fragments a thread holds through the loop: O and a step's scores, and Q.
int registers_without_queries(const AttentionSpec& spec, const DecodePlan& tile) {
  return tile.tile_q / 16 * (padded_v(spec) / 2 + tile.step_keys / 2);
}
int registers_of_queries(const AttentionSpec& spec, const DecodePlan& tile) {
  return tile.tile_q / 16 * padded_qk(spec) / 4;
}
int fragment_registers(const AttentionSpec& spec, const DecodePlan& tile) {
  return registers_without_queries(spec, tile) +
         (decode::queries_in_registers(spec, tile) ? registers_of_queries(spec, tile) : 0);
}
constexpr int kOtherRegisters = 60;

// What a CTA of a cluster is sent (templates/tile/cluster_merge.cuh).
int sent_bytes(const AttentionSpec& spec, const DecodePlan& tile) {
  constexpr int kInTurn = 4, kAlignment = 128;
  const int round = kInTurn * tile.pieces;
  const int fours = (tile.tile_q * (spec.head_dim_v / 4) + round - 1) / round * kInTurn + 1;
  const int bytes = tile.pieces * (fours * 16 + tile.tile_q * 8) + 8;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

PlanResources resources_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const DecodePlan& tile = tile_of(plan);
  const int part_bytes = tile.tile_q * (padded_v(spec) + 4 + 2) * 4;
  PlanResources resources;
  resources.threads = 32 * tile.warps;
  resources.shared_memory_bytes =
      std::max(tile.warps * tile.stages * step_bytes(spec, tile),
               tile.warps * part_bytes + (tile.in_cluster ? sent_bytes(spec, tile) : 0)) +
      tile.tile_q * padded_qk(spec) * kElementBytes +
      tile.tile_q * (std::max(spec.shared_prefixes ? 1 : tile.pieces, tile.warps) + 2) * 4;
  // What the pieces up to now have come to (templates/tile/fixed_pieces.cuh).
  if (spec.batch_invariant) resources.shared_memory_bytes += tile.tile_q * spec.head_dim_v / 4 * 24;
  // Weights of a prefix' results and of a sequence's own (templates/tile/shared_rows.cuh).
  if (spec.shared_prefixes) {
    resources.shared_memory_bytes =
        std::max(resources.shared_memory_bytes, tile.tile_q * (2 * tile.pieces + 2) * 4);
  }
  resources.registers_per_thread =
      std::min(kMaxRegistersPerThread, fragment_registers(spec, tile) + kOtherRegisters);
  return resources;
}

Status check(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const DecodePlan& tile = tile_of(plan);
  if (tile.tile_q != 16 && tile.tile_q != 32) return plan_unsupported("16 or 32 rows of an item");
  if (tile.step_keys != 16 && tile.step_keys != 32)
    return plan_unsupported("steps of 16 or 32 keys");
  if (tile.warps < 1 || tile.warps > 8) return plan_unsupported("1 to 8 warps");
  if (tile.stages < 2 || tile.stages > 8) return plan_unsupported("2 to 8 stages");
  if (tile.pieces < 1 || tile.pieces > kMostPieces) {
    return plan_unsupported(fmt::format("1 to {} pieces", kMostPieces));
  }
  if (tile.in_cluster) {
    if (device.target != Target::kSm90a) return plan_unsupported("clusters need sm_90a");
    if (spec.batch_invariant) {
      return plan_unsupported("the pieces of a batch-invariant spec are no clusters");
    }
    if (spec.shared_prefixes) {
      return plan_unsupported("the pieces of a spec with shared prefixes are no clusters");
    }
    if (std::ranges::find(kClusters, tile.pieces) == kClusters.end()) {
      return plan_unsupported(fmt::format("clusters of {} pieces", fmt::join(kClusters, ", ")));
    }
  }
  if (tile.stretches &&
      (!is_packed(spec) || tile.in_cluster || spec.batch_invariant || spec.shared_prefixes)) {
    return plan_unsupported("stretches are of packed sequences, and neither clusters nor fixed");
  }
  if (spec.batch_invariant &&
      (tile.step_keys != kInvariantStepKeys || tile.warps != kInvariantWarps || tile.pieces != 1)) {
    return plan_unsupported(fmt::format("a batch-invariant spec has k{}, w{} and p1",
                                        kInvariantStepKeys, kInvariantWarps));
  }
  const PlanResources needs = resources_of(spec, plan);
  const int table_bytes = spec.batch_invariant   ? 0
                          : spec.shared_prefixes ? kSharedTableBytes
                                                 : kTableBytes;
  ATT_CHECK(check_shared_memory(needs, device.shared_memory_per_block_bytes - table_bytes, device));
  if (const int fragments = fragment_registers(spec, tile); fragments > kMostFragmentRegisters) {
    return plan_unsupported(fmt::format("{} registers a thread for fragments alone, {} leave room",
                                        fragments, kMostFragmentRegisters));
  }
  if (needs.registers_per_thread * needs.threads > device.registers_per_processor) {
    return plan_unsupported(
        fmt::format("{} threads of {} registers", needs.threads, needs.registers_per_thread));
  }
  return ok_status();
}

// Rows of an item of a spec with shared prefixes. The more there are, the more sequences share: on
// an H200, d 128, pages of 64, 32 rows instead of 16 take 16 sequences of 32k common keys from 108
// us to 103, 64 of 8k from 143 to 128, and 16 whose K/V heads have 8 heads each from 172 to 140;
// and 16 of 8k keys of which none are common from 147 to 159.
int shared_rows(const AttentionSpec& spec) {
  return fragment_registers(spec, DecodePlan{.tile_q = 32}) <= kMostFragmentRegisters ? 32 : 16;
}

// With fragments of d 256 a CTA of stretches spills (NVRTC 13.0), and takes 1.1 to 1.4 times as
// long as one of a list.
bool has_room_for_stretches(const AttentionSpec& spec, int tile_q, int step_keys) {
  constexpr int kMostOfStretches = kMostFragmentRegisters - 8;
  return is_packed(spec) &&
         fragment_registers(spec, {.tile_q = tile_q, .step_keys = step_keys}) <= kMostOfStretches;
}

// How pieces are dealt out: listed, or clusters, or stretches.
struct Deal {
  bool in_cluster, stretches;
};
constexpr std::array kDeals = {Deal{false, false}, Deal{true, false}, Deal{false, true}};

std::vector<KernelPlan> legal(const AttentionSpec& spec, const DeviceFacts& device) {
  std::vector<KernelPlan> plans;
  for (const int tile_q : {16, 32}) {
    if (spec.shared_prefixes && tile_q != shared_rows(spec)) continue;
    for (const int step_keys : {16, 32}) {
      for (const int warps : {4, 8}) {
        for (const int stages : {3, 4, 6, 2}) {
          if (stages == 2 && !spec.batch_invariant) continue;
          for (const int pieces : kPieces) {
            if (spec.shared_prefixes &&
                std::ranges::find(kSharedPieceLimits, pieces) == kSharedPieceLimits.end()) {
              continue;
            }
            for (const auto& [in_cluster, stretches] : kDeals) {
              if (stretches && !has_room_for_stretches(spec, tile_q, step_keys)) continue;
              const DecodePlan tile{.tile_q = tile_q,
                                    .step_keys = step_keys,
                                    .stages = stages,
                                    .warps = warps,
                                    .pieces = pieces,
                                    .in_cluster = in_cluster,
                                    .stretches = stretches};
              if (!decode::finds_whole_items(spec, tile) &&
                  leaves_sequences_to_few(spec, pieces, in_cluster)) {
                continue;
              }
              const KernelPlan plan{.pass = Pass::kForward, .target = device.target, .tile = tile};
              if (check(spec, plan, device).ok()) plans.push_back(plan);
            }
          }
        }
      }
    }
  }
  return plans;
}

}  // namespace

bool decode::finds_whole_items(const AttentionSpec& spec, const DecodePlan& tile) {
  return is_packed(spec) && !spec.batch_invariant && !spec.shared_prefixes && tile.pieces == 1 &&
         !tile.in_cluster && !tile.stretches;
}

bool decode::queries_in_registers(const AttentionSpec& spec, const DecodePlan& tile) {
  // 32 rows of packed sequences, or where prefixes are shared, whose fragments leave Q none.
  const bool may_read = spec.shared_prefixes || (tile.tile_q == 32 && is_packed(spec) &&
                                                 !spec.batch_invariant && !has_scaled_cache(spec));
  return !may_read || registers_without_queries(spec, tile) + registers_of_queries(spec, tile) <=
                          kMostFragmentRegisters;
}

int decode::resident(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  PlanResources needs = resources_of(spec, plan);
  if (spec.shared_prefixes) {
    needs.shared_memory_bytes += kSharedTableBytes;
  } else if (spec.mask && !spec.batch_invariant) {
    needs.shared_memory_bytes += kTableBytes;
  }
  return std::max(1, resident_ctas(needs, device));
}

namespace {

int ctas_at_once(const AttentionSpec& spec, const KernelPlan& plan) {
  return std::clamp(resident(spec, plan, device_facts(plan.target)), 1, 8);
}

int launch_pieces(const AttentionSpec& spec, int of_plan) {
  return spec.batch_invariant ? kFixedPieces : spec.shared_prefixes ? kSharedPieces : of_plan;
}

// Whether counters of arrivals are marked by the launch before (templates/ptx/arrive.cuh), so that
// nobody need zero them. Where a launch in front lists pieces it zeroes them beside.
bool marks_arrivals(const AttentionSpec& spec, const DecodePlan& tile) {
  return !tile.in_cluster && (tile.stretches || !is_packed(spec)) && !spec.shared_prefixes;
}

LaunchRecipe recipe(const AttentionSpec& spec, const KernelPlan& plan) {
  const DecodePlan& tile = tile_of(plan);
  const PlanResources needs = resources_of(spec, plan);
  if (!tile.in_cluster && !decode::finds_whole_items(spec, tile)) {
    LaunchRecipe recipe =
        piece_recipe(spec, plan.target, needs, tile.tile_q, launch_pieces(spec, tile.pieces));
    if (tile.stretches) take_stretches(recipe, ctas_at_once(spec, plan));
    if (marks_arrivals(spec, tile)) {
      Launch& main = recipe.launches.back();
      main.zeroed.clear();
      main.overlaps_previous = false;
      main.marks_arrivals = true;
    }
    return recipe;
  }
  LaunchRecipe recipe;
  recipe.launches.push_back(
      {.symbol = "",
       .threads = needs.threads,
       .shared_memory_bytes = needs.shared_memory_bytes,
       .cluster = tile.pieces,
       .item = is_packed(spec) ? WorkItem::kFoundTile : WorkItem::kPackedQueryTile,
       .tile = tile.tile_q});
  return recipe;
}

std::vector<WorkspaceRegion> widest_workspace(const AttentionSpec& spec, Target) {
  return widest_piece_regions(spec, launch_pieces(spec, kMostPieces), {16, 32});
}

TileShape tile_shape_of(const KernelPlan& plan) { return {tile_of(plan).tile_q, kUnitKeys}; }

std::vector<SharedMatrix> shared_matrices_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const DecodePlan& tile = tile_of(plan);
  const int qk = padded_qk(spec);
  const int stages = tile.stages * tile.warps;
  return {{"K", stages, tile.step_keys, qk},
          {"V", stages, tile.step_keys, padded_v(spec)},
          {"Q", 1, tile.tile_q, qk}};
}

std::vector<int> choices(const KernelPlan& plan) {
  const DecodePlan& t = tile_of(plan);
  return {t.tile_q, t.step_keys, t.stages, t.warps, t.pieces, t.in_cluster, t.stretches};
}

std::string tile_text(const KernelPlan& plan) {
  const DecodePlan& t = tile_of(plan);
  return fmt::format("q{} k{} s{} w{} p{}{}{}", t.tile_q, t.step_keys, t.stages, t.warps, t.pieces,
                     t.in_cluster ? " cluster" : "", t.stretches ? " stretches" : "");
}

Status parse_tile(std::span<const std::string_view> words, KernelPlan& plan) {
  DecodePlan tile;
  for (const std::string_view word : words) {
    if (word == "cluster") {
      tile.in_cluster = true;
    } else if (word == "stretches") {
      tile.stretches = true;
    } else if (!parse_word(word, "q", tile.tile_q) && !parse_word(word, "k", tile.step_keys) &&
               !parse_word(word, "s", tile.stages) && !parse_word(word, "w", tile.warps) &&
               !parse_word(word, "p", tile.pieces)) {
      return plan_text_error(fmt::format("`{}` is no word of a decode plan", word));
    }
  }
  if (words.size() != 5u + (tile.in_cluster ? 1 : 0) + (tile.stretches ? 1 : 0)) {
    return plan_text_error("a decode plan needs q, k, s, w and p once each");
  }
  plan.tile = tile;
  return ok_status();
}

std::string symbol_part(const KernelPlan& plan) {
  const DecodePlan& tile = tile_of(plan);
  return fmt::format("q{}k{}s{}p{}{}", tile.tile_q, tile.step_keys, tile.stages, tile.pieces,
                     tile.in_cluster  ? "c"
                     : tile.stretches ? "t"
                                      : "");
}

std::string head_constants(const AttentionSpec& spec, const KernelPlan& plan) {
  const DecodePlan& tile = tile_of(plan);
  const bool reads_head = spec.mask && expr::depends_on(spec.mask, expr::Variable::kHead);
  const int ctas = ctas_at_once(spec, plan);
  const std::string of_shared =
      spec.shared_prefixes
          ? fmt::format("constexpr int kCtasAtOnce = {};  // that the device has room for\n",
                        resident(spec, plan, device_facts(plan.target)) *
                            device_facts(plan.target).processor_count)
          : "";
  return of_shared +
         fmt::format(
             "constexpr bool kQueriesInRegisters = {};\n"
             "constexpr int kTileQ = {};\n"
             "constexpr int kStepKeys = {};\n"
             "constexpr int kStages = {};\n"
             "constexpr int kWarps = {};\n"
             "constexpr int kPieces = {};\n"
             "constexpr bool kInCluster = {};\n"
             "constexpr bool kTakesStretches = {};\n"
             "constexpr bool kFillsProcessors = false;\n"
             "constexpr bool kMarksArrivals = {};\n"
             "constexpr bool kMaskReadsHead = {};\n"
             "constexpr bool kMayReadTensors = {};\n"
             "constexpr int kSharedBytes = {};\n"
             "constexpr int kMinCtas = {};  // resident CTAs that the register budget must allow\n",
             decode::queries_in_registers(spec, tile), tile.tile_q, tile.step_keys, tile.stages,
             tile.warps, tile.pieces, tile.in_cluster, tile.stretches, marks_arrivals(spec, tile),
             reads_head, !spec.environment.tensors.empty(),
             resources_of(spec, plan).shared_memory_bytes, ctas);
}

// Whole items are for short sequences: a CTA alone draws 4096 keys of d 128 in 40 us, and where
// there may be longer ones no shape says that there is none beside short ones.
bool need_not_be_measured(const AttentionSpec& spec, const KernelPlan& plan,
                          const ProblemShape& shape) {
  constexpr std::int64_t kMostWholeKeys = 4096;
  const std::int64_t longest = is_paged(spec) ? shape.kv_len : shape.kv_len / 2;
  return has_pieces_of_fewer(spec, plan, shape) ||
         (decode::finds_whole_items(spec, tile_of(plan)) && longest > kMostWholeKeys);
}

}  // namespace

const FamilyOperations& decode_family() {
  static constexpr FamilyOperations kOperations = {
      .family = Family::kDecode,
      .pass = Pass::kForward,
      .name = "decode",
      .symbol_name = "decode",
      .template_path = "templates/kernels/decode_forward.cuh",
      .template_path_invariant = "templates/kernels/invariant_forward.cuh",
      .template_path_fp8_cache = "templates/kernels/decode_forward_fp8.cuh",
      .template_path_shared_prefixes = "templates/kernels/shared_prefix_forward.cuh",
      .serves = serves,
      .legal_plans = legal,
      .check = check,
      .resources = resources_of,
      .plan_cost = decode::plan_cost,
      .tiling = decode::tiling,
      .shape_cost = decode::shape_cost,
      .need_not_be_measured = need_not_be_measured,
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
