// The kernel that deals out the keys of packed sequences, whose lengths only the device knows, to
// CTAs of the decode and mla families: as many pieces of each sequence as its length asks for, so
// that one that is much longer than the others does not keep a few CTAs busy after all others are
// done.
//
// A piece has at most `target` units of keys: such a part of all that all sequences together have
// kMostPieces / 2 full pieces, or, in the mla family, the length from there on with which all are
// done first (templates/piece_choice.h); those of sequences with several are then fewer than
// kMostPieces, which is what their results have room for.
//
// The main launch waits for this one, and all that it does comes from a cold memory, its
// instructions too: so numbers are of 32 bits, and the fewer barriers and instructions, the better.
#pragma once

#include "templates/items.h"
#include "templates/piece_choice.h"
#include "templates/tile/dealt_sequence.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/prefix_sums.cuh"
#include "templates/work_items.h"

namespace att {

struct CountedSequence {
  int items, units;
};
struct PieceTables {
  union {  // of a chunk of sequences: first to compare lengths, then to list them
    CountedSequence counted[kItemThreads];
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

ATT_FN void list_pieces(const PackedParams& p, PieceTables& tables) {
  const int thread = thread_index();
  let_next_launch_start();  // it waits of its own accord
  if (thread < kLengthsCompared) {
    tables.pieces[thread] = tables.longest[thread] = tables.most[thread] = 0;
  }
  int target = 0;  // not known yet
  long long own_units = 0;
  int done = 0, results = 0;
  // Goes through all chunks for the sum of their units, and again to list them; a single one it
  // lists at once.
#pragma unroll 1
  for (int first = 0;;) {
    const Dealt own = dealt(p, first + thread);
    const int behind = first + kItemThreads;
    if (target == 0) {
      own_units += static_cast<long long>(own.items) * own.units;
      if (behind < p.batch) {
        first = behind;
        continue;
      }
      tables.counted[thread] = {own.items, own.units};
      const int all = sum_of_all(own_units);
      target = units_of_piece(all, p.kv_heads);
      zero_arrivals<kMostPieces>(p);
      if (first > 0) {  // so many sequences fill the processors whole
        first = 0;
        continue;
      }
      if constexpr (plan::kFillsProcessors) target = chosen_length(p, tables, all, target);
    }
    const int capacity = piece_item_count(p.q_len, p.batch, p.heads, p.kv_heads, plan::kTileQ);
    const int room = kMostPieces / p.kv_heads;  // of results, of a K/V head
    const int own_pieces = pieces_of(own.units, target);
    const long long items = static_cast<long long>(own.items) * own_pieces;
    const int most[2] = {capacity - done, room - results};
    ThreadSum sums[2];
    add_up_threads({at_most(items, most[0]), own_pieces > 1 ? at_most(items, most[1]) : 0}, most,
                   sums);
    tables.listed[thread] = listed_sequence(own, own_pieces, sums[0], results + sums[1].before);
    sync_threads();
    list_sequences(p, tables.listed, first, min_i32(p.batch - first, kItemThreads), done, room);
    done += sums[0].all;
    results += sums[1].all;
    first = behind;
    if (first < p.batch && done < capacity) {
      sync_threads();
      continue;
    }
    list_nothing(p, done, capacity);
    return;
  }
}

}  // namespace att

ATT_KERNEL __launch_bounds__(att::kItemThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _items)(ATT_GRID_CONSTANT att::ListKernelParams params) {
  __shared__ att::PieceTables tables;
  att::list_pieces(params, tables);
}
