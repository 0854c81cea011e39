// The merge of what an item's pieces left in global memory.
//
// That takes long to answer, so a thread has many of its words on their way at once (one after the
// other took 50 us of 4 pieces of 64 rows of 512 columns). Where pieces' results are large, one CTA
// would read them for longer than all took to make them (64 pieces of 64 rows of 512 columns: 160
// us): then the item is merged in as many shares as it has pieces, by whichever of their CTAs are
// still there. Those that come before the last one wait a while; the last one takes all shares that
// no other does, so nothing depends on who waits. Not where another CTA waits for their place: one
// CTA is faster at the whole than at every share (a quarter of the time of 64 uneven sequences).
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/arrive.cuh"
#include "templates/ptx/math.cuh"
#include "templates/tile/item_rows.cuh"
#include "templates/tile/piece_arrivals.cuh"
#include "templates/tile/pieces.cuh"

namespace att {

constexpr bool kSharesMerge = plan::kFillsProcessors;

// ---- Who merges. An item's counter has the pieces that have come in its low bits, the shares that
// are taken above.

constexpr int kShareTaken = 1 << 16;
constexpr int kNoShare = -1;

// In how many shares the item is merged: its pieces, where behind the grid's CTA that has the first
// one are no more CTAs than there are processors. Then all of them have a place; else one that
// waits would keep another from its work. Of stretches all have one, and of two pieces one has come
// long before the other.
ATT_FN int merge_shares(const PackedParams& p, const PieceOfItem& own) {
  if constexpr (!kSharesMerge) return 1;
  if constexpr (plan::kTakesStretches) return own.pieces > 2 ? own.pieces : 1;
  const int behind = own.first_cta + p.pieces.processors;
  const bool all_have_places =
      behind >= block_count() ||
      (spec::kIsPacked && p.pieces.items[behind / p.kv_heads].sequence < 0);
  return all_have_places ? own.pieces : 1;
}

// One thread calls it, which has seen that all pieces have come.
ATT_FN int next_share(int* counter, int shares) {
  const int share = take_of(counter, kShareTaken) / kShareTaken;
  return share < shares ? share : kNoShare;
}

// One thread calls it: its CTA's piece is there. The first share that the CTA merges. One that has
// another piece does not wait.
ATT_FN int first_share(int* counter, const PieceOfItem& own, int shares) {
  constexpr int kMostPolls = 128;  // of about half a microsecond: no longer than a merge is worth
  const bool last = arrives_last(counter, own.pieces);
  if (shares == 1) return last ? 0 : kNoShare;
  if (last) return next_share(counter, shares);
  if (plan::kTakesStretches && own.goes_on) return kNoShare;
#pragma unroll 1
  for (int i = 0; i < kMostPolls; ++i) {
    if (load_acquire(counter) % kShareTaken == own.pieces) return next_share(counter, shares);
    wait_a_while();
  }
  return kNoShare;
}

// ---- A share: fours [begin, end) of the item, of which a row has kFoursOfRow.

// Sums that a thread makes at a time: of one four each, or, where a share has fewer, of some of its
// pieces.
constexpr int kMostSums = kRows * kFoursOfRow / kThreads;
constexpr int kSumsOfThread = kMostSums >= 8 ? 8 : kMostSums >= 4 ? 4 : kMostSums >= 2 ? 2 : 1;
constexpr int kSumsAtOnce = kSumsOfThread * kThreads;
// Fours of a share that are worked on at a time: a power of two, however many warps there are.
constexpr int kFoursAtATime = 1 << (bits_for(kSumsAtOnce + 1) - 1);

// Adds up `count` fours from `first` on, kFoursAtATime at most, into sums[0 .. count), in shared
// memory with room for kSumsAtOnce. The whole CTA calls it, and may read the sums
// afterwards. The order of a sum depends on nothing but `count` and the number of pieces.
template <int kMostParts>
ATT_FN void add_pieces(const Parts<kRows, spec::kHeadDimV>& pieces,
                       const Weights<kMostParts, kRows>& weights, int first, int count,
                       FourFloats* sums) {
  const int bits = bits_for(count);
  const int groups = kSumsAtOnce >> bits;  // of pieces
  FourFloats sum[kSumsOfThread] = {};
#pragma unroll 2
  for (int base = 0; base < pieces.count; base += groups) {
    FourFloats of[kSumsOfThread];
    float weight[kSumsOfThread];
#pragma unroll
    for (int i = 0; i < kSumsOfThread; ++i) {
      const int slot = thread_index() + i * kThreads;
      const int piece = base + (slot >> bits), four = slot & ((1 << bits) - 1);
      of[i] = {};
      weight[i] = 0.0f;
      if (piece < pieces.count && four < count) {
        of[i] = *reinterpret_cast<const FourFloats*>(pieces.output(piece, 0) + 4 * (first + four));
        weight[i] = weights.of[(first + four) / kFoursOfRow][piece];
      }
    }
#pragma unroll
    for (int i = 0; i < kSumsOfThread; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[i].x[j] += weight[i] * of[i].x[j];
    }
  }
#pragma unroll
  for (int i = 0; i < kSumsOfThread; ++i) sums[thread_index() + i * kThreads] = sum[i];
  sync_threads();
  const int found = min_i32(groups, pieces.count);
#pragma unroll 1
  for (int i = thread_index(); i < count; i += kThreads) {
    FourFloats all = sums[i];
#pragma unroll 4
    for (int group = 1; group < found; ++group) {
#pragma unroll
      for (int j = 0; j < 4; ++j) all.x[j] += sums[(group << bits) + i].x[j];
    }
    sums[i] = all;
  }
}

// O and LSE of share `share` of `shares` of the item. The whole CTA calls it; `weights` and `sums`
// are in shared memory.
template <int kMostParts>
ATT_FN void write_share(const ForwardParams& p, const Item& item,
                        const Parts<kRows, spec::kHeadDimV>& pieces,
                        Weights<kMostParts, kRows>& weights, FourFloats* sums, int share,
                        int shares) {
  const int all = item.rows() * kFoursOfRow;
  const int begin = all * share / shares, end = all * (share + 1) / shares;
  if (begin == end) return;
  weigh<plan::kWarps>(pieces, begin / kFoursOfRow, (end - 1) / kFoursOfRow + 1, weights);
#pragma unroll 1
  for (int first = begin; first < end; first += kFoursAtATime) {
    const int count = min_i32(end - first, kFoursAtATime);
    add_pieces(pieces, weights, first, count, sums);
#pragma unroll 1
    for (int i = thread_index(); i < count; i += kThreads) {  // its own sums
      const int row = (first + i) / kFoursOfRow;
      write_columns(p, item, row, (first + i) % kFoursOfRow * 4, sums[i], weights.reference[row],
                    weights.sum[row]);
    }
    sync_threads();
  }
}

}  // namespace att
