// A consumer's walk that keeps one P, for tiles whose registers hold no other beside dP.
//
// Of narrow heads, through tiles of 128 queries, in turns under a mask, where P may be rounded
// first: else sm90_backward_long_walk.cuh. Each warpgroup makes dQ of half of a tile's queries, all
// columns.
//
//     in flight    S(t)    dP(t)       dV(t)  dQ(t-1)                        dK(t)
//     arithmetic                 P(t)                dS(t), to shared memory     dQ(t-1) out
//
// Where dS may be made of P as rounded, dV is issued first; d 64, full, takes 5 % less time. Tiles
// of 64 queries of wide heads come this way, too: dQ is made where S was as soon as P is made, so
// that dP need not wait until dQ's sums have been added, nor dV be done before dQ is begun. Where P
// may not be rounded first, dS is made of dV's operand and what its rounding took.
//
//     in flight    S(t)    dP(t)       dQ(t-1)          dV(t)  dK(t)
//     arithmetic                 P(t)           dS(t)
//                                                       dS(t) to shared memory, dQ(t-1) out
#pragma once

#include "templates/ptx/convert.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/wgmma.cuh"
#include "templates/tile/backward_scores.cuh"
#include "templates/tile/sm90_backward_consumer.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_make_ds.cuh"
#include "templates/tile/sm90_backward_query_share.cuh"

namespace att {
namespace sm90 {

// Leaves dK and dV, unscaled.
template <typename Consumer>
ATT_FN void walk_tightly(Consumer& c) {
  const BackwardParams& p = c.p;
  const SharedMemory& shared = c.shared;
  if (!c.begin_walk()) return;
  int tiles = 0;  // of this item so far
  int sums = 0;   // of the tile before
  RingPosition before = c.at;
  if constexpr (kSkipsDeadFirst) {
    if (c.skips_first_tile(sums)) {
      tiles = 1;
      if constexpr (kFreesDoEarly) c.warp_arrive(shared.do_empty(before.stage));
    }
  }
  bool more = true;
  while (more) {
    c.at = uniform(c.at);
    before = uniform(before);
    const TileInfo now = c.begin_tile(before, tiles);
    const Context context = item_context(p, c.own, c.b, now.h, c.h_kv);
    const bool full = (now.flags >> c.warpgroup & 1) != 0;
    const ColumnElements<kTileQ> elements{
        c.k0 + c.warpgroup * kKeys + c.thread / 32 * 16 + c.thread % 32 / 4,
        now.tile * kTileQ + c.thread % 4 * 2, 0, 0};
    const unsigned keep[ColumnElements<kTileQ>::kWords] = {};
    [[maybe_unused]] Rests rests;
    elements.probabilities(context, c.s, full, keep, [&](int n, int half, float low, float high) {
      c.p_operand[n / 2][n % 2 * 2 + half] = pack_2<spec::kDType>(low, high);
      if constexpr (kKeepsRests) keep_rests(rests, n, half, low, high);
    });
    wgmma_pin(c.p_operand);
    if constexpr (kMakesDqOfS) {
      c.template issue_half_of_dv<0>();
      c.template issue_half_of_dv<1>();
    } else {
      c.issue_dv();
    }
    // Before the first tile of an item there is none: what dQ is made of then is not used.
    if (tiles > 0) {
      const unsigned barrier = shared.ds_full((c.written & 1) ^ 1);
      const unsigned parity = (c.written - 1) >> 1 & 1;
      if constexpr (kKeepsRests) {
        wait_with_rests(barrier, parity, rests, p.kv_len);
      } else {
        mbarrier_wait(barrier, parity);
      }
    }
    issue_dq(c, c.written - 1);
    wgmma_wait<kMakesDqOfS ? 3 : 2>();  // for dP
    wgmma_pin(c.d);
    if (kLoadsKeysApart && now.more == 0) c.warp_arrive(shared.v_empty());
    if constexpr (kKeepsRests) {
      make_ds_of_parts(c.p_operand, rests, c.d, c.ds_operand);
    } else {
      make_ds_of_rounded(c.p_operand, c.d, c.ds_operand);
    }
    wgmma_pin(c.ds_operand);
    mbarrier_wait(shared.ds_empty(c.written & 1), (c.written >> 1 & 1) ^ 1);
    if constexpr (kIssuesDkFirst) c.issue_dk();
    store_ds(c, c.written);
    if constexpr (!kIssuesDkFirst) c.issue_dk();
    wgmma_wait<1>();  // for dV and dQ
    // dV reads P while dS is made of it: without this ptxas may give P's registers to dS before.
    wgmma_pin(c.p_operand);
    if constexpr (kFreesDoEarly) c.warp_arrive(shared.do_empty(c.at.stage));
    wgmma_pin(c.d_q);
    if (tiles > 0) end_dq(c, c.written - 1, sums);
    sums = sums_tile(p, c.sums_base, now.h, now.tile);
    if (kLoadsKeysApart && (now.flags & kAllOfQueries) != 0) sums = ~sums;
    before = c.at;
    c.at.advance();
    ++c.written;
    ++tiles;
    // Never taken: see Consumer::run().
    if (p.kv_len < 0) {
      wgmma_wait<0>();
      return;
    }
    more = now.more != 0;
  }
  c.end_walk(before, sums);
}

}  // namespace sm90
}  // namespace att
