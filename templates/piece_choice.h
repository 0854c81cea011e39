// How long pieces of packed sequences are: as the time is least in which all of them are done.
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

// What takes how long, in any unit of time.
struct PieceTimes {
  float streamed;  // a unit of keys for each processor, as memory brings it where all are busy
  float alone;     // a unit of a piece whose CTA has a processor to itself
  float together;  // and where as many CTAs share one as have room
  float round;     // a piece's beginning and end, while its processor waits
  float merge;     // of pieces' results
  int ctas;        // that a processor has room for
};

// When all are done. Pieces start in rounds, of as many as have room at once. Memory is busy all
// the time or, where the pieces of the last round are so long, until that one starts; these then go
// no faster than a processor does, which may have others beside the longest. `all`: units of all
// items; `of_round`: what a piece is of a round. (Multiplications where they will do: a GPU's
// division of floats is a long function.)
ATT_FN constexpr float time_until_done(const CutItems& cut, int all, float of_round,
                                       const PieceTimes& times) {
  if (cut.pieces == 0) return 0.0f;
  const float pieces = static_cast<float>(cut.pieces);
  const float full_rounds = static_cast<float>(static_cast<int>((pieces - 0.5f) * of_round));
  const float ctas = static_cast<float>(times.ctas);
  const bool shares = (pieces * of_round - full_rounds) * ctas > 1.001f;
  const float mean = static_cast<float>(tile_count(all, cut.pieces));
  const float streamed = ctas * times.streamed;  // a unit of each piece of a round
  const float memory = static_cast<float>(all) * of_round * streamed;
  const float beside = shares ? mean * (times.together - times.alone) : 0.0f;
  const float longest = static_cast<float>(cut.longest) * times.alone + beside;
  const float until_last_ends = full_rounds * mean * streamed + longest;
  return (memory > until_last_ends ? memory : until_last_ends) +
         (full_rounds + 1.0f) * times.round + (cut.most > 1 ? times.merge : 0.0f);
}

}  // namespace att
