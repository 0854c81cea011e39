// Equal parts of the items of a line, one for each CTA, in the place of stretches
// (templates/tile/stretches.cuh): where lengths are such that none of them is much longer than a
// stretch. A CTA whose stretch ends in a second item begins, ends and merges twice, which took 16
// sequences of 7000 to 8192 keys 4 units longer than 64 rows' parts of 33.
#pragma once

#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/dealt_sequence.cuh"
#include "templates/tile/lines.cuh"
#include "templates/work_items.h"

namespace att {

// Of an item, none of them with more than `most` units.
ATT_FN int equal_parts(int units, int most) { return max_i32(quotient(units + most - 1, most), 1); }

// Units that a part has at most, the least with which `count` CTAs have no more than one each; 0:
// parts would be longer than stretches of `length` and kItemUnits more. Each lane has a sequence,
// and there are no others; `longest`: units of an item.
ATT_FN int units_of_part(const Dealt& own, const Line& line, long long length, int longest,
                         int count) {
  const int items = min_i32(items_of_line(own, line.count), count + 1);
  const auto fits = [&](int most) {
    return sum_of_lanes(items * equal_parts(own.units, most)) <= count;
  };
  const int least = tile_count(longest, plan::kPieces);
  int most = static_cast<int>(length < longest ? length : longest) + kItemUnits;
  if (most < least || !fits(most)) return 0;
#pragma unroll 1
  for (int step = kItemUnits; step > 0; step /= 2) {
    if (most - step >= least && fits(most - step)) most -= step;
  }
  return most;
}

}  // namespace att
