#include "cli/memory_map.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace attune::cli {
namespace {

struct Tiles {
  int tile_q = 0, tile_kv = 0, stages = 0;
  int p_keys = 0;       // of P, where it goes through shared memory
  bool q_apart = true;  // Q keeps memory of its own throughout
};

Tiles tiles_of(const KernelPlan& plan, const LaunchRecipe& recipe) {
  if (const auto* tile = std::get_if<Sm80Plan>(&plan.tile)) {
    return {recipe.tile_q, recipe.tile_kv, tile->stages, 0, !tile->q_in_registers};
  }
  if (const auto* tile = std::get_if<Sm90aPlan>(&plan.tile)) {
    const int p_keys = tile->p_in_shared ? recipe.tile_kv / tile->score_buffers : 0;
    return {recipe.tile_q, recipe.tile_kv, tile->stages, p_keys, true};
  }
  return {};
}

}  // namespace

std::vector<MemoryRegion> shared_memory_map(const AttentionSpec& spec, const KernelPlan& plan) {
  const LaunchRecipe recipe = launch_recipe(spec, plan);
  const Tiles tiles = tiles_of(plan, recipe);
  if (tiles.stages == 0 || recipe.shared_memory_bytes == 0) return {};
  // Rows are padded to whole steps of the matrix instructions.
  const auto padded = [](int dim) { return (dim + 15) / 16 * 16; };
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
    regions.push_back({"P", fmt::format("{} x {}", tiles.tile_q, tiles.p_keys),
                       tiles.tile_q * tiles.p_keys * bytes});
  }
  std::ranges::stable_sort(regions, std::greater<>(), &MemoryRegion::bytes);
  int known = 0;
  for (const MemoryRegion& region : regions) known += region.bytes;
  if (known < recipe.shared_memory_bytes) {
    regions.push_back(
        {"rest", "barriers, schedule, padding, output", recipe.shared_memory_bytes - known});
  }
  return regions;
}

}  // namespace attune::cli
