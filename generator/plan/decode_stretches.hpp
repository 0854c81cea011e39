// What stretches of packed sequences' keys cost the decode family
// (templates/tile/stretches.cuh).
#pragma once

#include "generator/plan/cost.hpp"
#include "generator/plan/plan.hpp"
#include "generator/spec/spec.hpp"

namespace attune {

struct StretchRoom {
  int pieces;  // of an item, at most
  int ctas;    // at once
  bool is_paged;
  double result_bytes;  // of a piece
};

// Of `items` items of a K/V head, of `units` units of keys each, of which one may have `longest`.
ShapeCost decode_stretch_cost(const StretchRoom& room, const ProblemShape& shape,
                              const DeviceFacts& device, double items, double units,
                              double longest);

}  // namespace attune
