// The cpu family's plans. What they mean in the kernel: templates/kernels/cpu_forward.h.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "generator/plan/cpu_registers.hpp"
#include "generator/plan/family.hpp"
#include "generator/plan/live_share.hpp"
#include "templates/work_items.h"

namespace attune {
namespace {

constexpr std::array kPieces = {2, 4, 8, 16, 32, 64};
constexpr std::array kLanesOfVectors = {8, 16};

// The only plan of batch-invariant specs: keys of a tile decide in which order a row's are added
// up, and a compiler is free to round other register blocks' products in other places.
constexpr CpuPlan kInvariantAvx512 = {
    .tile_q = 48, .tile_kv = 128, .unroll = 8, .columns = 3, .vector_bytes = 64};
constexpr CpuPlan kInvariantAvx2 = {
    .tile_q = 16, .tile_kv = 192, .unroll = 6, .columns = 2, .vector_bytes = 32};

CpuPlan invariant_plan(const DeviceFacts& device) {
  return device.registers_per_processor >= 32 ? kInvariantAvx512 : kInvariantAvx2;
}

const CpuPlan& tile_of(const KernelPlan& plan) { return std::get<CpuPlan>(plan.tile); }

RegisterBlock block_of(const CpuPlan& tile) {
  return {.vector_bytes = tile.vector_bytes, .unroll = tile.unroll, .columns = tile.columns};
}

Status serves(const AttentionSpec& spec, Target target) {
  if (target != Target::kCpu) return plan_unsupported("the cpu family needs target cpu");
  if (spec.dtype == DType::kFp8E4m3) {
    return plan_unsupported("the cpu family stores fp32, bf16 or fp16, not fp8_e4m3");
  }
  for (const int dim : {spec.head_dim_qk, spec.head_dim_v}) {
    if (dim < 8 || dim > 576 || dim % 8 != 0) {
      return plan_unsupported(
          fmt::format("the cpu family has head dims 8 to 576 in steps of 8, not {}", dim));
    }
  }
  return ok_status();
}

PlanResources resources_of(const AttentionSpec&, const KernelPlan& plan) {
  PlanResources resources;
  resources.threads = 1;
  resources.registers_per_thread = block_of(tile_of(plan)).registers();
  return resources;
}

Status check(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const CpuPlan& tile = tile_of(plan);
  if (spec.batch_invariant && tile != invariant_plan(device)) {
    return plan_unsupported("a batch-invariant spec has a single plan on a device");
  }
  ATT_CHECK(check_registers(block_of(tile), device));
  if (tile.thread_share < 1 || tile.thread_share > 64) {
    return plan_unsupported("one in 1 to 64 of the threads");
  }
  if (tile.tile_kv < 32 || tile.tile_kv > 1024 || tile.tile_kv % 32 != 0 ||
      tile.tile_kv % tile.unroll != 0) {
    return plan_unsupported(
        fmt::format("a kv tile of 32 to 1024 in steps of 32 and of {} keys, not {}", tile.unroll,
                    tile.tile_kv));
  }
  if (tile.tile_q < 1 || tile.tile_q > 1024 || tile.tile_q % block_of(tile).width() != 0) {
    return plan_unsupported(fmt::format("a q tile of at most 1024 rows in steps of {}, not {}",
                                        block_of(tile).width(), tile.tile_q));
  }
  if (tile.pieces < 1 || tile.pieces > kPieces.back()) {
    return plan_unsupported(fmt::format("1 to {} pieces", kPieces.back()));
  }
  // Where there are more rows there are items enough.
  if (tile.pieces > 1 && tile.tile_q != block_of(tile).lanes()) {
    return plan_unsupported("pieces of the keys for a q tile of one vector only");
  }
  return ok_status();
}

std::vector<KernelPlan> legal(const AttentionSpec& spec, const DeviceFacts& device) {
  std::vector<KernelPlan> plans;
  const auto add = [&](const CpuPlan& tile) {
    const KernelPlan plan{.pass = Pass::kForward, .target = Target::kCpu, .tile = tile};
    if (check(spec, plan, device).ok()) plans.push_back(plan);
  };
  for (const RegisterBlock& block : register_blocks(device)) {
    // Multiples of 12 stand in for powers of two where 6 and 12 rows need them.
    const int kv_unit = block.unroll % 3 == 0 ? 96 : 128;
    for (const int blocks : {1, 2, 4}) {
      for (const int tile_kv : {kv_unit, 2 * kv_unit, 4 * kv_unit}) {
        CpuPlan tile{.tile_q = block.width() * blocks,
                     .tile_kv = tile_kv,
                     .unroll = block.unroll,
                     .columns = block.columns,
                     .vector_bytes = block.vector_bytes};
        for (const int thread_share : {1, 2}) {
          tile.thread_share = thread_share;
          if (thread_share <= device.processor_count) add(tile);
        }
        tile.thread_share = 1;
        for (const int pieces : kPieces) {
          tile.pieces = pieces;
          if (tile.tile_q == block.lanes() && pieces <= 4 * device.processor_count) add(tile);
        }
      }
    }
  }
  return plans;
}

// Every plan is a group of its own: there are a few dozen, and an item's time is its shape's.
PlanCost plan_cost(const AttentionSpec&, const KernelPlan& plan, const DeviceFacts&) {
  const CpuPlan& tile = tile_of(plan);
  return {.tile = 1,
          .launch_us = 5,
          .group = {tile.tile_q, tile.tile_kv, tile.unroll, tile.columns, tile.vector_bytes,
                    tile.thread_share, tile.pieces}};
}

// Of other masks a sample of tiles says less than what follows: items end where their keys do, in
// the middle of a tile, and the edges that partial tiles lie on fall between the sampled ones or on
// all of them.
bool tensors_decide(const AttentionSpec& spec) {
  return spec.mask != nullptr && !expr::telling_slots(spec.mask).empty();
}

Tiling tiling(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape&,
              const DeviceFacts&) {
  if (!tensors_decide(spec)) return {};
  return {.tile_q = tile_of(plan).tile_q, .tile_kv = tile_of(plan).tile_kv, .order = {}};
}

// Keys that an item works on, and those of them in partial tiles.
struct LiveKeys {
  double all, partial;
};
LiveKeys live_keys(const AttentionSpec& spec, const CpuPlan& tile, const ProblemShape& shape,
                   const LiveWork& work) {
  const auto kv_len = double(shape.kv_len);
  if (spec.mask == nullptr) return {kv_len, 0};
  if (tensors_decide(spec) && !work.reads_tensors)
    return {kv_len * work.share, kv_len * work.share * work.partial};
  // Bounds of keys are those of a whole item: under a mask a tall one does more work in vain.
  return {kv_len + tile.tile_q, 0};
}

ShapeCost shape_cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                     const DeviceFacts& device, const LiveWork& work) {
  const CpuPlan& tile = tile_of(plan);
  const double dims = spec.head_dim_qk + spec.head_dim_v;
  const auto grid =
      att::packed_tiles<std::int64_t>(shape.heads, shape.kv_heads, shape.q_len, tile.tile_q);
  const std::int64_t items = shape.batch * shape.kv_heads * grid.per_kv_head();
  const double pieces =
      double(spec.batch_invariant ? att::dealt_pieces<std::int64_t>(items, shape.kv_len)
                                  : att::piece_count<std::int64_t>(items, tile.pieces));
  const double rows = std::min(double(tile.tile_q), double(grid.heads_per_item * shape.q_len));
  const RegisterBlock block = block_of(tile);
  const double vectors = std::ceil(rows / block.lanes());

  const auto [keys, partial_keys] = live_keys(spec, tile, shape, work);
  const double flops = 2.0 * vectors * block.lanes() * keys * dims;
  // Loop starts and the softmax' dependent chain, once a tile and register-block column. Tiles of
  // 96 to 512 keys were within 2 % of each other on the machines above.
  constexpr double kTileClocks = 100;
  const double tiles = std::ceil(keys / tile.tile_kv);
  const double blocks = std::ceil(vectors / tile.columns);
  const double start_clocks = tiles * blocks * kTileClocks;
  // The mask's function once a key and register block, and the maximum once more: 9 to 11 ns of an
  // EPYC at 3.3 GHz, 15 of a long mask and a narrow block.
  constexpr double kMaskClocks = 30;
  const double mask_clocks = partial_keys * blocks * kMaskClocks;
  const double item_clocks = product_clocks(block, flops, device) + copy_clocks(spec, keys, dims) +
                             start_clocks + mask_clocks;
  const double longest_share = tiles > 0 ? std::ceil(tiles / pieces) / tiles : 1;  // of a piece
  // What a piece writes is read once by another thread.
  constexpr double kPieceClocks = 2000;
  const double piece_clocks = pieces > 1 ? kPieceClocks + 2 * block.lanes() * dims : 0;
  // Where two threads share a core, half of them may do as much; elsewhere they take twice as long.
  // The model knows neither, and leaves it to the tuner.
  const double fewer = tile.thread_share == 1 ? 1.0 : 1.1;
  const double query_bytes = double(element_bytes(spec.dtype)) * shape.heads * shape.q_len;
  const double key_bytes = double(element_bytes(kv_dtype(spec))) * shape.kv_heads * shape.kv_len;
  const double bytes = shape.batch * dims * (query_bytes + key_bytes);
  // No measured rate, which is another one in every process: plans would be in another order in
  // each, and what was tuned not be found again.
  constexpr double kBytesPerClock = 8;
  return {.rounds = std::ceil(double(items) * pieces / device.processor_count),
          .tiles = item_clocks * longest_share + piece_clocks,
          .slowdown = fewer,
          .units_per_us = device.clock_ghz * 1e3,
          .transfer_us = bytes / (kBytesPerClock * device.clock_ghz * 1e3)};
}

// Results of pieces that wait to be merged, and how many have come (templates/cpu/key_pieces.h).
std::vector<WorkspaceRegion> piece_regions(const AttentionSpec& spec, int tile_q, int pieces) {
  using Content = WorkspaceRegion::Content;
  return {{.content = Content::kPieceResults,
           .slot = tile_q,
           .length_unit = tile_q,
           .columns = spec.head_dim_v + 2,
           .pieces = pieces},
          {.content = Content::kPieceArrivals,
           .slot = tile_q,
           .length_unit = tile_q,
           .pieces = pieces}};
}

LaunchRecipe recipe(const AttentionSpec& spec, const KernelPlan& plan) {
  const CpuPlan& tile = tile_of(plan);
  const int pieces = spec.batch_invariant ? kFixedPieces : tile.pieces;
  LaunchRecipe recipe;
  recipe.thread_share = tile.thread_share;
  recipe.launches.push_back(
      {.symbol = "", .pieces = pieces, .item = WorkItem::kPackedQueryTile, .tile = tile.tile_q});
  if (pieces != 1) {
    recipe.workspace = piece_regions(spec, tile.tile_q, pieces);
    recipe.launches.back().zeroed = {WorkspaceRegion::Content::kPieceArrivals};
  }
  return recipe;
}

std::vector<WorkspaceRegion> widest_workspace(const AttentionSpec& spec, Target) {
  std::vector<WorkspaceRegion> widest;
  if (spec.batch_invariant) {
    for (const CpuPlan& tile : {kInvariantAvx512, kInvariantAvx2}) {
      for (const WorkspaceRegion& region : piece_regions(spec, tile.tile_q, kFixedPieces))
        widest.push_back(region);
    }
    return widest;
  }
  for (const int lanes : kLanesOfVectors) {
    for (const WorkspaceRegion& region : piece_regions(spec, lanes, kPieces.back()))
      widest.push_back(region);
  }
  return widest;
}

TileShape tile_shape_of(const KernelPlan& plan) {
  return {tile_of(plan).tile_q, tile_of(plan).tile_kv};
}

std::vector<int> choices(const KernelPlan& plan) {
  const CpuPlan& t = tile_of(plan);
  return {t.tile_q, t.tile_kv, t.unroll, t.columns, t.vector_bytes, t.thread_share, t.pieces};
}

std::string tile_text(const KernelPlan& plan) {
  const CpuPlan& tile = tile_of(plan);
  const std::string text =
      fmt::format("q{} k{} u{} c{} v{} t{}", tile.tile_q, tile.tile_kv, tile.unroll, tile.columns,
                  tile.vector_bytes, tile.thread_share);
  return tile.pieces == 1 ? text : fmt::format("{} p{}", text, tile.pieces);
}

Status parse_tile(std::span<const std::string_view> words, KernelPlan& plan) {
  CpuPlan tile;
  int seen = 0;
  for (const std::string_view word : words) {
    // Caches have plans of before these words.
    if (parse_word(word, "t", tile.thread_share) || parse_word(word, "p", tile.pieces)) continue;
    if (!parse_word(word, "q", tile.tile_q) && !parse_word(word, "k", tile.tile_kv) &&
        !parse_word(word, "u", tile.unroll) && !parse_word(word, "c", tile.columns) &&
        !parse_word(word, "v", tile.vector_bytes)) {
      return plan_text_error(fmt::format("`{}` is no word of a cpu plan", word));
    }
    ++seen;
  }
  if (seen != 5) return plan_text_error("a cpu plan needs q, k, u, c and v once each");
  plan.tile = tile;
  return ok_status();
}

std::string symbol_part(const KernelPlan& plan) {
  const CpuPlan& tile = tile_of(plan);
  return fmt::format("q{}k{}v{}", tile.tile_q, tile.tile_kv, tile.vector_bytes);
}

std::string head_constants(const AttentionSpec&, const KernelPlan& plan) {
  const CpuPlan& tile = tile_of(plan);
  // The instruction set is chosen by the preprocessor (templates/cpu/vector.h).
  return fmt::format(
      "constexpr int kTileQ = {};\n"
      "constexpr int kTileKv = {};\n"
      "constexpr int kUnroll = {};\n"
      "constexpr int kColumns = {};\n"
      "constexpr int kPieces = {};\n"
      "#define ATT_VECTOR_BYTES {}\n",
      tile.tile_q, tile.tile_kv, tile.unroll, tile.columns, tile.pieces, tile.vector_bytes);
}

}  // namespace

const FamilyOperations& cpu_family() {
  static constexpr FamilyOperations kOperations = {
      .family = Family::kCpu,
      .pass = Pass::kForward,
      .name = "cpu",
      .symbol_name = "cpu",
      .template_path = "templates/kernels/cpu_forward.h",
      .template_path_invariant = "templates/kernels/cpu_invariant_forward.h",
      .template_path_fp8_cache = "templates/kernels/cpu_forward_fp8.h",
      .serves = &serves,
      .legal_plans = &legal,
      .check = &check,
      .resources = &resources_of,
      .plan_cost = &plan_cost,
      .tiling = &tiling,
      .shape_cost = &shape_cost,
      .launch_recipe = &recipe,
      .widest_workspace = &widest_workspace,
      .takes_any_strides = true,
      .tile_shape = &tile_shape_of,
      .choices = &choices,
      .tile_text = &tile_text,
      .parse_tile = &parse_tile,
      .symbol_part = &symbol_part,
      .head_constants = &head_constants};
  return kOperations;
}

}  // namespace attune
