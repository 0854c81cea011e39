// Rows of dQ of heads whose key tiles are done. The warps beside the loader, whose processor
// multiplies meanwhile, bring them from their sums, a wave of items later: so no consumer has to,
// and none waits for the word that its head is complete.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/arrive.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/reduce.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/learned_totals.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_sums.cuh"

namespace att {
namespace sm90 {

// A share of dQ of a tile of query head h, 64 rows from `first` on, from sums which are zeroed. A
// warp's.
//
// Exchanging, not loading: loads leave copies in the nearer half of L2, which others' additions
// then have to call back. By TMA to shared memory, and zeros by TMA, an H200's tiles took 15 %
// longer at d 128.
ATT_FN void take_share(const BackwardParams& p, const Sequence& sequence, int h, int first,
                       int share, float* sums) {
  const int lane = lane_index();
#pragma unroll 1
  for (int rows = 0; rows < kTileQ; rows += 16) {
    float* const from = sums + (rows * 2 + lane) * 4;
#pragma unroll 1
    for (int block = 0; block < kDqColumns / 8; block += 4) {
      float numbers[4][4];
#pragma unroll
      for (int w = 0; w < 4; ++w) exchange_for_zeros_16(from + (block + w) * 512, numbers[w]);
      store_query_rows(p, sequence, h, first + rows + lane / 4, share * kDqColumns + block * 8,
                       numbers);
    }
  }
}

// A helper's: a share of K/V head `head`'s dQ after the other, as long as no other one has taken
// it.
ATT_FN void bring_to_rows(const BackwardParams& p, int head) {
  const int lane = lane_index();
  HeadCounters* const counters = p.head_counters + head;
  bool is_complete = false;
  while (true) {
    int number = 0;
    if (lane == 0) number = take_one_of(&counters->shares_taken);
    number = shuffle_from(number, 0);
    if (number >= shares_of_head(p)) return;
    // Items of that head are lower ones, which wait for none of this.
    while (!is_complete) {
      is_complete = load_acquire(&counters->sums_added) == key_tiles(p);
      if (!is_complete) wait_a_while();
    }
    const int of_head = tile_count(p.q_len, kTileQ) * kDqShares;
    const int in_group = number / of_head;
    const int tile = (number - in_group * of_head) / kDqShares, share = number % kDqShares;
    const int b = head / opaque(p.kv_heads);
    const int h = (head - b * p.kv_heads) * (p.heads / opaque(p.kv_heads)) + in_group;
    const int first = tile * kTileQ;
    const Sequence sequence = sequence_of(p, b);
    if (share == 0) {
      add_sink_gradient(p, sequence, b, h, first, min_i32(first + kTileQ, p.q_len));
    }
    const int sums = sums_tile(p, sums_head(p, head) + in_group, tile);
    take_share(p, sequence, h, first, share, p.d_q_sums + sums_offset(sums, share));
    sync_warp();
    if (lane == 0) arrive(&counters->shares_free);
  }
}

// Those of the head that `head`'s CTAs see to.
ATT_FN void make_rows_behind(const BackwardParams& p, int head) {
  const int earlier = head - sum_heads(p).behind;
  if (earlier >= 0) bring_to_rows(p, earlier);
}

}  // namespace sm90
}  // namespace att
