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

// The launch in front zeroes them, and who finds items has not waited for it before.
ATT_FN void wait_for_counters() {
  if constexpr (plan::kFindsItems) wait_for_launches_before();
}

// Of head 0, as a list is made. An item without keys is done, too.
ATT_FN int walked_tiles(const PackedParams& p, const Sequence& sequence, const SequenceItem& item) {
  if (sequence.kv_len == 0) return 1;
  KvBounds bounds{0, sequence.kv_len};
  if constexpr (spec::kHasMask) {
    const int first = item.tile * kItemQueries;
    bounds = kv_bounds(context_of(p, sequence, item.sequence, 0, 0), first,
                       min_i32(first + kItemQueries, sequence.q_len));
  }
  if (bounds.begin >= bounds.end) return 1;
  return tile_count(bounds.end, kTileKv) - bounds.begin / kTileKv;
}

// A lane's item, in a word, as the warp that keeps it has few registers, and the kv tiles that it
// walks over; 0: there is none.
constexpr int kSequenceBits = 5;
static_assert(kMostFound <= 1 << kSequenceBits);
struct FoundItem {
  int word, tiles;
};
ATT_FN SequenceItem item_of_word(int word) {
  return {word & ((1 << kSequenceBits) - 1), word >> kSequenceBits};
}

// In the order of the sequences. The whole warp calls it.
ATT_FN FoundItem find_item(const PackedParams& p) {
  const int lane = thread_index() % 32;
  Sequence own = {0, 0, 0, 0, 0};
  if (lane < p.batch) own = sequence_of(p, lane);
  const int up_to = sum_up_to_lane(tile_count(own.q_len, kItemQueries));
  int at = 0;  // the sequence: how many end before the item
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    if (shuffle_from(up_to, at + step - 1) <= lane) at += step;
  }
  const int before = shuffle_from(up_to, max_i32(at - 1, 0));
  const bool is_there = lane < shuffle_from(up_to, 31);
  const Sequence sequence = {shuffle_from(own.q_len, at), shuffle_from(own.kv_len, at), 0,
                             shuffle_from(own.q_first, at), shuffle_from(own.kv_first, at)};
  const SequenceItem item = {at, at > 0 ? lane - before : lane};
  return {at | item.tile << kSequenceBits, is_there ? walked_tiles(p, sequence, item) : 0};
}

// The first `count` lanes' items, the longest first. The others' have no tiles, and come behind.
ATT_FN FoundItem longest_first(const FoundItem& own, int count) {
  constexpr int kAtOnce = 4;  // shuffles, of which none waits for another
  const int lane = thread_index() % 32;
  int rank = 0;
#pragma unroll 1
  for (int first = 0; first < count; first += kAtOnce) {
#pragma unroll
    for (int other = first; other < first + kAtOnce; ++other) {
      const int tiles = shuffle_from(own.tiles, other);
      rank += tiles > own.tiles || (tiles == own.tiles && other < lane) ? 1 : 0;
    }
  }
  int from = lane;
#pragma unroll 1
  for (int first = 0; first < count; first += kAtOnce) {
#pragma unroll
    for (int other = first; other < first + kAtOnce; ++other) {
      if (shuffle_from(rank, other) == lane) from = other;
    }
  }
  return {shuffle_from(own.word, from), shuffle_from(own.tiles, from)};
}

}  // namespace sm90
}  // namespace att
