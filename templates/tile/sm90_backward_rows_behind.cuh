// Rows of dQ of heads whose key tiles are done, a share of a tile a warp. Off the counter the warps
// beside the loader, whose processor multiplies meanwhile, bring them from their sums, a wave of
// items later: so no consumer has to, and none waits for the word that its head is complete. Else a
// head's last CTA does, and under a mask others that end meanwhile help it: alone it takes as long
// as 60 tiles of d 128 for 8192 queries, and a later head waits for that.
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

// A share of a tile of query head h, from sums which are zeroed. A warp's, which has kRows rows of
// kBlocks times 8 columns under way at a time.
//
// Exchanging, not loading: loads leave copies in the nearer half of L2, which others' additions
// then have to call back. By TMA to shared memory, and zeros by TMA, an H200's tiles took 15 %
// longer at d 128.
template <int kRows, int kBlocks>
ATT_FN void take_share(const BackwardParams& p, const Sequence& sequence, int h, int tile,
                       int share, float* sums) {
  if constexpr (!kSharesDqRows && spec::kHeadDimQk <= kDqColumns) {
    if (share > 0) return;  // of columns that no head has
  }
  const int lane = lane_index();
#pragma unroll 1
  for (int rows = 0; rows < kDqRows; rows += kRows) {
#pragma unroll 1
    for (int block = 0; block < kDqColumns / 8; block += kBlocks) {
      float numbers[kRows / 16][kBlocks / 4][4][4];
      float* const from = sums + (rows * 2 + lane) * 4 + block * 512;
#pragma unroll
      for (int i = 0; i < kRows / 16; ++i) {
#pragma unroll
        for (int w = 0; w < kBlocks; ++w) {
          exchange_for_zeros_16(from + i * 128 + w * 512, numbers[i][w / 4][w % 4]);
        }
      }
#pragma unroll
      for (int i = 0; i < kRows / 16; ++i) {
#pragma unroll
        for (int w = 0; w < kBlocks; w += 4) {
          store_query_rows(p, sequence, h,
                           first_row_of_share(tile, share) + rows + i * 16 + lane / 4,
                           first_column_of_share(share) + (block + w) * 8, numbers[i][w / 4]);
        }
      }
    }
  }
}

// Share `number` of those of K/V head `head`'s dQ. A warp's.
template <int kRows, int kBlocks>
ATT_FN void bring_share(const BackwardParams& p, int head, int number) {
  const int of_head = tile_count(p.q_len, kTileQ) * kDqShares;
  const int in_group = number / of_head;
  const int tile = (number - in_group * of_head) / kDqShares;
  const int share = number % kDqShares;
  const int b = head / opaque(p.kv_heads);
  const int h = (head - b * p.kv_heads) * (p.heads / opaque(p.kv_heads)) + in_group;
  const Sequence sequence = sequence_of(p, b);
  if (share == 0) {
    add_sink_gradient(p, sequence, b, h, tile * kTileQ, min_i32((tile + 1) * kTileQ, p.q_len));
  }
  const int sums = sums_tile(p, sums_head(p, head) + in_group, tile);
  take_share<kRows, kBlocks>(p, sequence, h, tile, share, p.d_q_sums + sums_offset(sums, share));
  sync_warp();
}

// ---- Off the counter: a helper's.

// A share after the other of the head that `head`'s CTAs see to, as long as no other helper has
// taken it.
ATT_FN void make_rows_behind(const BackwardParams& p, int head) {
  const int earlier = head - sum_heads(p).behind;
  if (earlier < 0) return;
  HeadCounters* const counters = p.head_counters + earlier;
  const bool leader = lane_index() == 0;
  bool is_complete = false;
  while (true) {
    int number = 0;
    if (leader) number = take_one_of(&counters->shares_taken);
    number = shuffle_from(number, 0);
    if (number >= shares_of_head(p)) return;
    // Items of that head are lower ones, which wait for none of this.
    while (!is_complete) {
      is_complete = load_acquire(&counters->sums_added) == key_tiles(p);
      if (!is_complete) wait_a_while();
    }
    bring_share<16, 4>(p, earlier, number);
    if (leader) arrive(&counters->shares_free);
  }
}

// ---- Else: the consumers', when all of their item has left.

// A few earlier heads, on which a later one will soon wait: `first`, and `first` - 4.
struct AskedHeads {
  int first, end;  // `end`: of those that are converted by this launch
};
// By a CTA of key tile `key_tile` of `head`: CTAs of other tiles ask others.
ATT_FN AskedHeads asked_heads(const BackwardParams& p, int head, int key_tile) {
  const SumHeads<int> sums = sum_heads(p);
  return {head - sums.behind - key_tile % 4, sums.converted};
}
// One of them whose sums are complete and still want somebody who brings them to rows; -1: none
// does. One thread's: with a whole warp asking, a head a lane, ptxas spilled in the loader's loop.
ATT_FN int head_to_bring(const BackwardParams& p, const AskedHeads& asked) {
  int found = -1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int candidate = asked.first - i * 4;
    if (candidate < 0 || candidate >= asked.end) continue;
    const HeadCounters& counters = p.head_counters[candidate];
    const int added = load_relaxed(&counters.sums_added);
    const int taken = load_relaxed(&counters.shares_taken);
    if (added == key_tiles(p) && taken < shares_of_head(p)) found = candidate;
  }
  return found;
}

// A warp's. `head`: what head_to_bring() said, or the CTA's own, which is its business to the end.
// The next share is taken while this one is on its way.
ATT_FN void bring_at_end(const BackwardParams& p, int head, int own_head) {
  const bool leader = lane_index() == 0;
  HeadCounters* const counters = p.head_counters + head;
  load_acquire(&counters->sums_added);  // who asked looked no more than that
  const auto take = [&] { return leader ? take_one_of(&counters->shares_taken) : 0; };
  int brought = 0;
  int number = shuffle_from(take(), 0);
  while (number < shares_of_head(p)) {
    const bool goes_on = head == own_head;
    const int next = goes_on ? take() : 0;
    bring_share<kDqRows, kDqColumns / 8>(p, head, number);
    ++brought;
    if (!goes_on) break;
    number = shuffle_from(next, 0);
  }
  if (leader && brought > 0) arrive(&counters->shares_free, brought);
}

}  // namespace sm90
}  // namespace att
