// A consumer's walk through tiles of 128 queries of narrow heads that keeps P unrounded for dS.
//
// S and dP take 128 registers of a thread beside 64 of dK and dV, so that of P as rounded for dV
// there is room for half of a tile's queries only until dS is made. Of that half dV is issued as
// soon as its P is known: without a product that wants it, ptxas puts all exponentials behind the
// wait for dP, and the tensor cores have nothing to do meanwhile.
//
//     in flight    S(t)   dP(t)          dV(t), half     dV(t)              dQ(t-1)  dK(t)
//     arithmetic             half of P(t)   rest of P(t)  dS(t), to shared memory      dQ(t-1) out
//
// With kStoresDsInHalves dS is made and stored in halves, the second half of dV issued between
// them. Each warpgroup makes dQ of half of a tile's queries, all columns.
#pragma once

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

// Not in turns under a mask, where of 232 registers ptxas spills up to 92 bytes, of which the loop
// loads six words: d 64, causal, 16384 keys, H200, 5216 and 5453 us. Off the counter, where it
// spills none, both take the same.
constexpr bool kBeginsDvEarly = !(kTakesTurns && spec::kHasMask);
// Whether dS goes to shared memory in two halves, the first one while the second is made, between
// which dV's other half is issued: without a mask 2 % faster, under a causal one level. Off the
// counter and in turns, whose consumers have 232 registers, ptxas serialises the products then
// (C7512).
constexpr bool kStoresDsInHalves = !spec::kHasMask && !kTakesItems && !kTakesTurns;
// There P is rounded first where it may be: sm90_backward_tight_walk.cuh. Else that gains nothing.
constexpr bool kWalksLong = kSharesDqRows && (kBeginsDvEarly || !kMayRound);

using HalfOfProducts = float[kTileQ / 4];
using HalfOfOperand = unsigned[kTileQ / 32][4];
template <int kHalf>
ATT_FN HalfOfProducts& half_of(Products& s) {
  return *reinterpret_cast<HalfOfProducts*>(&s[kHalf * kTileQ / 4]);
}
template <int kHalf>
ATT_FN HalfOfOperand& half_of(Operand& operand) {
  return *reinterpret_cast<HalfOfOperand*>(&operand[kHalf * kTileQ / 32]);
}

// P of S, of half of its queries or all, in its place. `query`: the first one, of the tile.
template <int kCount, typename Consumer>
ATT_FN void make_p(const Consumer& c, const Context& context, const TileInfo& tile, int query,
                   float (&s)[kCount]) {
  constexpr int kQueries = 2 * kCount;
  const ColumnElements<kQueries> elements{
      c.k0 + c.warpgroup * kKeys + c.thread / 32 * 16 + c.thread % 32 / 4,
      tile.tile * kTileQ + query + c.thread % 4 * 2, 0, 0};
  const unsigned keep[ColumnElements<kQueries>::kWords] = {};
  const bool full = (tile.flags >> c.warpgroup & 1) != 0;
  elements.probabilities(context, s, full, keep, [&](int, int, float, float) {});
}

// Leaves dK and dV, unscaled.
template <typename Consumer>
ATT_FN void walk_long_tiles(Consumer& c) {
  const BackwardParams& p = c.p;
  const SharedMemory& shared = c.shared;
  if (!c.begin_walk()) return;
  int tiles = 0;  // of this item so far
  int sums = 0;   // of the tile before
  RingPosition before = c.at;
  bool more = true;
  while (more) {
    c.at = uniform(c.at);
    before = uniform(before);
    const TileInfo now = c.begin_tile(before, tiles);
    const Context context = item_context(p, c.own, c.b, now.h, c.h_kv);
    if constexpr (kBeginsDvEarly) {
      make_p(c, context, now, 0, half_of<0>(c.s));
      round_p(half_of<0>(c.s), half_of<0>(c.p_operand));
      wgmma_pin(half_of<0>(c.p_operand));
      c.template issue_half_of_dv<0>();
      make_p(c, context, now, kTileQ / 2, half_of<1>(c.s));
    } else {
      make_p(c, context, now, 0, c.s);
    }
    wgmma_wait<kBeginsDvEarly ? 1 : 0>();  // for dP
    wgmma_pin(c.d);
    if (kLoadsKeysApart && now.more == 0) c.warp_arrive(shared.v_empty());
    constexpr int kSteps = kTileQ / 16;
    if constexpr (kStoresDsInHalves) {
      mbarrier_wait(shared.ds_empty(c.written & 1), (c.written >> 1 & 1) ^ 1);
      make_ds(half_of<0>(c.s), half_of<0>(c.d), half_of<0>(c.ds_operand));
      wgmma_pin(half_of<0>(c.ds_operand));
      store_steps_of_ds<0, kSteps / 2>(c, c.written);
    } else {
      make_ds(c.s, c.d, c.ds_operand);
      wgmma_pin(c.ds_operand);
      mbarrier_wait(shared.ds_empty(c.written & 1), (c.written >> 1 & 1) ^ 1);
    }
    if constexpr (!kBeginsDvEarly) {
      store_ds(c, c.written);
      round_p(half_of<0>(c.s), half_of<0>(c.p_operand));
    }
    round_p(half_of<1>(c.s), half_of<1>(c.p_operand));
    if constexpr (kBeginsDvEarly) {
      wgmma_pin(half_of<1>(c.p_operand));
      c.template issue_half_of_dv<1>();
    } else {
      wgmma_pin(c.p_operand);
      c.issue_dv();
    }
    if constexpr (kStoresDsInHalves) {
      make_ds(half_of<1>(c.s), half_of<1>(c.d), half_of<1>(c.ds_operand));
      wgmma_pin(half_of<1>(c.ds_operand));
      store_steps_of_ds<kSteps / 2, kSteps>(c, c.written);
      tell_ds(c, c.written);
    } else if constexpr (kBeginsDvEarly) {
      store_ds(c, c.written);
    }
    // Before the first tile of an item there is none: what dQ is made of then is not used.
    if (tiles > 0) {
      mbarrier_wait(shared.ds_full((c.written & 1) ^ 1), (c.written - 1) >> 1 & 1);
    }
    issue_dq(c, c.written - 1);
    c.issue_dk();
    wgmma_wait<1>();  // for dV and dQ
    // dV reads P while dS is made: without this ptxas may give P's registers away before.
    wgmma_pin(c.p_operand);
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
