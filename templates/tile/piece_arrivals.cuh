// How the pieces of an item count those that have come.
#pragma once

#include "templates/ptx/arrive.cuh"
#include "templates/tile/pieces.cuh"

namespace att {

// An item's counter of arrivals.
ATT_FN int* counter_of(const PackedParams& p, const PieceOfItem& own) {
  constexpr int kInts = plan::kMarksArrivals ? sizeof(MarkedCounter) / sizeof(int) : 1;
  return p.pieces.arrivals + kInts * own.arrivals;
}

// The whole CTA calls it, some time before its piece is there.
ATT_FN void expect_arrivals(const PackedParams& p, const PieceOfItem& own) {
  if (plan::kMarksArrivals && own.pieces > 1 && thread_index() == 0) {
    mark_counter(reinterpret_cast<MarkedCounter*>(counter_of(p, own)));
  }
}

// One thread calls it: whether its CTA's piece is the last of so many.
ATT_FN bool arrives_last(int* counter, int pieces) {
  if constexpr (plan::kMarksArrivals) {
    return arrive_last(reinterpret_cast<MarkedCounter*>(counter), pieces);
  }
  return arrive(counter) == pieces - 1;
}

}  // namespace att
