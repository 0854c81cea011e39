// The cpu family's plans. What they mean in the kernel: templates/kernels/cpu_forward.h.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "generator/plan/family.hpp"
#include "templates/work_items.h"

namespace attune {
namespace {

constexpr int kAvx2Bytes = 32;
constexpr int kAvx512Bytes = 64;
constexpr int kAvx2Registers = 16;
constexpr int kAvx512Registers = 32;

const CpuPlan& tile_of(const KernelPlan& plan) { return std::get<CpuPlan>(plan.tile); }

int lanes(const CpuPlan& tile) { return tile.vector_bytes / 4; }

bool has_avx512(const DeviceFacts& device) {
  return device.registers_per_processor >= kAvx512Registers;
}

// Register blocks worth trying, with the share of the multiply-add peak that kernels reached:
// AVX-512 on 16 threads of a Sapphire Rapids Xeon and one core of a Zen 4, AVX2 on the latter; d
// 64, s 2048.
struct RegisterBlock {
  int vector_bytes, unroll, columns;
  double share;
};
constexpr std::array<RegisterBlock, 9> kRegisterBlocks = {{
    {kAvx512Bytes, 8, 3, 0.90},
    {kAvx512Bytes, 12, 2, 0.87},
    {kAvx512Bytes, 6, 4, 0.88},
    {kAvx512Bytes, 4, 6, 0.86},
    {kAvx512Bytes, 8, 2, 0.79},
    {kAvx512Bytes, 8, 1, 0.60},
    {kAvx2Bytes, 6, 2, 0.78},
    {kAvx2Bytes, 4, 2, 0.72},
    {kAvx2Bytes, 8, 1, 0.70},
}};

Status serves(const AttentionSpec& spec, Target target) {
  if (target != Target::kCpu) return plan_unsupported("the cpu family needs target cpu");
  if (spec.dtype == DType::kFp8E4m3) {
    return plan_unsupported("the cpu family stores fp32, bf16 or fp16, not fp8_e4m3");
  }
  for (const int dim : {spec.head_dim_qk, spec.head_dim_v}) {
    if (dim < 8 || dim > 512 || dim % 8 != 0) {
      return plan_unsupported(
          fmt::format("the cpu family has head dims 8 to 512 in steps of 8, not {}", dim));
    }
  }
  return ok_status();
}

PlanResources resources_of(const AttentionSpec&, const KernelPlan& plan) {
  const CpuPlan& tile = tile_of(plan);
  PlanResources resources;
  resources.threads = 1;
  resources.registers_per_thread = tile.unroll * tile.columns + tile.columns + 1;
  return resources;
}

Status check(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const CpuPlan& tile = tile_of(plan);
  if (tile.vector_bytes != kAvx2Bytes && tile.vector_bytes != kAvx512Bytes) {
    return plan_unsupported("vectors of 32 or 64 bytes");
  }
  if (tile.vector_bytes == kAvx512Bytes && !has_avx512(device)) {
    return plan_unsupported(fmt::format("{} has no AVX-512", device.name));
  }
  if (tile.unroll < 1 || tile.columns < 1 || tile.unroll > 16 || tile.columns > 8) {
    return plan_unsupported("1 to 16 rows and 1 to 8 vectors in registers");
  }
  const int registers = tile.vector_bytes == kAvx512Bytes ? kAvx512Registers : kAvx2Registers;
  if (const int needs = resources_of(spec, plan).registers_per_thread; needs > registers) {
    return plan_unsupported(fmt::format("{} vector registers, {} are there", needs, registers));
  }
  if (tile.thread_share < 1 || tile.thread_share > 64) {
    return plan_unsupported("one in 1 to 64 of the threads");
  }
  if (tile.tile_kv < 32 || tile.tile_kv > 1024 || tile.tile_kv % 32 != 0 ||
      tile.tile_kv % tile.unroll != 0) {
    return plan_unsupported(
        fmt::format("a kv tile of 32 to 1024 in steps of 32 and of {} keys, not {}", tile.unroll,
                    tile.tile_kv));
  }
  if (tile.tile_q < 1 || tile.tile_q > 1024 || tile.tile_q % (tile.columns * lanes(tile)) != 0) {
    return plan_unsupported(fmt::format("a q tile of at most 1024 rows in steps of {}, not {}",
                                        tile.columns * lanes(tile), tile.tile_q));
  }
  return ok_status();
}

std::vector<KernelPlan> legal(const AttentionSpec& spec, const DeviceFacts& device) {
  std::vector<KernelPlan> plans;
  for (const RegisterBlock& block : kRegisterBlocks) {
    // AVX2 is left to machines that have nothing wider.
    if ((block.vector_bytes == kAvx512Bytes) != has_avx512(device)) continue;
    // Multiples of 12 stand in for powers of two where 6 and 12 rows need them.
    const int kv_unit = block.unroll % 3 == 0 ? 96 : 128;
    for (const int blocks : {1, 2, 4}) {
      for (const int tile_kv : {kv_unit, 2 * kv_unit, 4 * kv_unit}) {
        for (const int thread_share : {1, 2}) {
          if (thread_share > device.processor_count) continue;
          const KernelPlan plan{
              .pass = Pass::kForward,
              .target = Target::kCpu,
              .tile = CpuPlan{.tile_q = block.columns * block.vector_bytes / 4 * blocks,
                              .tile_kv = tile_kv,
                              .unroll = block.unroll,
                              .columns = block.columns,
                              .vector_bytes = block.vector_bytes,
                              .thread_share = thread_share}};
          if (check(spec, plan, device).ok()) plans.push_back(plan);
        }
      }
    }
  }
  return plans;
}

double product_share(const CpuPlan& tile) {
  for (const RegisterBlock& block : kRegisterBlocks) {
    if (block.vector_bytes == tile.vector_bytes && block.unroll == tile.unroll &&
        block.columns == tile.columns) {
      return block.share;
    }
  }
  return 0.5;
}

// Every plan is a group of its own: there are a few dozen, and an item's time is its shape's.
PlanCost plan_cost(const AttentionSpec&, const KernelPlan& plan, const DeviceFacts&) {
  const CpuPlan& tile = tile_of(plan);
  return {.tile = 1,
          .launch_us = 5,
          .group = {tile.tile_q, tile.tile_kv, tile.unroll, tile.columns, tile.vector_bytes,
                    tile.thread_share}};
}

Tiling tiling(const AttentionSpec&, const KernelPlan&, const ProblemShape&, const DeviceFacts&) {
  return {};
}

// fp32 operations of one thread in a clock, as processors are designed: a power of two, of which
// clocks that fall under wide vectors leave three fifths at least. What was measured differs from
// process to process, and a search that is repeated must ask for the same candidates.
double flops_per_clock(const DeviceFacts& device) {
  constexpr double kLeastShare = 0.6;
  const double measured = device.matrix_tflops * 1e3 / device.processor_count / device.clock_ghz;
  return std::exp2(std::floor(std::log2(measured / kLeastShare)));
}

ShapeCost shape_cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                     const DeviceFacts& device, const LiveWork&) {
  const CpuPlan& tile = tile_of(plan);
  const double dims = spec.head_dim_qk + spec.head_dim_v;
  const auto grid =
      att::packed_tiles<std::int64_t>(shape.heads, shape.kv_heads, shape.q_len, tile.tile_q);
  const double items = double(shape.batch * shape.kv_heads * grid.per_kv_head());
  const double rows = std::min(double(tile.tile_q), double(grid.heads_per_item * shape.q_len));
  const double vectors = std::ceil(rows / lanes(tile));

  // Bounds of keys are those of a whole item: under a mask a tall one does more work in vain.
  const double keys = double(shape.kv_len) + (spec.mask != nullptr ? tile.tile_q : 0);
  const double flops = 2.0 * vectors * lanes(tile) * keys * dims;
  // What every item repeats: rows of K and V brought together, 16 bytes a clock, where the layout
  // or the dtype asks for it.
  constexpr double kCopyBytesPerClock = 16;
  const bool copies = spec.dtype != DType::kF32 || spec.layout != Layout::kBhsd;
  const double copy_clocks = copies ? keys * dims * 4 / kCopyBytesPerClock : 0;
  // Loop starts and the softmax' dependent chain, once a tile and register-block column. Tiles of
  // 96 to 512 keys were within 2 % of each other on the machines above.
  constexpr double kTileClocks = 100;
  const double tiles = std::ceil(keys / tile.tile_kv);
  const double start_clocks = tiles * std::ceil(vectors / tile.columns) * kTileClocks;
  const double item_clocks =
      flops / (flops_per_clock(device) * product_share(tile)) + copy_clocks + start_clocks;
  // Where two threads share a core, half of them may do as much; elsewhere they take twice as long.
  // The model knows neither, and leaves it to the tuner.
  const double fewer = tile.thread_share == 1 ? 1.0 : 1.1;
  const double bytes = double(element_bytes(spec.dtype)) * shape.batch * dims *
                       (double(shape.heads) * shape.q_len + double(shape.kv_heads) * shape.kv_len);
  return {.rounds = std::ceil(items / device.processor_count),
          .tiles = item_clocks,
          .slowdown = fewer,
          .units_per_us = device.clock_ghz * 1e3,
          .transfer_us = bytes / (device.memory_gb_per_s * 1e3)};
}

LaunchRecipe recipe(const AttentionSpec&, const KernelPlan& plan) {
  LaunchRecipe recipe;
  recipe.thread_share = tile_of(plan).thread_share;
  recipe.launches.push_back(
      {.symbol = "", .item = WorkItem::kPackedQueryTile, .tile = tile_of(plan).tile_q});
  return recipe;
}

std::vector<WorkspaceRegion> widest_workspace(const AttentionSpec&) { return {}; }

TileShape tile_shape_of(const KernelPlan& plan) {
  return {tile_of(plan).tile_q, tile_of(plan).tile_kv};
}

std::vector<int> choices(const KernelPlan& plan) {
  const CpuPlan& t = tile_of(plan);
  return {t.tile_q, t.tile_kv, t.unroll, t.columns, t.vector_bytes, t.thread_share};
}

std::string tile_text(const KernelPlan& plan) {
  const CpuPlan& tile = tile_of(plan);
  return fmt::format("q{} k{} u{} c{} v{} t{}", tile.tile_q, tile.tile_kv, tile.unroll,
                     tile.columns, tile.vector_bytes, tile.thread_share);
}

Status parse_tile(std::span<const std::string_view> words, KernelPlan& plan) {
  CpuPlan tile;
  int seen = 0;
  for (const std::string_view word : words) {
    if (parse_word(word, "t", tile.thread_share)) continue;  // caches have older plans without it
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
      "#define ATT_VECTOR_BYTES {}\n",
      tile.tile_q, tile.tile_kv, tile.unroll, tile.columns, tile.vector_bytes);
}

}  // namespace

const FamilyOperations& cpu_family() {
  static constexpr FamilyOperations kOperations = {
      .family = Family::kCpu,
      .pass = Pass::kForward,
      .name = "cpu",
      .symbol_name = "cpu",
      .template_path = "templates/kernels/cpu_forward.h",
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
