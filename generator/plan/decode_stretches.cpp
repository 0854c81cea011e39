#include "generator/plan/decode_stretches.hpp"

#include <algorithm>
#include <cmath>

#include "generator/plan/decode_merge.hpp"
#include "templates/work_items.h"

namespace attune {

ShapeCost decode_stretch_cost(const StretchRoom& room, const ProblemShape& shape,
                              const DeviceFacts& device, double items, double units,
                              double longest) {
  using att::kItemUnits;
  const double stretches =
      double(std::max<std::int64_t>(1, std::min(room.ctas, att::kMostStretches) / shape.kv_heads));
  const double line = items * (units + kItemUnits);
  const auto length = [&](double of_one) {
    const double most_pieces = room.pieces > 1 ? (of_one + kItemUnits) / (room.pieces - 1) : 0;
    return std::max({line / stretches, most_pieces, double(att::kLeastStretch)});
  };
  double equal = length(longest);
  // Items stay whole where that makes stretches little longer.
  const double whole = std::ceil(equal / (units + kItemUnits)) * (units + kItemUnits);
  const bool cuts = whole - equal > equal / att::kMostRounding;
  if (!cuts) equal = whole;
  const double taken = std::ceil(line / equal) * double(shape.kv_heads);
  const double processors = std::min<double>(device.processor_count, taken);
  const double pieces = items * double(shape.kv_heads) + (cuts ? taken : 0);
  // One of all may have half of all keys; of sequences in pages none has more than said.
  const double skewed = room.is_paged ? equal : length(std::max(units, items * units / 2));
  return {
      .rounds = pieces / processors,
      .tiles = items * double(shape.kv_heads) * units / pieces,
      .slowdown = (1 + skewed / equal) / 2,
      .units_per_us = device.clock_ghz * 1e3,
      .beside_us =
          cuts ? kStretchMergeUs + merge_us((units + kItemUnits) / equal, room.result_bytes) : 0};
}

}  // namespace attune
