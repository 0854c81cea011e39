// A consumer warpgroup of the sm90a backward's main kernel: 64 keys of the CTA's tile, whose dK and
// dV stay in its registers, and its share of dQ where no other kernel makes it
// (sm90_backward_query_share.cuh). sm90_backward_leave.cuh says how dK and dV leave.
//
// Products with both operands in shared memory take all of its bandwidth, and an ordinary load
// waits for them. So nothing is loaded for an element: what is subtracted from S and dP of a query,
// its LSE and D, the tensor cores subtract, as one more step of the product.
#pragma once

#include "templates/ptx/convert.cuh"
#include "templates/ptx/ldmatrix.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/named_barrier.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/wgmma.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/backward_scores.cuh"
#include "templates/tile/dropped_elements.cuh"
#include "templates/tile/learned_gradients.cuh"
#include "templates/tile/sm90_backward_items.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_listed.cuh"
#include "templates/tile/sm90_backward_packed.cuh"
#include "templates/tile/sm90_backward_parts.cuh"
#include "templates/tile/sm90_backward_query_share.cuh"
#include "templates/tile/sm90_backward_registers.cuh"
#include "templates/tile/sm90_backward_sums.cuh"
#include "templates/tile/sm90_backward_walk.cuh"

namespace att {
namespace sm90 {

// A tile that is full for some keys has no row without live ones, unless a score is infinite.
constexpr bool kMayHaveDeadRows = spec::kHasMask;

// kMakesQueries: dS is for dQ, too, which is added up in global memory.
template <bool kMakesQueries>
struct Consumer {
  const BackwardParams& p;
  const SharedMemory& shared;
  const int warpgroup;
  const int thread;  // of the warpgroup
  Products& s;
  Products& d;
  Operand& p_operand;
  Operand& ds_operand;
  KeyGradient& d_k;
  ValueGradient& d_v;
  QueryGradient<kMakesQueries>& d_q;
  KeyRowsOperand<kColumnsQk>& k_rows;
  KeyRowsOperand<kColumnsV>& v_rows;

  RingPosition at = {};  // of the stage of the current tile
  unsigned written = 0;  // tiles whose dS is written, of all items
  unsigned parity = 0;   // of the item
  Sequence own = {};     // of packed sequences
  int b = 0, h_kv = 0, k0 = 0;
  int sums_base = 0;  // of the item's sums of dQ: sums_tile()
  // They are ready to be added to.
  bool has_sums = !kSumsInTurn || kLoadsKeysApart;
  bool is_dropped = false;  // what the item's only tile gives

  ATT_MEMBER void take(const ListedItem& item) {
    own = item.own;
    b = item.b;
    h_kv = item.h_kv;
    k0 = item.k0;
    sums_base = item.sums;
  }
  ATT_MEMBER void take(const WorkItem& item) {
    b = item.b;
    h_kv = item.h_kv;
    k0 = item.k0;
    sums_base = item.sums;
  }

  ATT_MEMBER void warp_arrive(unsigned barrier) const {
    if (thread % 32 == 0) mbarrier_arrive(barrier);
  }

  // The left operand of S^T or dP^T: fragments, or the descriptor of the warpgroup's rows.
  template <typename Rows>
  ATT_MEMBER decltype(auto) key_operand(const Rows& rows, unsigned matrix) const {
    if constexpr (plan::kKeysInRegisters) {
      return (rows);
    } else {
      return wgmma_descriptor(matrix + warpgroup * kKeys * kRowBytes, kKvSlabBytes);
    }
  }
  template <int kSteps>
  ATT_MEMBER void load_key_rows(unsigned matrix, unsigned (&rows)[kSteps][4]) const {
    const int row = warpgroup * kKeys + thread / 32 * 16 + thread % 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ldmatrix_x4(rows[step],
                  swizzled(matrix + step / 4 * kKvSlabBytes, row, step % 4 * 2 + thread % 32 / 16));
    }
  }

