// How long pieces of packed sequences are where a CTA has a processor to itself and what its result
// costs to merge is no trifle (the mla family): as the time is least in which all processors are
// done. Shared by the kernel that deals pieces out (templates/kernels/piece_items.cuh) and the cost
// model.
#pragma once

#include "templates/work_items.h"

namespace att {

// Lengths of pieces that are compared: from a quarter of a processor's share to four times it.
constexpr int kLengthsCompared = 64;

// Number `which` of them, in units of keys. `all`: units of a K/V head's items; `processors`: those
// that the K/V head has.
template <typename Int>
ATT_FN constexpr Int compared_length(Int all, Int processors, int which) {
  const Int share = (all + processors - 1) / processors;
  const Int length = (share * (4 + which) + 15) / 16;
  return length < kLeastPieceUnits ? kLeastPieceUnits : length;
}

// What items come to that are cut into pieces of one of these lengths at most.
struct CutItems {
  long long pieces;  // of all of them
  int longest;       // units of the longest piece
  int most;          // pieces of an item, at most
};

// When the last processor is done, in units of keys: pieces are no more rounds than all of them as
// long as the longest, and no more than the mean and a longest one at the end. (64 rows: a unit
// takes 2.2 us on an H200, Q, O and the result of a piece 8: with 2 units for a piece, 64 uneven
// sequences took a tenth longer. What a merge costs does not grow with the number of results, as
// CTAs share it: templates/tile/piece_merge.cuh.)
ATT_FN constexpr long long units_until_done(const CutItems& cut, long long all,
                                            long long processors) {
  constexpr int kUnitsOfPiece = 4;
  constexpr int kUnitsOfMerge = 3;
  const long long longest = cut.longest + kUnitsOfPiece;
  const long long in_rounds = (cut.pieces + processors - 1) / processors * longest;
  const long long on_average = (all + cut.pieces * kUnitsOfPiece) / processors + longest;
  return (in_rounds < on_average ? in_rounds : on_average) + (cut.most > 1 ? kUnitsOfMerge : 0);
}

}  // namespace att
