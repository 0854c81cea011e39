// Packed sequences' items where there are few of them: a warp of every CTA finds them all, a lane
// each, and waits for no launch in front.
#pragma once

#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/lane_sums.cuh"
#include "templates/tile/sm90_key_pieces.cuh"

namespace att {
namespace sm90 {

ATT_FN bool finds_items(const ForwardParams& p) {
  if constexpr (!plan::kFindsItems) return false;
  return finds_tiles(p.heads, p.q_len, p.batch, kItemQueries);
}

// Where that is, nothing else was waited for before.
ATT_FN void wait_for_counters() {
  if constexpr (plan::kFindsItems) wait_for_launches_before();
}

// Items fit into a word: a lane keeps its own. Negative: there is none.
constexpr int kSequenceBits = 5;
static_assert(kMostFound <= 1 << kSequenceBits);
ATT_FN SequenceItem found_item(int word) {
  return {word < 0 ? -1 : word & ((1 << kSequenceBits) - 1), word >> kSequenceBits};
}

// The lane's, in the order of the sequences. The whole warp calls it.
ATT_FN int find_item(const PackedParams& p) {
  const int lane = thread_index() % 32;
  const int own = lane < p.batch ? sequence_of(p, lane).q_len : 0;
  const int up_to = sum_up_to_lane(tile_count(own, kItemQueries));
  int at = 0;  // the sequence: how many end before the item
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    if (shuffle_from(up_to, at + step - 1) <= lane) at += step;
  }
  const int before = shuffle_from(up_to, max_i32(at - 1, 0));
  const bool is_there = lane < shuffle_from(up_to, 31);
  return is_there ? at | (at > 0 ? lane - before : lane) << kSequenceBits : -1;
}

// Of the first `count` lanes' items, each of so many tiles, the longest first.
ATT_FN int longest_first(int item, int tiles, int count) {
  const int lane = thread_index() % 32;
  int rank = 0;
#pragma unroll 1
  for (int other = 0; other < count; ++other) {
    const int of_other = shuffle_from(tiles, other);
    rank += of_other > tiles || (of_other == tiles && other < lane) ? 1 : 0;
  }
  int from = lane;
#pragma unroll 1
  for (int other = 0; other < count; ++other) {
    if (shuffle_from(rank, other) == lane) from = other;
  }
  return shuffle_from(item, from);
}

}  // namespace sm90
}  // namespace att
