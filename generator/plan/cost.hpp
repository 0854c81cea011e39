// The cost model's common form: what of a plan's time no shape changes, and what a shape makes of
// it. A choice among thousands of plans is quick because most differ in the first part alone.
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "generator/plan/live_share.hpp"

namespace attune {

// Of a plan on a device, in a unit of the family's.
struct PlanCost {
  double item = 0;  // a work item beside its kv tiles
  double tile = 0;  // a kv tile
  double launch_us = 0;
  // Plans of a family that are equal in this have the same ShapeCost at every shape.
  std::array<int, 8> group{};
};

// Of a group at a shape.
struct ShapeCost {
  double rounds = 1;  // of mean items, until the last processor is done
  double tiles = 1;   // kv tiles of a mean item
  double slowdown = 1;
  double units_per_us = 1;
  double transfer_us = 0;  // what memory takes at least
  double beside_us = 0;    // as PlanCost::launch_us, where it depends on the shape
  double seen = 0;  // the part of the less of computing and memory that the other leaves open
};

// Predicted time of one launch, microseconds. Grows with every number of both but `units_per_us`.
inline double launch_us(const PlanCost& plan, const ShapeCost& shape) {
  const double compute_us =
      shape.rounds * (plan.item + shape.tiles * plan.tile) * shape.slowdown / shape.units_per_us;
  const auto [less, more] = std::minmax(compute_us, shape.transfer_us);
  return more + shape.seen * less + plan.launch_us + shape.beside_us;
}

// What of a mask a group's ShapeCost needs to know.
struct Tiling {
  int tile_q = 0, tile_kv = 0;  // 0: nothing
  // Of a static schedule; and where tensors decide, of any that cares.
  std::optional<ItemOrder> order;
  int part_q = 0;        // queries of the parts of a tile that are skipped alone; 0: none are
  bool by_keys = false;  // LiveWork::of_keys
  LiveTile tile() const { return {tile_q, tile_kv, part_q, by_keys}; }
};

}  // namespace attune
