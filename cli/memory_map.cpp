#include "cli/memory_map.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace attune::cli {
namespace {

struct Tiles {
  int tile_q = 0, tile_kv = 0, stages = 0;
  int p_keys = 0;       // of P, where it goes through shared memory
  bool q_apart = true;  // Q keeps memory of its own throughout
  int columns = 16;     // rows are padded to a multiple of these
};

Tiles tiles_of(const KernelPlan& plan) {
  const auto [tile_q, tile_kv] = tile_shape(plan);
  if (const auto* tile = std::get_if<Sm80Plan>(&plan.tile)) {
    return {tile_q, tile_kv, tile->stages, 0, !tile->q_in_registers};
  }
  if (const auto* tile = std::get_if<Sm90aPlan>(&plan.tile)) {
    const int p_keys = tile->p_in_shared ? tile_kv / tile->score_buffers : 0;
    constexpr int kSlabColumns = 64;
    return {tile_q, tile_kv, tile->stages, p_keys, true, kSlabColumns};
  }
  return {};
}

int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }

std::vector<MemoryRegion> forward_map(const AttentionSpec& spec, const KernelPlan& plan) {
  const Tiles tiles = tiles_of(plan);
  if (tiles.stages == 0) return {};
  const auto padded = [&](int dim) { return round_up(dim, tiles.columns); };
  const int bytes = element_bytes(spec.dtype);
  std::vector<MemoryRegion> regions;
  for (const auto& [name, dim] :
       {std::pair{"K", padded(spec.head_dim_qk)}, {"V", padded(spec.head_dim_v)}}) {
    regions.push_back({name, fmt::format("{} stages of {} x {}", tiles.stages, tiles.tile_kv, dim),
                       tiles.stages * tiles.tile_kv * dim * bytes});
  }
  if (tiles.q_apart) {
    const int dim = padded(spec.head_dim_qk);
    regions.push_back({"Q", fmt::format("{} x {}", tiles.tile_q, dim), tiles.tile_q * dim * bytes});
  }
  if (tiles.p_keys > 0) {
    const int keys = padded(tiles.p_keys);
    regions.push_back(
        {"P", fmt::format("{} x {}", tiles.tile_q, keys), tiles.tile_q * keys * bytes});
  }
  return regions;
}

// Of the launch that makes dK and dV: a tile of keys stays, tiles of queries go by.
std::vector<MemoryRegion> backward_map(const AttentionSpec& spec, const KernelPlan& plan) {
  const auto [tile_q, tile_kv] = tile_shape(plan);
  int stages = 0, columns = 16, ds_buffers = 0;
  if (const auto* tile = std::get_if<Sm80BackwardPlan>(&plan.tile)) {
    stages = tile->stages;
  } else if (const auto* hopper = std::get_if<Sm90aBackwardPlan>(&plan.tile)) {
    stages = hopper->stages;
    columns = 64;
    ds_buffers = 2;
  } else {
    return {};
  }
  const int bytes = element_bytes(spec.dtype);
  const int qk = round_up(spec.head_dim_qk, columns), v = round_up(spec.head_dim_v, columns);
  std::vector<MemoryRegion> regions;
  for (const auto& [name, dim] : {std::pair{"K", qk}, {"V", v}}) {
    regions.push_back({name, fmt::format("{} x {}", tile_kv, dim), tile_kv * dim * bytes});
  }
  for (const auto& [name, dim] : {std::pair{"Q", qk}, {"dO", v}}) {
    regions.push_back({name, fmt::format("{} stages of {} x {}", stages, tile_q, dim),
                       stages * tile_q * dim * bytes});
  }
  if (ds_buffers > 0) {
    regions.push_back({"dS", fmt::format("{} of {} x {}", ds_buffers, tile_q, tile_kv),
                       ds_buffers * tile_q * tile_kv * bytes});
  }
  return regions;
}

}  // namespace

std::vector<MemoryRegion> shared_memory_map(const AttentionSpec& spec, const KernelPlan& plan) {
  const int shared_bytes = resources(spec, plan).shared_memory_bytes;
  if (shared_bytes == 0) return {};
  const bool is_forward = plan.pass == Pass::kForward;
  std::vector<MemoryRegion> regions =
      is_forward ? forward_map(spec, plan) : backward_map(spec, plan);
  if (regions.empty()) return {};
  std::ranges::stable_sort(regions, std::greater<>(), &MemoryRegion::bytes);
  int known = 0;
  for (const MemoryRegion& region : regions) known += region.bytes;
  if (known < shared_bytes) {
    regions.push_back({"rest",
                       is_forward ? "barriers, schedule, padding, output"
                                  : "LSE and D of the queries, barriers, padding",
                       shared_bytes - known});
  }
  return regions;
}

}  // namespace attune::cli
