// dQ's sums of the sm90a family's backward kernel: the CTAs of a K/V head's key tiles add to them
// in global memory, in fp32. Only the heads under way have some, which stay in L2: a head's last
// CTA, or others, bring them to rows of dQ, zero them and hand them on; a launch of its own brings
// those of the last heads to rows.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/arrive.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/named_barrier.cuh"
#include "templates/ptx/reduce.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/backward_scores.cuh"
#include "templates/tile/learned_totals.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_parts.cuh"
#include "templates/tile/sm90_query_rows.cuh"
#include "templates/tile/transpose.cuh"

namespace att {
namespace sm90 {

// Of the launch that brings sums to rows: of packed sequences a CTA has all padded rows.
constexpr int kQueriesThreads =
    (spec::kIsPacked ? kRowPadding / kTileQ : 1) * kDqShares * kWarpgroupThreads;

// The first of a K/V head's query heads among all heads that have sums. `head`: b * kv_heads +
// h_kv.
ATT_FN int sums_head(const BackwardParams& p, int head) {
  return head % sum_heads(p).slots * (p.heads / p.kv_heads);
}
// sums_tile()'s base, of K/V head `head`, which is h_kv of its batch.
ATT_FN int sums_base(const BackwardParams& p, int head, int h_kv) {
  return sums_head(p, head) - h_kv * (p.heads / opaque(p.kv_heads));
}
// A query tile's number among those of all heads that have sums.
ATT_FN int sums_tile(const BackwardParams& p, int sums_head, int tile) {
  return sums_head * (padded_rows(p.q_len) / kTileQ) + tile;
}
// Of packed sequences the number of a sequence's first tile, of head 0.
ATT_FN int packed_sums(const BackwardParams& p, const Sequence& own, int b) {
  return static_cast<int>(first_row_of_head(p, own, b, 0) / kTileQ);
}
// A tile's of query head h. `base`: packed_sums(), else what sums_head() says less the head.
ATT_FN int sums_tile(const BackwardParams& p, int base, int h, int tile) {
  if constexpr (kSumsInTurn) return sums_tile(p, base + h, tile);
  const int of_head = sequence_item_count(p.q_len, p.batch, kRowPadding) * (kRowPadding / kTileQ);
  return base + h * of_head + tile;
}
// Where a share of dQ of a tile is summed: [tiles, shares, blocks of 8 columns, threads, 4], the
// order of the accumulators.
ATT_FN long long sums_offset(int tile, int share) {
  return (static_cast<long long>(tile) * kDqShares + share) * (kDqColumns * kDqRows);
}

ATT_FN int key_tiles(const BackwardParams& p) { return tile_count(p.kv_len, kTileKv); }

// Of all query heads that share a K/V head.
ATT_FN int shares_of_head(const BackwardParams& p) {
  return p.heads / opaque(p.kv_heads) * tile_count(p.q_len, kTileQ) * kDqShares;
}

// Until the head that had the sums before is done with them, for which CTAs of lower items see.
ATT_FN void wait_for_sums(const BackwardParams& p, int head) {
  const int before = head - sum_heads(p).slots;
  if (before < 0) return;
  while (load_acquire(&p.head_counters[before].shares_free) < shares_of_head(p)) wait_a_while();
}

// A CTA's, until all of the head's key tiles have been added to its sums.
ATT_FN void wait_for_head(const BackwardParams& p, int head) {
  if (thread_index() == 0) {
    while (load_acquire(&p.head_counters[head].sums_added) < key_tiles(p)) wait_a_while();
  }
  sync_threads();
}

// One thread's, when its CTA has added to the head's sums: whether it is for the CTA to bring them
// to rows.
ATT_FN bool is_last_of_head(const BackwardParams& p, int head) {
  const bool is_last = arrive(&p.head_counters[head].sums_added) == key_tiles(p) - 1;
  return is_last && head < sum_heads(p).converted;
}

// What store_query_rows() says, of a thread's numbers of 16 queries from `row` on, where rows are
// columns of dQ: those of two blocks of 8 queries.
ATT_FN void store_transposed_rows(const BackwardParams& p, const Sequence& sequence, int h, int row,
                                  int column, const float (&numbers)[2][4]) {
  const float scale = softmax_scale(p);
  unsigned words[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const float* const two = numbers[w / 2] + w % 2 * 2;
    words[w] = transposed_matrix(pack_2<spec::kDType>(two[0] * scale, two[1] * scale));
  }
  transpose_quad(words);
  const int lane = thread_index() % 32;
  const int own_row = row + lane % 4 / 2 * 8 + lane / 4, own = column + lane % 2 * 8;
  if (own_row < queries_of(p, sequence) && own < spec::kHeadDimQk) {
    store_global_16(
        static_cast<char*>(p.d_q) + 2 * (query_offset(sequence, p.d_q_stride, h, own_row) + own),
        words);
  }
}

// A share of a tile, by a warpgroup whose accumulators have it.
ATT_FN void store_share(const BackwardParams& p, const Sequence& sequence, int h, int tile,
                        int share, const float (&sums)[kDqNumbers / 4][4]) {
  const int thread = thread_index() % kWarpgroupThreads;
  const int warp_row = thread / 32 * 16;
  if constexpr (kTransposesDq) {
#pragma unroll
    for (int j = 0; j < kTileQ / 16; ++j) {
      store_transposed_rows(p, sequence, h, tile * kTileQ + j * 16, share * kDqColumns + warp_row,
                            *reinterpret_cast<const float(*)[2][4]>(&sums[2 * j]));
    }
  } else {
#pragma unroll
    for (int j = 0; j < kDqColumns / 32; ++j) {
      store_query_rows(p, sequence, h, first_row_of_share(tile, share) + warp_row + thread % 32 / 4,
                       first_column_of_share(share) + j * 32,
                       *reinterpret_cast<const float(*)[4][4]>(&sums[4 * j]));
    }
  }
}

// Whether a tile of dQ has sums, of a query head and a tile of it; a caller may know better.
struct AllTilesHaveSums {
  ATT_MEMBER bool operator()(int, int) const { return true; }
};

// Brings shares of dQ's tiles from their sums to rows: of the query heads from `h` on those
// numbered first, first + step, ... below `end`; a head has as many as it has tiles and shares. A
// warpgroup's; kAtOnce are under way at a time. `clears`: zeroes the sums.
template <int kAtOnce, typename HasSums = AllTilesHaveSums>
ATT_FN void convert_shares(const BackwardParams& p, const Sequence& sequence, int b, int h,
                           int sums_head, int first, int step, int end, bool clears,
                           const HasSums& has_sums = {}) {
  const int thread = thread_index() % kWarpgroupThreads;
  const int shares = tile_count(queries_of(p, sequence), kTileQ) * kDqShares;  // of a head
#pragma unroll 1
  for (; first < end; first += kAtOnce * step) {
    float sums[kAtOnce][kDqNumbers / 4][4];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int number = first + i * step;
      if (number >= end) continue;
      const int head = number / shares, tile = (number - head * shares) / kDqShares;
      if (!has_sums(h + head, tile)) continue;
      float* const from = p.d_q_sums +
                          sums_offset(sums_tile(p, sums_head, head, tile), number % kDqShares) +
                          thread * 4;
      for_columns_of_head(number % kDqShares, thread / 32, [&](int j) {
        // Ordinary loads leave copies in the nearer half of L2, which stores then have to call
        // back: zeroing so took an H100 14 us for 64 KB, exchanging next to nothing.
        if (clears) {
          exchange_for_zeros_16(from + j * 512, sums[i][j]);
        } else {
          load_global_l2_16(from + j * 512, sums[i][j]);
        }
      });
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int number = first + i * step;
      if (number >= end) continue;
      const int head = number / shares, tile = (number - head * shares) / kDqShares;
      const int share = number % kDqShares;
      if (share == 0 && thread < 32) {
        add_sink_gradient(p, sequence, b, h + head, tile * kTileQ,
                          min_i32((tile + 1) * kTileQ, queries_of(p, sequence)));
      }
      if (has_sums(h + head, tile)) store_share(p, sequence, h + head, tile, share, sums[i]);
    }
  }
}

// All of a K/V head's dQ, by the consumers of the CTA that came last.
ATT_FN void convert_head(const BackwardParams& p, int b, int h_kv, int warpgroup) {
  const int head = b * p.kv_heads + h_kv;
  constexpr int kAtOnce = kDqColumns >= 64 ? 2 : 4;
  const bool hands_on = head + sum_heads(p).slots < p.batch * p.kv_heads;
  convert_shares<kAtOnce>(p, sequence_of(p, b), b, h_kv * (p.heads / p.kv_heads),
                          sums_head(p, head), warpgroup, kWarpgroups, shares_of_head(p), hands_on);
  if (!hands_on) return;
  named_barrier_sync(kAllConsumers, kConsumerThreads);
  if (thread_index() % kConsumerThreads == 0) {
    arrive(&p.head_counters[head].shares_free, shares_of_head(p));
  }
}

}  // namespace sm90
}  // namespace att
