// Pieces of an item's keys, each done by whatever thread is free, so that one token on a long past
// keeps all of them busy (Dao et al., "Flash-Decoding", 2023). Who comes last merges the results in
// the order of the pieces: they do not depend on who that is.
#pragma once

#include "templates/cpu/vector.h"
#include "templates/items.h"

namespace att {

struct Piece {
  int item;
  int index, count;  // of the item's
};

// Of every item of the launch.
ATT_INLINE int pieces_of(const ForwardParams& p) {
  if (plan::kPieces == 1) return 1;
  const int items = spec::kIsPacked ? sequence_item_count(p.q_len, p.batch, plan::kTileQ) * p.heads
                                    : item_count(p);
  return piece_count(items, plan::kPieces);
}

ATT_INLINE Piece piece_at(const ForwardParams& p, int index) {
  const int count = pieces_of(p);
  return {index / count, index % count, count};
}

// Whole tiles, from the first key on.
ATT_INLINE KvBounds keys_of(const Piece& piece, KvBounds all) {
  if (piece.count == 1 || all.begin >= all.end) return all;
  const long long tiles = tile_count(all.end - all.begin, plan::kTileKv);
  const auto begin_of = [&](int index) {
    const long long begin = all.begin + tiles * index / piece.count * plan::kTileKv;
    return static_cast<int>(begin < all.end ? begin : all.end);
  };
  return {begin_of(piece.index), begin_of(piece.index + 1)};
}

// What a piece found: O is not divided yet, the maximum is that of the scores.
struct PieceResult {
  float o[spec::kHeadDimV][kLanes];
  float maximum[kLanes], sum[kLanes];
};

// Leaves what the piece found where the others find it. True, and `block` has what all of them
// found together, in the call that comes last.
template <typename Block, typename Scale>
ATT_INLINE bool merge_pieces(const ForwardParams& p, const Piece& piece, Block& block,
                             const Scale& scale) {
  const PieceLists& lists = static_cast<const PackedParams&>(p).pieces;
  PieceResult* const results =
      reinterpret_cast<PieceResult*>(lists.rows) + static_cast<long long>(piece.item) * piece.count;
  PieceResult& own = results[piece.index];
  for (int i = 0; i < spec::kHeadDimV; ++i) store(own.o[i], load(block.o[i]));
  store(own.maximum, load(block.maximum));
  store(own.sum, load(block.sum));
  if (__atomic_add_fetch(&lists.arrivals[piece.item], 1, __ATOMIC_ACQ_REL) != piece.count) {
    return false;
  }
  Vec maximum = broadcast(-__builtin_inff()), sum = {};
  for (int i = 0; i < spec::kHeadDimV; ++i) store(block.o[i], Vec{});
  for (int index = 0; index < piece.count; ++index) {
    const PieceResult& found = results[index];
    const Vec joint = max_skip_nan(load(found.maximum), maximum);
    const Vec base = joint == -__builtin_inff() ? broadcast(0.0f) : joint;
    const Vec before = exp2_nonpositive((maximum - base) * scale.exponent, scale.correction);
    const Vec after =
        exp2_nonpositive((load(found.maximum) - base) * scale.exponent, scale.correction);
    maximum = joint;
    sum = sum * before + load(found.sum) * after;
    for (int i = 0; i < spec::kHeadDimV; ++i) {
      store(block.o[i], load(block.o[i]) * before + load(found.o[i]) * after);
    }
  }
  store(block.maximum, maximum);
  store(block.sum, sum);
  return true;
}

}  // namespace att
