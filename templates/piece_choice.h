// How long pieces of packed sequences are where a CTA has a processor to itself and what its result
// costs to merge is no trifle (the mla family): as the time is least in which all of them are done.
// Shared by the kernel that deals pieces out (templates/kernels/piece_items.cuh) and the cost
// model.
#pragma once

#include "templates/work_items.h"

namespace att {

// Lengths of pieces that are compared, a lane's each: from a quarter of a processor's share to
// twice it, or from the least that a piece has; and such that items stay whole.
constexpr int kLengthsCompared = 32;
constexpr int kWholeLength = 1 << 29;

// Number `which` of them, in units of keys, where a processor's share is so many.
template <typename Int>
ATT_FN constexpr Int compared_length(Int share, int which) {
  if (which == kLengthsCompared - 1) return kWholeLength;
  const Int length = share / 16 * (4 + which) + (share % 16 * (4 + which) + 15) / 16;
  return length < kLeastPieceUnits ? kLeastPieceUnits : length;
}

// What items come to that are cut into pieces of one of these lengths at most.
struct CutItems {
  int pieces;   // of all of them
  int longest;  // units of the longest piece
  int most;     // pieces of an item, at most
};

// In units of keys, of a processor's time for one. 64 rows: a unit takes 2.2 us on an H200; Q, O
// and the result of a piece 8 (with 2 units for them 64 uneven sequences took a tenth longer). What
// a merge costs does not grow with the number of results, as CTAs share it
// (templates/tile/piece_merge.cuh).
constexpr float kRoundUnits = 4;  // a piece's beginning and end
constexpr float kMergeUnits = 3;

// When all are done. Pieces start in rounds, of one on each processor; those of the last round may
// be the longest. `all`: units of all items; `of_round`: what a piece is of a round.
// (Multiplications where they will do: a GPU's division of floats is a long function.)
ATT_FN constexpr float units_until_done(const CutItems& cut, int all, float of_round) {
  if (cut.pieces == 0) return 0.0f;
  const float pieces = static_cast<float>(cut.pieces);
  const float full_rounds = static_cast<float>(static_cast<int>((pieces - 0.5f) * of_round));
  const float mean = static_cast<float>(tile_count(all, cut.pieces));
  const float busy = static_cast<float>(all) * of_round;
  const float until_last_ends = full_rounds * mean + static_cast<float>(cut.longest);
  return (busy > until_last_ends ? busy : until_last_ends) + (full_rounds + 1.0f) * kRoundUnits +
         (cut.most > 1 ? kMergeUnits : 0.0f);
}

}  // namespace att
