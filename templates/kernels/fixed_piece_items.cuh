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

ATT_FN void list_fixed_pieces(const PackedParams& p, ListedSequence* listed) {
  const int thread = thread_index();
  let_next_launch_start();  // it waits of its own accord
  const int capacity = fixed_piece_item_count(p.q_len, p.batch, p.heads, p.kv_heads, plan::kTileQ);
  const int room = kMostFixedResults / p.kv_heads;  // of results, of a K/V head
  bool knows_share = false;
  long long own_units = 0, share = 0;
  int done = 0, results = 0;
  // Goes through all chunks for the sum of their units, and again to list them; a single one it
  // lists at once.
#pragma unroll 1
  for (int first = 0;;) {
    const Dealt own = dealt(p, first + thread);
    const int behind = first + kItemThreads;
    if (!knows_share) {
      own_units += static_cast<long long>(own.items) * own.units;
      if (behind < p.batch) {
        first = behind;
        continue;
      }
      share = static_cast<long long>(sum_of_all(own_units)) * p.kv_heads / kItemsThatFill;
      knows_share = true;
      zero_arrivals<kMostFixedResults>(p);
      if (first > 0) {
        first = 0;
        continue;
      }
    }
    const int pieces = fixed_piece_count(own.sequence.kv_len);
    const int wanted = pieces > 1 && own.units > share ? pieces : 1;
    const int left = max_i32(room + 1 - results, 0);  // one more than there is room for: too many
    ThreadSum of_results[1], of_items[1];
    add_up_threads({wanted > 1 ? at_most(static_cast<long long>(own.items) * wanted, left) : 0},
                   {left}, of_results);
    const int fitting = results + of_results[0].up_to <= room ? wanted : 1;
    sync_threads();
    add_up_threads({at_most(static_cast<long long>(own.items) * fitting, capacity - done)},
                   {capacity - done}, of_items);
    listed[thread] = listed_sequence(own, fitting, of_items[0], results + of_results[0].before);
    sync_threads();
    list_sequences(p, listed, first, min_i32(p.batch - first, kItemThreads), done, room);
    done += of_items[0].all;
    results += of_results[0].all;
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
  __shared__ att::ListedSequence listed[att::kItemThreads];
  att::list_fixed_pieces(params, listed);
}