  ATT_MEMBER void issue_s() {
    const unsigned q = wgmma_descriptor(shared.q(0), kQSlabBytes) + at.stage * (kQBytes / 16);
    wgmma_fence();
    plan::multiply_s<2, kQSlabBytes / 16, 2, kKvSlabBytes / 16>(s, key_operand(k_rows, shared.k()),
                                                                q);
    if constexpr (plan::kSplitReferences)
      subtract_rows(s, shared.halves(), shared.references(at.stage));
    wgmma_commit();
  }
  ATT_MEMBER void issue_dp() {
    const unsigned o = wgmma_descriptor(shared.d_o(0), kQSlabBytes) + at.stage * (kDoBytes / 16);
    wgmma_fence();
    plan::multiply_dp<2, kQSlabBytes / 16, 2, kKvSlabBytes / 16>(d, key_operand(v_rows, shared.v()),
                                                                 o);
    if constexpr (plan::kSplitDeltas) subtract_rows(d, shared.halves(), shared.deltas(at.stage));
    wgmma_commit();
  }
  ATT_MEMBER void issue_dv() {
    const unsigned o = wgmma_descriptor(shared.d_o(0), kQSlabBytes) + at.stage * (kDoBytes / 16);
    wgmma_fence();
    plan::multiply_dv<kRowBytes, 4 * kRowBytes>(d_v, p_operand, o);
    wgmma_commit();
  }
  // The same in two halves of the tile's queries, so that ptxas may issue the first one's products
  // while P of the second one is made.
  template <int kHalf>
  ATT_MEMBER void issue_half_of_dv() {
    constexpr int kSteps = kTileQ / 32;
    const unsigned o = wgmma_descriptor(shared.d_o(0), kQSlabBytes) + at.stage * (kDoBytes / 16) +
                       kHalf * kSteps * kRowBytes;
    wgmma_fence();
    plan::multiply_half_dv<kRowBytes, 4 * kRowBytes>(
        d_v, *reinterpret_cast<const unsigned(*)[kSteps][4]>(&p_operand[kHalf * kSteps]), o);
    wgmma_commit();
  }
  // dK's left operand of tile n, whose dS is written: fragments, or the descriptor of the
  // warpgroup's slab of dS.
  template <typename Fragments>
  ATT_MEMBER decltype(auto) ds_rows(const Fragments& fragments, unsigned n) const {
    if constexpr (kDkFromShared) {
      return wgmma_descriptor(shared.d_s(0) + warpgroup * kQSlabBytes, kQSlabBytes) +
             (n & 1) * (kDsBytes / 16);
    } else {
      return (fragments);
    }
  }
  ATT_MEMBER void issue_dk() {
    const unsigned q = wgmma_descriptor(shared.q(0), kQSlabBytes) + at.stage * (kQBytes / 16);
    wgmma_fence();
    plan::multiply_dk<kRowBytes, 4 * kRowBytes, kRowBytes, 4 * kRowBytes>(
        d_k, ds_rows(ds_operand, written), q);
    wgmma_commit();
  }
  // False when no query sees the keys.
  ATT_MEMBER bool has_tiles() {
    if constexpr (!kLoadsKeysApart && (!spec::kHasMask || kTakesItems)) return true;
    at = uniform(at);
    mbarrier_wait(shared.q_full(at.stage), at.parity);
    if (load_tile_info(shared.tile(at.stage)).tile >= 0) return true;
    mbarrier_wait(shared.do_full(at.stage), at.parity);
    warp_arrive(shared.q_empty(at.stage));
    warp_arrive(shared.do_empty(at.stage));
    at.advance();
    if constexpr (kTakesItems) mbarrier_wait(shared.v_full(), parity);
    if constexpr (kLoadsKeysApart) warp_arrive(shared.v_empty());
    return false;
  }

  // Begins with dK and dV of 0. False when no query sees the keys.
  ATT_MEMBER bool begin_walk() {
    zero(d_k);
    zero(d_v);
    // Products name what they write as read, too: ptxas would keep it from item to item.
    if constexpr (kTakesItems) {
      zero(s);
      zero(d);
      zero(d_q);
    }
    return has_tiles();
  }

  // Of a walk that keeps one P: S of the next tile, and its dP, which may still be made. Number
  // `tiles` of the item; the stage of the one before it is given back.
  ATT_MEMBER TileInfo begin_tile(const RingPosition& before, int tiles) {
    mbarrier_wait(shared.q_full(at.stage), at.parity);
    issue_s();
    const TileInfo now = load_tile_info(shared.tile(at.stage));
    wgmma_wait<1>();  // for dV and dK of the tile before
    if (tiles > 0) {
      if constexpr (!kFreesDoEarly) warp_arrive(shared.do_empty(before.stage));
      warp_arrive(shared.q_empty(before.stage));
    }
    mbarrier_wait(shared.do_full(at.stage), at.parity);
    const int flags = kLoadsKeysApart ? now.flags & ~kAllOfQueries : now.flags;
    if (kMayHaveDeadRows && flags == 0) {
      clean_dead_rows<kTileQ>(shared.references(at.stage), shared.d_o(at.stage),
                              warpgroup_barrier(warpgroup));
    }
    if constexpr (kTakesItems) {
      if (tiles <= (kSkipsDeadFirst ? 1 : 0)) mbarrier_wait(shared.v_full(), parity);
    }
    issue_dp();
    wgmma_wait<1>();  // for S
    wgmma_pin(s);
    if constexpr (kTakesItems && spec::kHasMask && !kLoadsKeysApart) {
      is_dropped = now.flags == kDropped;
    }
    return now;
  }

