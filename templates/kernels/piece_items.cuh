// The kernel that deals out the keys of packed sequences, whose lengths only the device knows, to
// CTAs of the decode family: as many pieces of each sequence as its length asks for, so that one
// that is much longer than the others does not keep a few CTAs busy after all others are done.
//
// A piece has at most `target` units of keys. It is chosen so that all sequences together have no
// more than kMostPieces / 2 full ones; those of sequences with several are then fewer than
// kMostPieces, which is what their results have room for. With plan::kFillsProcessors it is longer
// where the processors are done sooner so.
#pragma once

#include "templates/items.h"
#include "templates/piece_choice.h"
#include "templates/tile/dealt_sequence.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/prefix_sums.cuh"
#include "templates/work_items.h"

namespace att {

struct PieceTables {
  Dealt dealt[kItemThreads];  // a chunk of sequences
  int ends[kItemThreads];     // items of those up to each
  int results[kItemThreads];  // the same of the results that wait to be merged
};

ATT_FN int pieces_of(const Dealt& of, long long target) {
  return static_cast<int>(pieces_of_units<long long>(of.units, target, plan::kPieces));
}

// The whole CTA calls it: the length of a piece, `least` or more, with which the processors are
// done first. `all`: units of all sequences, of which `dealt_first` has the first chunk. Lanes have
// two lengths each, warps take the sequences in turn.
ATT_FN long long chosen_length(const PackedParams& p, const Dealt* dealt_first, long long all,
                               long long least) {
  __shared__ int pieces[kLengthsCompared], longest[kLengthsCompared], most[kLengthsCompared];
  __shared__ long long until_done[kLengthsCompared];
  const int thread = thread_index();
  const long long processors = max_i32(p.pieces.processors / p.kv_heads, 1);
  const auto length_of = [&](int which) {
    const long long length = compared_length<long long>(all, processors, which);
    return at_most(length < least ? least : length, 1 << 30);
  };
  if (thread < kLengthsCompared) pieces[thread] = longest[thread] = most[thread] = 0;
  sync_threads();
  constexpr int kOfLane = kLengthsCompared / 32;
  int lengths[kOfLane];
  CutItems cut[kOfLane] = {};
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) lengths[i] = length_of(lane_index() + 32 * i);
#pragma unroll 1
  for (int b = warp_index(); b < p.batch; b += kItemWarps) {
    const Dealt of = b < kItemThreads ? dealt_first[b] : dealt(p, b);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int of_item = pieces_of_units(of.units, lengths[i], plan::kPieces);
      cut[i].pieces += static_cast<long long>(of.tiles) * of.parts * of_item;
      cut[i].longest = max_i32(cut[i].longest, (of.units + of_item - 1) / of_item);
      cut[i].most = max_i32(cut[i].most, of_item);
    }
  }
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int which = lane_index() + 32 * i;
    add_shared(&pieces[which], at_most(cut[i].pieces, 1 << 24));
    raise_shared(&longest[which], cut[i].longest);
    raise_shared(&most[which], cut[i].most);
  }
  sync_threads();
  if (thread < kLengthsCompared) {
    until_done[thread] =
        units_until_done({pieces[thread], longest[thread], most[thread]}, all, processors);
  }
  sync_threads();
  int best = 0;
#pragma unroll 8
  for (int which = 1; which < kLengthsCompared; ++which) {
    if (until_done[which] < until_done[best]) best = which;
  }
  return length_of(best);
}

ATT_FN void list_pieces(const PackedParams& p, PieceTables& tables) {
  const int capacity = piece_item_count(p.q_len, p.batch, p.heads, p.kv_heads, plan::kTileQ);
  const int room = kMostPieces / p.kv_heads;  // of results, of a K/V head
  const int thread = thread_index();
  zero_arrivals(p, kMostPieces);
  Dealt own = {0, 0, 0};
  long long own_units = 0;
  for (int b = thread; b < p.batch; b += kItemThreads) {
    const Dealt of = dealt(p, b);
    if (b == thread) own = of;
    own_units += static_cast<long long>(of.tiles) * of.parts * of.units;
  }
  tables.dealt[thread] = own;
  const long long all = sum_of_all(own_units);
  long long target = units_of_piece(all, static_cast<long long>(p.kv_heads));
  if constexpr (plan::kFillsProcessors) target = chosen_length(p, tables.dealt, all, target);
  int done = 0, results = 0;
#pragma unroll 1
  for (int first = 0; first < p.batch && done < capacity; first += kItemThreads) {
    if (first > 0) {
      own = first + thread < p.batch ? dealt(p, first + thread) : Dealt{0, 0, 0};
      tables.dealt[thread] = own;
    }
    const int own_pieces = pieces_of(own, target);
    const long long items = static_cast<long long>(own.tiles) * own.parts * own_pieces;
    tables.ends[thread] = at_most(items, capacity - done);
    tables.results[thread] = own_pieces > 1 ? at_most(items, room - results) : 0;
    sync_threads();
    add_up(tables.ends, kItemThreads, capacity - done);
    add_up(tables.results, kItemThreads, room - results);
    const int count = tables.ends[kItemThreads - 1];
#pragma unroll 1
    for (int i = thread; i < count; i += kItemThreads) {
      int at = 0;  // the sequence: how many end before the item
#pragma unroll 1
      for (int step = kItemThreads / 2; step > 0; step /= 2) {
        if (tables.ends[at + step - 1] <= i) at += step;
      }
      const Dealt of = tables.dealt[at];
      PieceItem item;
      item.sequence = first + at;
      item.pieces = pieces_of(of, target);
      const int of_sequence = i - (at > 0 ? tables.ends[at - 1] : 0);
      item.piece = of_sequence % item.pieces;
      const int rest = of_sequence / item.pieces;
      item.part = rest % of.parts;
      item.tile = rest / of.parts;
      item.result = results + (at > 0 ? tables.results[at - 1] : 0) + rest * item.pieces;
      // Offsets that overlap may claim more than there is room for: then one CTA has all keys.
      if (item.pieces > 1 && item.result + item.pieces > room) {
        if (item.piece > 0) item.sequence = -1;
        item.piece = 0;
        item.pieces = 1;
      }
      p.pieces.items[done + i] = item;
    }
    done += count;
    results += tables.results[kItemThreads - 1];
    sync_threads();
  }
#pragma unroll 1
  for (int i = done + thread; i < capacity; i += kItemThreads) p.pieces.items[i].sequence = -1;
}

}  // namespace att

ATT_KERNEL __launch_bounds__(att::kItemThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _items)(ATT_GRID_CONSTANT att::ListKernelParams params) {
  __shared__ att::PieceTables tables;
  att::list_pieces(params, tables);
}
