// The sm80 family's plans. What they mean in the kernel: templates/kernels/sm80_forward.cuh.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "generator/plan/family.hpp"

namespace attune {
namespace {

constexpr int kElementBytes = 2;  // fp16 and bf16 alike

int padded(int head_dim) { return (head_dim + 15) / 16 * 16; }

const Sm80Plan& tile_of(const KernelPlan& plan) { return std::get<Sm80Plan>(plan.tile); }

bool has_dropout(const AttentionSpec& spec) {
  return spec.dropout.at_launch || spec.dropout.value > 0;
}

int rows_per_warp(const Sm80Plan& tile) { return tile.tile_q / tile.warps; }

std::string_view template_path(Pass) { return "templates/kernels/sm80_forward.cuh"; }

Status serves(const AttentionSpec& spec, Target target) {
  if (target == Target::kCpu) return plan_unsupported("the sm80 family needs a GPU");
  if (spec.dtype != DType::kF16 && spec.dtype != DType::kBf16) {
    return plan_unsupported(
        fmt::format("the sm80 family computes in fp16 and bf16, not {}", to_string(spec.dtype)));
  }
  for (const int dim : {spec.head_dim_qk, spec.head_dim_v}) {
    if (dim < 16 || dim > 256 || dim % 8 != 0) {
      return plan_unsupported(
          fmt::format("the sm80 family has head dims 16 to 256 in steps of 8, not {}", dim));
    }
  }
  return ok_status();
}

PlanResources resources_of(const AttentionSpec& spec, const KernelPlan& plan) {
  const Sm80Plan& tile = tile_of(plan);
  const int qk = padded(spec.head_dim_qk);
  const int v = padded(spec.head_dim_v);
  const int q_bytes = tile.tile_q * qk * kElementBytes;
  const int o_bytes = tile.tile_q * v * kElementBytes;
  const int stage_bytes = tile.tile_kv * (qk + v) * kElementBytes;
  PlanResources resources;
  resources.threads = 32 * tile.warps;
  // Q on its way to registers lies where the last stage will be, and O takes everything at the end.
  // The kernel asserts that its layout fits.
  const int last_bytes =
      tile.q_in_registers ? std::max(q_bytes, stage_bytes) : q_bytes + stage_bytes;
  resources.shared_memory_bytes = std::max((tile.stages - 1) * stage_bytes + last_bytes, o_bytes);
  // Fragments a thread holds through the loop: O, Q when it stays, the scores of one chunk; and
  // what ptxas needs beside them for addresses, row state, and K and V fragments in flight. 76 is
  // the least that compiled without spills at d 64, 128 and 256, NVRTC 13.0.
  const int blocks = std::max(1, rows_per_warp(tile) / 16);
  const int fragments =
      blocks * (v / 2 + (tile.q_in_registers ? qk / 4 : 0) + std::max(tile.chunk, 32) / 2);
  resources.registers_per_thread = (fragments + 76 + 7) / 8 * 8;
  return resources;
}

Status check(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  const Sm80Plan& tile = tile_of(plan);
  if (plan.pass != Pass::kForward) return plan_unsupported("the sm80 family has no backward pass");
  if (tile.warps < 1 || tile.warps > 16) return plan_unsupported("1 to 16 warps");
  if (tile.tile_q != 16 * tile.warps && tile.tile_q != 32 * tile.warps) {
    return plan_unsupported(fmt::format("each of {} warps takes 16 or 32 of the tile's {} rows",
                                        tile.warps, tile.tile_q));
  }
  if (tile.tile_kv < 32 || tile.tile_kv > 256 || tile.tile_kv % 32 != 0) {
    return plan_unsupported(
        fmt::format("a kv tile of 32 to 256 in steps of 32, not {}", tile.tile_kv));
  }
  if (tile.stages < 2 || tile.stages > 4) return plan_unsupported("2 to 4 stages");
  if ((tile.chunk != 16 && tile.chunk != 32 && tile.chunk != 64) ||
      tile.tile_kv % tile.chunk != 0) {
    return plan_unsupported("a chunk of 16, 32 or 64 keys that divides the kv tile");
  }
  if (tile.chunk == 16 && has_dropout(spec)) {
    return plan_unsupported("a chunk of at least the 32 keys that one random draw serves");
  }
  if (tile.unroll < 1 || tile.unroll > tile.tile_kv / tile.chunk) {
    return plan_unsupported("1 to as many chunks in a loop body as a kv tile has");
  }
  const PlanResources needs = resources_of(spec, plan);
  if (needs.shared_memory_bytes > device.shared_memory_per_block_bytes) {
    return plan_unsupported(fmt::format("{} bytes of shared memory, {} has {}",
                                        needs.shared_memory_bytes, device.name,
                                        device.shared_memory_per_block_bytes));
  }
  const int most =
      std::min(kMaxRegistersPerThread, device.registers_per_processor / needs.threads / 8 * 8);
  if (needs.registers_per_thread > most) {
    return plan_unsupported(
        fmt::format("about {} registers a thread, {} are there", needs.registers_per_thread, most));
  }
  return ok_status();
}

// The choices that measurement left open (docs/kernels_sm80.md): Q in registers wants small chunks,
// Q in shared memory is worth more keys a read.
std::vector<KernelPlan> legal(const AttentionSpec& spec, const DeviceFacts& device) {
  std::vector<KernelPlan> plans;
  const auto add = [&](const Sm80Plan& tile) {
    const KernelPlan plan{.pass = Pass::kForward, .target = device.target, .tile = tile};
    if (check(spec, plan, device).ok()) plans.push_back(plan);
  };
  constexpr std::array<std::array<int, 2>, 4> kRowsAndWarps = {
      {{128, 4}, {128, 8}, {64, 4}, {64, 2}}};
  for (const auto& [tile_q, warps] : kRowsAndWarps) {
    for (const int tile_kv : {32, 64, 128}) {
      for (const int stages : {2, 3}) {
        Sm80Plan tile{.tile_q = tile_q, .tile_kv = tile_kv, .stages = stages, .warps = warps};
        for (const bool q_in_registers : {false, true}) {
          tile.q_in_registers = q_in_registers;
          for (const int chunk : {q_in_registers ? 16 : 32, q_in_registers ? 32 : 64}) {
            tile.chunk = chunk;
            for (const int unroll : {1, 2}) {
              tile.unroll = unroll;
              add(tile);
            }
          }
        }
        // For scores that outgrow every reference: the running maximum throughout.
        if (stages == 2) {
          add({.tile_q = tile_q,
               .tile_kv = tile_kv,
               .stages = stages,
               .warps = warps,
               .frozen_max = false});
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

double cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
            const DeviceFacts& device) {
  const Sm80Plan& tile = tile_of(plan);
  const PlanResources needs = resources_of(spec, plan);
  const int ctas = std::max(1, resident_ctas(needs, device));
  const double dims = padded(spec.head_dim_qk) + padded(spec.head_dim_v);

  // Clocks one SM needs for a kv tile: matrix unit, shared memory, exponentials; and the barrier
  // and the dependent chain at a tile's start, hidden by other warps of the SM.
  const double flops_per_clock = device.matrix_tflops * 1e3 * mma_share(plan.target) /
                                 (device.processor_count * device.clock_ghz);
  const double elements = double(tile.tile_q) * tile.tile_kv;
  const double matrix = 2.0 * elements * dims / flops_per_clock;
  const double q_reads = tile.q_in_registers ? 0 : double(tile.tile_q) * tile.tile_kv / 32.0;
  const double kv_reads = double(tile.warps) * tile.tile_kv;
  const double shared =
      (kv_reads * dims + q_reads * padded(spec.head_dim_qk)) * kElementBytes / 128;
  const double exponentials = elements / 16;
  const double resident_warps = double(ctas) * tile.warps;
  constexpr double kChainClocks = 600;  // dependent latencies of one tile: loads, QK, exp2, PV
  const double tile_clocks =
      std::max({matrix, shared, exponentials}) * (tile.frozen_max ? 1.15 : 1.35) +
      kChainClocks * tile.warps / resident_warps;

  const double q_tiles = std::ceil(double(shape.q_len) / tile.tile_q);
  const double kv_tiles = std::ceil(double(shape.kv_len) / tile.tile_kv);
  const double items = q_tiles * shape.heads * shape.batch;
  constexpr double kItemClocks = 2500;  // prologue and epilogue: loads of Q, first K, store of O
  const double slots = double(device.processor_count) * ctas;
  const double waves = std::ceil(items / slots);
  const double item_clocks = kItemClocks + kv_tiles * tile_clocks;
  const double compute_us = waves * ctas * item_clocks / (device.clock_ghz * 1e3);

  const double bytes =
      double(kElementBytes) * shape.batch *
      (double(shape.heads) * shape.q_len * dims + double(shape.kv_heads) * shape.kv_len * dims);
  return std::max(compute_us, bytes / (device.memory_gb_per_s * 1e3)) + 3;
}

LaunchRecipe recipe(const AttentionSpec& spec, const KernelPlan& plan) {
  const PlanResources needs = resources_of(spec, plan);
  LaunchRecipe recipe;
  recipe.threads = needs.threads;
  recipe.shared_memory_bytes = needs.shared_memory_bytes;
  recipe.tile_q = tile_of(plan).tile_q;
  recipe.tile_kv = tile_of(plan).tile_kv;
  return recipe;
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
      "constexpr int kMinCtas = {};  // resident CTAs that the register budget must allow\n",
      tile.tile_q, tile.tile_kv, tile.stages, tile.warps, tile.q_in_registers, tile.frozen_max,
      tile.chunk, tile.unroll, needs.shared_memory_bytes,
      std::clamp(resident_ctas(needs, device_facts(plan.target)), 1, 8));
}

}  // namespace

const FamilyOperations& sm80_family() {
  static constexpr FamilyOperations kOperations = {
      .family = Family::kSm80,
      .name = "sm80",
      .symbol_name = "sm80",
      .template_path = template_path,
      .serves = serves,
      .legal_plans = legal,
      .check = check,
      .resources = resources_of,
      .cost_us = cost,
      .launch_recipe = recipe,
      .tile_text = tile_text,
      .parse_tile = parse_tile,
      .symbol_part = symbol_part,
      .head_constants = head_constants,
  };
  return kOperations;
}

}  // namespace attune