  // The same: dQ of the last tile, whose stage is `before`, to `sums`.
  ATT_MEMBER void end_walk(const RingPosition& before, int sums) {
    mbarrier_wait(shared.ds_full((written & 1) ^ 1), (written - 1) >> 1 & 1);
    issue_dq(*this, written - 1);
    wgmma_wait<0>();
    if constexpr (!kFreesDoEarly) warp_arrive(shared.do_empty(before.stage));
    warp_arrive(shared.q_empty(before.stage));
    wgmma_pin(d_q);
    end_dq(*this, written - 1, sums);
    end_gradients();
  }

  // What a walk leaves: dK and dV, or 0 of what was dropped.
  ATT_MEMBER void end_gradients() {
    wgmma_pin(d_k);
    wgmma_pin(d_v);
    if (is_dropped) {
      zero(d_k);
      zero(d_v);
    }
  }

  // Whether the item's first tile is dead for the warpgroup's keys, of which it then makes nothing:
  // its dS is 0, and dQ is made of it when the next tile's turn comes, to `sums`. The tile's dO is
  // waited for by another warpgroup, before which the stage is not given back. Later tiles that are
  // dead find products in flight.
  ATT_MEMBER bool skips_first_tile(int& sums) {
    at = uniform(at);
    mbarrier_wait(shared.q_full(at.stage), at.parity);
    if (!is_dead_for(shared.tile(at.stage), warpgroup)) return false;
    if constexpr (kMakesQueries) {
      const TileInfo tile = load_tile_info(shared.tile(at.stage));
#pragma unroll
      for (int step = 0; step < kTileQ / 16; ++step) {
#pragma unroll
        for (unsigned& pair : ds_operand[step]) pair = 0;
      }
      mbarrier_wait(shared.ds_empty(written & 1), (written >> 1 & 1) ^ 1);
      store_ds(*this, written);
      sums = sums_tile(p, sums_base, tile.h, tile.tile);
      if (kLoadsKeysApart && (tile.flags & kAllOfQueries) != 0) sums = ~sums;
    }
    at.advance();
    ++written;
    return true;
  }

