// The lines on which packed sequences' items lie whose keys CTAs take in stretches
// (templates/tile/stretches.cuh), and what the lanes of a warp know of them, a sequence each.
#pragma once

#include "templates/items.h"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/dealt_sequence.cuh"
#include "templates/work_items.h"

namespace att {

// Lines of a K/V head: the items of a sequence with a single query.
ATT_FN int lines_of_head(const PackedParams& p) {
  if constexpr (!plan::kFillsProcessors) return 1;
  return packed_tiles(p.heads, p.kv_heads, 1, plan::kTileQ).head_parts;
}

// Of a line, of so many.
ATT_FN int stretches_of_line(int lines) {
  const int of_all = min_i32(block_count(), kMostStretches);
  return max_i32(of_all / lines, 1);
}

ATT_FN int units_on_line(int units) { return units + kItemUnits; }
ATT_FN int items_of_line(const Dealt& of, int lines) {
  if constexpr (!plan::kFillsProcessors) return of.items;
  return tile_count(of.items, lines);
}
ATT_FN long long units_on_line(const Dealt& of, int lines) {
  return static_cast<long long>(items_of_line(of, lines)) * units_on_line(of.units);
}

// a / b, which takes a tenth of the instructions where a has 31 bits.
ATT_FN long long quotient(long long a, int b) {
  if (a >> 31 == 0) return quotient(static_cast<int>(a), b);
  return a / b;
}

ATT_FN long long sum_of_lanes(long long value) {
#pragma unroll 1
  for (int distance = 16; distance > 0; distance /= 2) {
    value += shuffle_long_from(value, lane_index() ^ distance);
  }
  return value;
}

// What the lanes' values come to up to each of them.
struct LanesOnLine {
  long long own, up_to;

  ATT_MEMBER explicit LanesOnLine(long long value) : own(value), up_to(value) {
    const int lane = lane_index();
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const long long before = shuffle_long_from(up_to, lane >= distance ? lane - distance : lane);
      if (lane >= distance) up_to += before;
    }
  }
  ATT_MEMBER long long all() const { return shuffle_long_from(up_to, 31); }
  // The first lane up to which they come to more than `at`; 32: none.
  ATT_MEMBER int at(long long at) const {
    const unsigned behind = ballot(up_to > at);
    return behind == 0 ? 32 : highest_bit(behind & (0u - behind));
  }
  ATT_MEMBER long long before(int lane) const { return shuffle_long_from(up_to - own, lane); }
};

// Lane `lane`'s, the same for all.
ATT_FN Dealt dealt_from(const Dealt& own, int lane) {
  Dealt of;
  of.items = shuffle_from(own.items, lane);
  of.units = shuffle_from(own.units, lane);
  of.parts = shuffle_from(own.parts, lane);
  of.heads_per_item = shuffle_from(own.heads_per_item, lane);
  of.sequence = own.sequence;
  of.sequence.q_len = shuffle_from(own.sequence.q_len, lane);
  of.sequence.kv_len = shuffle_from(own.sequence.kv_len, lane);
  of.sequence.q_first = shuffle_from(own.sequence.q_first, lane);
  of.sequence.kv_first = shuffle_from(own.sequence.kv_first, lane);
  return of;
}

// Which of a K/V head's lines.
struct Line {
  int h_kv, number, count;  // of so many of the head
};

}  // namespace att
