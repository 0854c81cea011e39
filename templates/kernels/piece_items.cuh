// The kernel that deals out the keys of packed sequences, whose lengths only the device knows, to
// CTAs of the decode and mla families: as many pieces of each sequence as its length asks for, so
// that one that is much longer than the others does not keep a few CTAs busy after all others are
// done.
//
// A piece has at most `target` units of keys: such a part of all that all sequences together have
// kMostPieces / 2 full pieces, or, in the mla family, the length from there on with which all are
// done first (templates/piece_choice.h); those of sequences with several are then fewer than
// kMostPieces, which is what their results have room for.
#pragma once

#include "templates/items.h"
#include "templates/piece_choice.h"
#include "templates/tile/dealt_sequence.cuh"
#include "templates/tile/piece_list.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/work_items.h"

namespace att {

struct CountedSequence {
  int items, units;
};
struct PieceTables {
  union {  // of a chunk of sequences: first to compare lengths, then to list them
    CountedSequence counted[plan::kFillsProcessors ? kItemThreads : 1];
    ListedSequence listed[kItemThreads];
  };
  // Of pieces of each length that is compared.
  int pieces[kLengthsCompared], longest[kLengthsCompared], most[kLengthsCompared];
};

ATT_FN int pieces_of(int units, int target) {
  return static_cast<int>(pieces_of_units<unsigned>(units, target, plan::kPieces));
}

// The whole CTA calls it: the length of a piece, `least` or more, with which all are done first. Of
// lengths that come to the same it is the longest. `all`: units of the sequences, which
// tables.counted has. Each lane has a length; warps take the sequences in turn, and then each of
// them compares.
ATT_FN int chosen_length(const PackedParams& p, PieceTables& tables, int all, int least) {
  const int processors = p.pieces.processors, lane = lane_index();
  const int share = tile_count(all, max_i32(quotient(processors, p.kv_heads), 1));
  const int length = max_i32(compared_length(share, lane), least);
  CutItems cut = {0, 0, 0};
#pragma unroll 1
  for (int b = warp_index(); b < p.batch; b += kItemWarps) {
    const CountedSequence of = tables.counted[b];
    const int of_item = pieces_of(of.units, length);
    constexpr int kMostCounted = 1 << 16;  // so that int has room
    cut.pieces += min_i32(of.items, kMostCounted) * of_item;
    cut.longest = max_i32(cut.longest, quotient(of.units + of_item - 1, of_item));
    cut.most = max_i32(cut.most, of_item);
  }
  if (warp_index() < p.batch) {
    add_shared(&tables.pieces[lane], min_i32(cut.pieces, kMostItems));
    raise_shared(&tables.longest[lane], cut.longest);
    raise_shared(&tables.most[lane], cut.most);
  }
  sync_threads();
  cut = {tables.pieces[lane], tables.longest[lane], tables.most[lane]};
  const float of_round =
      math_divide(static_cast<float>(p.kv_heads), static_cast<float>(processors));
  // Bits of numbers that are not negative go by their size.
  const unsigned time = __builtin_bit_cast(unsigned, units_until_done(cut, all, of_round));
  return shuffle_from(length, highest_bit(ballot(time == least_of_lanes(time))));
}

// Pieces of one length at most; `target` units of keys.
struct EqualPieces {
  static constexpr int kResults = kMostPieces;
  static constexpr bool kMayAskForMore = false;  // but for offsets that overlap
  PieceTables& tables;
  int target = 0;

  ATT_MEMBER explicit EqualPieces(PieceTables& of) : tables(of) {
    if constexpr (plan::kFillsProcessors) {
      const int i = thread_index();
      if (i < kLengthsCompared) tables.pieces[i] = tables.longest[i] = tables.most[i] = 0;
    }
  }
  ATT_MEMBER void count(const Dealt& own) {
    if constexpr (plan::kFillsProcessors) {
      tables.counted[thread_index()] = {own.items, own.units};
    }
  }
  ATT_MEMBER void decide(const PackedParams& p, int all, bool whole) {
    target = units_of_piece(all, p.kv_heads);
    // More sequences than one chunk has fill the processors whole.
    if (plan::kFillsProcessors && whole) target = chosen_length(p, tables, all, target);
  }
  ATT_MEMBER int pieces(const Dealt& own) const { return pieces_of(own.units, target); }
};

}  // namespace att

ATT_KERNEL __launch_bounds__(att::kItemThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _items)(ATT_GRID_CONSTANT att::ListKernelParams params) {
  __shared__ att::PieceTables tables;
  att::EqualPieces rule(tables);
  att::list_pieces(params, tables.listed,
                   att::piece_item_count(params.q_len, params.batch, params.heads, params.kv_heads,
                                         att::plan::kTileQ),
                   rule);
}
