// The kernel that deals out the keys of packed sequences to CTAs where a row's result must not
// depend on the others of its batch (templates/kernels/invariant_forward.cuh). Where pieces end is
// fixed; what the lengths of all sequences together decide is whether an item's pieces have a CTA
// each or one CTA for all, which comes to the same. A sequence has a CTA for each where it is
// longer than a kItemsThatFill-th of all, as long as there is room for results.
#pragma once

#include "templates/tile/dealt_sequence.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/prefix_sums.cuh"
#include "templates/work_items.h"

namespace att {

struct FixedPieceTables {
  int ends[kItemThreads];     // of a chunk of sequences: items of those up to each
  int results[kItemThreads];  // the same of the results that wait to be merged
};

// Of an item of the sequence, if there is room for their results.
ATT_FN int wanted_pieces(const PackedParams& p, int b, const Dealt& of, long long share) {
  const int pieces = fixed_piece_count(sequence_of(p, b).kv_len);
  return pieces > 1 && of.units > share ? pieces : 1;
}

ATT_FN void list_fixed_pieces(const PackedParams& p, FixedPieceTables& tables) {
  const int capacity = fixed_piece_item_count(p.q_len, p.batch, p.heads, p.kv_heads, plan::kTileQ);
  const int room = kMostFixedResults / p.kv_heads;  // of results, of a K/V head
  const int thread = thread_index();
  zero_arrivals(p, kMostFixedResults);
  long long own_units = 0;
  for (int b = thread; b < p.batch; b += kItemThreads) {
    const Dealt of = dealt(p, b);
    own_units += static_cast<long long>(of.tiles) * of.parts * of.units;
  }
  const long long share = sum_of_all(own_units) * p.kv_heads / kItemsThatFill;
  int done = 0, results = 0;
#pragma unroll 1
  for (int first = 0; first < p.batch && done < capacity; first += kItemThreads) {
    const int b = first + thread;
    const Dealt own = b < p.batch ? dealt(p, b) : Dealt{0, 0, 0};
    const int wanted = b < p.batch ? wanted_pieces(p, b, own, share) : 1;
    const long long items = static_cast<long long>(own.tiles) * own.parts;
    const int left = max_i32(room + 1 - results, 0);  // one more than there is room for: too many
    tables.results[thread] = wanted > 1 ? at_most(items * wanted, left) : 0;
    sync_threads();
    add_up(tables.results, kItemThreads, left);
    const auto fits = [&](int i) { return results + tables.results[i] <= room; };
    tables.ends[thread] = at_most(items * (fits(thread) ? wanted : 1), capacity - done);
    sync_threads();
    add_up(tables.ends, kItemThreads, capacity - done);
    const int count = tables.ends[kItemThreads - 1];
#pragma unroll 1
    for (int i = thread; i < count; i += kItemThreads) {
      int at = 0;  // the sequence: how many end before the item
#pragma unroll 1
      for (int step = kItemThreads / 2; step > 0; step /= 2) {
        if (tables.ends[at + step - 1] <= i) at += step;
      }
      const Dealt of = dealt(p, first + at);
      PieceItem item;
      item.sequence = first + at;
      item.pieces = fits(at) ? wanted_pieces(p, first + at, of, share) : 1;
      const int of_sequence = i - (at > 0 ? tables.ends[at - 1] : 0);
      item.piece = of_sequence % item.pieces;
      const int rest = of_sequence / item.pieces;
      item.part = rest % of.parts;
      item.tile = rest / of.parts;
      item.result = results + (at > 0 ? tables.results[at - 1] : 0) + rest * item.pieces;
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
  __shared__ att::FixedPieceTables tables;
  att::list_fixed_pieces(params, tables);
}
