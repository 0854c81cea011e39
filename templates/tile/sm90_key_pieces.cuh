// Pieces of the sm90a forward kernel's items, where a plan cuts their keys: a CTA has some of an
// item's kv tiles. What all of an item's pieces found: templates/tile/sm90_key_results.cuh.
#pragma once

#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/sm90_layout.cuh"
#include "templates/work_items.h"

namespace att {
namespace sm90 {

constexpr bool kCutsKeys = plan::kKeyPieces > 1;
static_assert(!kCutsKeys || kCluster == 1);

struct KeyPiece {
  int piece, pieces;
  int result;  // where the results of the item's pieces begin
};

// Between scheduler and consumers it is a word.
constexpr int kPieceBits = 6;
static_assert(kMostKeyPieces < 1 << kPieceBits &&
              kMostKeyRows / kRows < 1 << (31 - 2 * kPieceBits));
ATT_FN int to_word(const KeyPiece& own) {
  return own.piece | own.pieces << kPieceBits | own.result << 2 * kPieceBits;
}
ATT_FN KeyPiece key_piece(int word) {
  constexpr int kMask = (1 << kPieceBits) - 1;
  return {word & kMask, word >> kPieceBits & kMask, word >> 2 * kPieceBits};
}

struct TileSpan {
  int begin, end;
};
struct KeySpan {
  int begin, end;
};
// Of an item's tiles [first, last) those of a piece: none where there are fewer tiles than pieces.
ATT_FN TileSpan tiles_of_piece(int first, int last, const KeyPiece& own) {
  const int share = (last - first) / own.pieces;
  const int rest = last - first - share * own.pieces;
  const int begin = first + own.piece * share + min_i32(own.piece, rest);
  return {begin, begin + share + (own.piece < rest ? 1 : 0)};
}

}  // namespace sm90
}  // namespace att
