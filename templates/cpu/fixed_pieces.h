// Fixed pieces of an item's keys, each done by whatever thread is free or all by one: where they
// end follows from a key's number alone, and they are merged one after the other in their order, so
// that a row's bits are the same either way.
#pragma once

#include "templates/cpu/attend.h"

namespace att {

struct FixedPieces {
  int item;
  int first, last;  // those that the call does, of the item's
  int count;        // of the item's, a call each; 1: one call does them all
};

// Of every item of the launch.
ATT_INLINE int fixed_pieces_of(const ForwardParams& p) {
  const int items = spec::kIsPacked ? sequence_item_count(p.q_len, p.batch, plan::kTileQ) * p.heads
                                    : item_count(p);
  return dealt_pieces(items, p.kv_len);
}

ATT_INLINE FixedPieces fixed_pieces_at(const ForwardParams& p, int index) {
  const int count = fixed_pieces_of(p);
  if (count > 1) return {index / count, index % count, index % count, count};
  return {index, 0, fixed_piece_count(p.kv_len) - 1, 1};
}

// The keys of a piece that lie in `all`, from the first one of a tile on.
ATT_INLINE KvBounds keys_of_fixed(int piece, const KvBounds& all) {
  const long long begin = fixed_piece_begin(piece), behind = fixed_piece_begin(piece + 1);
  const int end = behind < all.end ? static_cast<int>(behind) : all.end;
  if (begin >= end || all.begin >= end) return {0, 0};
  if (all.begin <= begin) return {static_cast<int>(begin), end};
  const int skipped = (all.begin - static_cast<int>(begin)) / plan::kTileKv * plan::kTileKv;
  return {static_cast<int>(begin) + skipped, end};
}

// What pieces found: O is not divided yet, the maximum is that of the scores.
struct Found {
  float o[kV][kBlockRows];
  float maximum[kBlockRows], sum[kBlockRows];
};

template <typename Of>
ATT_INLINE void clear(Of& found) {
  for (int i = 0; i < kV; ++i) {
    for (int r = 0; r < kBlockRows; ++r) found.o[i][r] = 0.0f;
  }
  for (int r = 0; r < kBlockRows; ++r) {
    found.maximum[r] = -kInfinity;
    found.sum[r] = 0.0f;
  }
}

template <typename From, typename To>
ATT_INLINE void copy(const From& from, To& to) {
  __builtin_memcpy(to.o, from.o, sizeof(to.o));
  __builtin_memcpy(to.maximum, from.maximum, sizeof(to.maximum));
  __builtin_memcpy(to.sum, from.sum, sizeof(to.sum));
}

// Adds the next piece's. A function of its own, so that roundings are the same wherever this is
// done.
static __attribute__((noinline)) void fold(Found& into, const float (&o)[kV][kBlockRows],
                                           const float (&its_maximum)[kBlockRows],
                                           const float (&its_sum)[kBlockRows], const Scale& scale) {
  for (int r = 0; r < kBlockRows; r += kLanes) {
    const Vec old = load(&into.maximum[r]), its = load(&its_maximum[r]);
    const Vec joint = max_skip_nan(its, old);
    const Vec base = joint == -kInfinity ? broadcast(0.0f) : joint;
    const Vec before = exp2_nonpositive((old - base) * scale.exponent, scale.correction);
    const Vec after = exp2_nonpositive((its - base) * scale.exponent, scale.correction);
    store(&into.maximum[r], joint);
    store(&into.sum[r], load(&into.sum[r]) * before + load(&its_sum[r]) * after);
    for (int i = 0; i < kV; ++i) {
      store(&into.o[i][r], load(&into.o[i][r]) * before + load(&o[i][r]) * after);
    }
  }
}

// Leaves what a piece found in the item's blocks where the others find it. True in the call that
// comes last, and `totals` has what all of them found together.
ATT_INLINE bool merge_fixed_pieces(const ForwardParams& p, const FixedPieces& own, int blocks,
                                   const Block (&found)[kBlocks], Found (&totals)[kBlocks],
                                   const Scale& scale) {
  const PieceLists& lists = static_cast<const PackedParams&>(p).pieces;
  Found* const results =
      reinterpret_cast<Found*>(lists.rows) + static_cast<long long>(own.item) * own.count * kBlocks;
  for (int i = 0; i < blocks; ++i) {
    Found& result = results[own.first * kBlocks + i];
    copy(found[i], result);
  }
  if (__atomic_add_fetch(&lists.arrivals[own.item], 1, __ATOMIC_ACQ_REL) != own.count) {
    return false;
  }
  for (int i = 0; i < blocks; ++i) {
    for (int piece = 0; piece < own.count; ++piece) {
      const Found& result = results[piece * kBlocks + i];
      fold(totals[i], result.o, result.maximum, result.sum, scale);
    }
  }
  return true;
}

}  // namespace att
