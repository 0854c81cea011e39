// How one CTA lists the pieces that packed sequences' keys are dealt out in. A `Rule` says how many
// pieces each sequence has:
//
//   kResults              results that the workspace has room for
//   kMayAskForMore        whether its pieces may ask for more of them; a sequence whose results do
//                         not fit has a single piece then
//   count(own)            sees the thread's sequence of the last chunk, before
//   decide(p, all, whole) is told the units of all sequences, of a K/V head; `whole`: all of them
//                         were counted. The whole CTA calls it
//   pieces(own)           of an item of the sequence
//
// The main launch waits for the list, and all that it does comes from a cold memory, its
// instructions too: so numbers are of 32 bits, and the fewer barriers and instructions, the better.
#pragma once

#include "templates/tile/dealt_sequence.cuh"
#include "templates/tile/prefix_sums.cuh"

namespace att {

// What a chunk's sequences take of the list and of the results.
struct ListedSums {
  ThreadSum entries, results;
  int pieces;  // of the thread's sequence
};

// `entries`, `results`: that there is room for. The whole CTA calls it.
template <bool kMayAskForMore>
ATT_FN ListedSums add_up_pieces(const Dealt& own, int wanted, int entries, int results) {
  const auto of = [&](int pieces) { return static_cast<long long>(own.items) * pieces; };
  if constexpr (!kMayAskForMore) {
    const int most[2] = {entries, results};
    ThreadSum sums[2];
    add_up_threads({at_most(of(wanted), entries), wanted > 1 ? at_most(of(wanted), results) : 0},
                   most, sums);
    return {sums[0], sums[1], wanted};
  }
  const int left = max_i32(results + 1, 0);  // one more than there is room for: too many
  ThreadSum of_results[1], of_entries[1];
  add_up_threads({wanted > 1 ? at_most(of(wanted), left) : 0}, {left}, of_results);
  const int fitting = of_results[0].up_to <= results ? wanted : 1;
  sync_threads();
  add_up_threads({at_most(of(fitting), entries)}, {entries}, of_entries);
  return {of_entries[0], of_results[0], fitting};
}

// `capacity`: entries of the list. The whole CTA calls it.
template <typename Rule>
ATT_FN void list_pieces(const PackedParams& p, ListedSequence* listed, int capacity, Rule& rule) {
  const int thread = thread_index();
  const int room = Rule::kResults / p.kv_heads;  // of results, of a K/V head
  let_next_launch_start();                       // it waits of its own accord
  bool is_decided = false;
  long long own_units = 0;
  int done = 0, results = 0;
  // Goes through all chunks for the sum of their units, and again to list them; a single one it
  // lists at once.
#pragma unroll 1
  for (int first = 0;;) {
    const Dealt own = dealt(p, first + thread);
    const int behind = first + kItemThreads;
    if (!is_decided) {
      own_units += static_cast<long long>(own.items) * own.units;
      if (behind < p.batch) {
        first = behind;
        continue;
      }
      rule.count(own);
      const int all = sum_of_all(own_units);
      zero_arrivals<Rule::kResults>(p);
      rule.decide(p, all, first == 0);
      is_decided = true;
      if (first > 0) {
        first = 0;
        continue;
      }
    }
    const ListedSums sums =
        add_up_pieces<Rule::kMayAskForMore>(own, rule.pieces(own), capacity - done, room - results);
    listed[thread] = listed_sequence(own, sums.pieces, sums.entries, results + sums.results.before);
    sync_threads();
    list_sequences(p, listed, first, min_i32(p.batch - first, kItemThreads), done, room);
    done += sums.entries.all;
    results += sums.results.all;
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