  // Leaves dK and dV, unscaled.
  ATT_MEMBER void run() {
    if (!begin_walk()) return;
    if constexpr (plan::kKeysInRegisters) {
      if constexpr (kTakesItems) mbarrier_wait(shared.v_full(), parity);
      load_key_rows(shared.k(), k_rows);
      load_key_rows(shared.v(), v_rows);
    }
    LearnedGradients learned(p, k0 + warpgroup * kKeys + thread / 32 * 16);
    int tiles = 0;  // of this item so far
    int sums = 0, next_sums = 0;
    RingPosition before = at;
    if constexpr (kSkipsDeadFirst) {
      if (skips_first_tile(next_sums)) tiles = 1;
    }
    bool more = true;
    while (more) {
      at = uniform(at);
      before = uniform(before);
      mbarrier_wait(shared.q_full(at.stage), at.parity);
      issue_s();
      const TileInfo now = load_tile_info(shared.tile(at.stage));
      wgmma_wait<2>();  // for dV of the tile before, and dQ of the one before that
      if (tiles > 0) warp_arrive(shared.do_empty(before.stage));
      if constexpr (kMakesQueries) {
        wgmma_pin(d_q);
        if (tiles > 1) end_dq(*this, written - 2, sums);
      }
      mbarrier_wait(shared.do_full(at.stage), at.parity);
      const int flags = kLoadsKeysApart ? now.flags & ~kAllOfQueries : now.flags;
      if (kMayHaveDeadRows && flags == 0) {
        clean_dead_rows<kTileQ>(shared.references(at.stage), shared.d_o(at.stage),
                                warpgroup_barrier(warpgroup));
      }
      if constexpr (kTakesItems && !plan::kKeysInRegisters) {
        if (tiles <= (kSkipsDeadFirst ? 1 : 0)) mbarrier_wait(shared.v_full(), parity);
      }
      issue_dp();
      const int pair = warpgroup * 2 + thread / 64;
      PairDraws draws{(k0 + warpgroup * kKeys) / 8 + thread / 32 * 2,
                      shared.drawn(pair, written & 1)};
      if constexpr (plan::kScalesRows) {
        draws.draw(item_context(p, own, b, now.h, h_kv), now.tile * (kTileQ / 16));
      }
      LoadedReferences loaded(shared.references(at.stage) + thread % 4 * 8);
      wgmma_wait<1>();  // for dK of the tile before, and S
      if (tiles > 0) warp_arrive(shared.q_empty(before.stage));
      wgmma_pin(s);
      if constexpr (plan::kScalesRows) {
        named_barrier_sync(pair_barrier(pair), 64);
        draws.load();
      }
      const Context c = item_context(p, own, b, now.h, h_kv);
      const bool full = (now.flags >> warpgroup & 1) != 0;
      if constexpr (kTakesItems && spec::kHasMask && !kLoadsKeysApart) {
        is_dropped = now.flags == kDropped;
      }
      const ColumnElements<kTileQ> elements{
          k0 + warpgroup * kKeys + thread / 32 * 16 + thread % 32 / 4,
          now.tile * kTileQ + thread % 4 * 2, shared.references(at.stage) + thread % 4 * 8,
          shared.deltas(at.stage) + thread % 4 * 8};
      unsigned keep[ColumnElements<kTileQ>::kWords];
      if constexpr (plan::kScalesRows) {
        for (unsigned& all : keep) all = 0xffffffffu;
      } else {
        elements.drop(c, keep);
      }
      const auto keep_pair = [&](int n, int half, float low, float high) {
        p_operand[n / 2][n % 2 * 2 + half] = pack_2<spec::kDType>(low, high);
      };
      loaded.probabilities(
          elements, c, s, full, keep, keep_pair, [&](int n, int half, bool low, bool high) {
            p_operand[n / 2][n % 2 * 2 + half] &= (low ? 0xffffu : 0u) | (high ? 0xffff0000u : 0u);
          });
      DrawnWord drawn = {};
      if constexpr (plan::kScalesRows) {
        drawn = draws.word();
        drawn.drop(p_operand);
      }
      wgmma_pin(p_operand);
      issue_dv();
      DeltasAhead loaded_deltas(shared.deltas(at.stage) + thread % 4 * 8);
      wgmma_wait<1>();  // for dP
      wgmma_pin(d);
      if (kLoadsKeysApart && now.more == 0) warp_arrive(shared.v_empty());
      if constexpr (kTakesItems && spec::kHasMask && LearnedGradients::kLearns) {
        if (is_dropped) zero(d);  // nothing is learned from it
      }
      const auto keep_ds = [&](int n, int half, float low, float high) {
        ds_operand[n / 2][n % 2 * 2 + half] = pack_2<spec::kDType>(low, high);
      };
      loaded_deltas.gradients(elements, c, s, d, keep, drawn, keep_ds, learned);
      wgmma_pin(ds_operand);
      if constexpr (kMakesQueries) {
        mbarrier_wait(shared.ds_empty(written & 1), (written >> 1 & 1) ^ 1);
        store_ds(*this, written);
        // Before the first tile of an item there is none: what dQ is made of then is not used.
        if (tiles > 0) mbarrier_wait(shared.ds_full((written & 1) ^ 1), (written - 1) >> 1 & 1);
      }
      // For dV, where P's registers are wanted (C7512), or where ptxas would serialise it beside
      // what is learned (C7513). Else not: 2 to 5 % at d 64.
      constexpr bool kLearnsAlone = !kMakesQueries && kGradLoads > 0;
      if constexpr (kColumnsQk + kColumnsV > 128 || kLearnsAlone) wgmma_wait<0>();
      if constexpr (kMakesQueries) issue_dq(*this, written - 1);
      issue_dk();
      sums = next_sums;
      next_sums = sums_tile(p, sums_base, now.h, now.tile);
      if (kLoadsKeysApart && (now.flags & kAllOfQueries) != 0) next_sums = ~next_sums;
      before = at;
      at.advance();
      ++written;
      ++tiles;
      // Never taken. Without an exit here ptxas (13.0) loses track of the products that are in
      // flight over the loop's back edge, and serialises all of them (C7514).
      if (p.kv_len < 0) {
        wgmma_wait<0>();
        return;
      }
      more = now.more != 0;
    }
    wgmma_wait<1>();
    warp_arrive(shared.do_empty(before.stage));
    if constexpr (kMakesQueries) {
      wgmma_pin(d_q);
      if (tiles > 1) end_dq(*this, written - 2, sums);
      mbarrier_wait(shared.ds_full((written & 1) ^ 1), (written - 1) >> 1 & 1);
      issue_dq(*this, written - 1);
    }
    wgmma_wait<0>();
    warp_arrive(shared.q_empty(before.stage));
    if constexpr (kMakesQueries) {
      wgmma_pin(d_q);
      end_dq(*this, written - 1, next_sums);
    }
    learned.end(item_context(p, own, b, 0, h_kv));
    end_gradients();
  }
};

}  // namespace sm90
}  // namespace att
