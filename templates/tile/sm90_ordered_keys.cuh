// The two consumer warpgroups of the sm90a family's ordered keys' kernel. Both have the CTA's 64
// keys: the first makes S, P and dV, the second dP, dS and dK, so that each has registers for one
// gradient of up to 256 columns. What P changes by goes from thread to thread through shared
// memory. While the one computes elements, the tensor cores have the other's products.
//
// As in sm90_backward_consumer.cuh the tensor cores subtract LSE and D where they can, since
// ordinary loads wait for products that read shared memory.
#pragma once

#include "templates/ptx/convert.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/ptx/wgmma.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/backward_scores.cuh"
#include "templates/tile/learned_gradients.cuh"
#include "templates/tile/listed_parts.cuh"
#include "templates/tile/sm90_foreign_rows.cuh"
#include "templates/tile/sm90_ordered_keys_layout.cuh"
#include "templates/tile/walk_parts.cuh"

namespace att {
namespace sm90 {

// Keys that no query sees: under a mask, or of a packed sequence without queries.
constexpr bool kMayHaveNoTiles = spec::kHasMask || spec::kIsPacked;

using KeyGradient = float[kColumnsQk / 2];
using ValueGradient = float[kColumnsV / 2];

struct KeysConsumer {
  using Products = float[kTileQ / 2];        // S^T, dP^T: 64 keys x kTileQ queries
  using Operand = unsigned[kTileQ / 16][4];  // P^T, dS^T of them
  using Elements = ColumnElements<kTileQ>;

  const BackwardParams& p;
  const KeysMemory& shared;
  const int warpgroup;
  const int thread;  // of the warpgroup
  const int b, h_kv, k0;
  const Sequence own;  // of packed sequences,
  const int part;      // and of the walk

  ATT_MEMBER void warp_arrive(unsigned barrier) const {
    if (thread % 32 == 0) mbarrier_arrive(barrier);
  }
  ATT_MEMBER Context context(const TileInfo& tile) const {
    return item_context(p, own, b, tile.h, h_kv);
  }
  ATT_MEMBER Elements elements(const TileInfo& tile, int stage) const {
    return {k0 + thread / 32 * 16 + thread % 32 / 4, tile.tile * kTileQ + thread % 4 * 2,
            shared.references(stage) + thread % 4 * 8, shared.deltas(stage) + thread % 4 * 8};
  }
  ATT_MEMBER unsigned q_descriptor(int stage) const {
    return wgmma_descriptor(shared.q(0), slab_bytes(kTileQ)) + stage * (qk_bytes(kTileQ) / 16);
  }
  ATT_MEMBER unsigned do_descriptor(int stage) const {
    return wgmma_descriptor(shared.d_o(0), slab_bytes(kTileQ)) + stage * (v_bytes(kTileQ) / 16);
  }
  // ---- Slopes, from a thread of the first warpgroup to the same one of the second.

  ATT_MEMBER unsigned own_slopes() const { return shared.slopes() + thread * 16; }
  ATT_MEMBER void store_slopes(const Products& s, unsigned parity) const {
    mbarrier_wait(shared.slopes_empty(), parity ^ 1);
#pragma unroll
    for (int n = 0; n < kTileQ / 8; ++n) {
      unsigned words[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) words[e] = __builtin_bit_cast(unsigned, s[4 * n + e]);
      store_shared_16(own_slopes() + n * (16 * kWarpgroupThreads), words);
    }
    sync_warp();
    warp_arrive(shared.slopes_full());
  }
  ATT_MEMBER void load_slopes(Products& s, unsigned parity) const {
    mbarrier_wait(shared.slopes_full(), parity);
#pragma unroll
    for (int n = 0; n < kTileQ / 8; ++n) {
      const unsigned from = own_slopes() + n * (16 * kWarpgroupThreads);
      load_shared_8(from, s[4 * n], s[4 * n + 1]);
      load_shared_8(from + 8, s[4 * n + 2], s[4 * n + 3]);
    }
    sync_warp();
    warp_arrive(shared.slopes_empty());
  }

  // dO of rows without live keys; the references come with Q.
  ATT_MEMBER void clean(int stage) const {
    clean_dead_rows<kTileQ>(shared.references(stage), shared.d_o(stage),
                            warpgroup_barrier(warpgroup));
  }

  // ---- The first warpgroup's: dV, unscaled.

  ATT_MEMBER void make_value_gradient(ValueGradient& d_v) const {
    Products s;
    Operand operand;
#pragma unroll
    for (int i = 0; i < kColumnsV / 2; ++i) d_v[i] = 0.0f;
    const unsigned k = wgmma_descriptor(shared.k(), slab_bytes(kKeys));
    Ring<kStages> at, before;
    unsigned tiles = 0;
    mbarrier_wait(shared.q_full(0), 0);
    if (kMayHaveNoTiles && load_tile_info(shared.q_tile(0)).tile < 0) return;
    bool more = true;
    while (more) {
      at = uniform(at);
      before = uniform(before);
      mbarrier_wait(shared.q_full(at.stage), at.parity);
      wgmma_fence();
      plan::multiply_s<2, slab_bytes(kTileQ) / 16, 2, slab_bytes(kKeys) / 16>(
          s, k, q_descriptor(at.stage));
      if constexpr (plan::kSplitReferences)
        subtract_rows(s, shared.halves(), shared.references(at.stage));
      wgmma_commit();
      const TileInfo now = load_tile_info(shared.q_tile(at.stage));
      wgmma_wait<1>();  // for dV of the tile before
      if (tiles > 0) warp_arrive(shared.do_empty(before.stage));
      wgmma_wait<0>();
      wgmma_pin(s);
      const Context c = context(now);
      const Elements own = elements(now, at.stage);
      unsigned keep[Elements::kWords];
      own.drop(c, keep);
      own.probabilities(c, s, now.flags != 0, keep, [&](int n, int half, float low, float high) {
        operand[n / 2][n % 2 * 2 + half] = pack_2<spec::kDType>(low, high);
      });
      wgmma_pin(operand);
      store_slopes(s, tiles & 1);
      mbarrier_wait(shared.do_full(at.stage), at.parity);
      if (spec::kHasMask && now.flags == 0) clean(at.stage);
      warp_arrive(shared.q_empty(at.stage));
      wgmma_fence();
      plan::multiply_dv<kRowBytes, 4 * kRowBytes>(d_v, operand, do_descriptor(at.stage));
      wgmma_commit();
      before = at;
      at.advance();
      ++tiles;
      // Never taken; as in sm90_backward_consumer.cuh.
      if (p.kv_len < 0) {
        wgmma_wait<0>();
        return;
      }
      more = now.more != 0;
    }
    wgmma_wait<0>();
    wgmma_pin(d_v);
  }

  // ---- The second one's: dK, unscaled.

  ATT_MEMBER void make_key_gradient(KeyGradient& d_k) const {
    Products d, slopes;
    Operand operand;
#pragma unroll
    for (int i = 0; i < kColumnsQk / 2; ++i) d_k[i] = 0.0f;
    const unsigned v = wgmma_descriptor(shared.v(), slab_bytes(kKeys));
    Ring<kStages> at, before;
    unsigned tiles = 0;
    mbarrier_wait(shared.do_full(0), 0);
    if (kMayHaveNoTiles && load_tile_info(shared.do_tile(0)).tile < 0) return;
    LearnedGradients learned(p, k0 + thread / 32 * 16);
    bool more = true;
    while (more) {
      at = uniform(at);
      before = uniform(before);
      mbarrier_wait(shared.do_full(at.stage), at.parity);
      const TileInfo now = load_tile_info(shared.do_tile(at.stage));
      if (spec::kHasMask && now.flags == 0) {
        mbarrier_wait(shared.q_full(at.stage), at.parity);
        clean(at.stage);
      }
      wgmma_fence();
      plan::multiply_dp<2, slab_bytes(kTileQ) / 16, 2, slab_bytes(kKeys) / 16>(
          d, v, do_descriptor(at.stage));
      if constexpr (plan::kSplitDeltas) subtract_rows(d, shared.halves(), shared.deltas(at.stage));
      wgmma_commit();
      wgmma_wait<1>();  // for dK of the tile before
      if (tiles > 0) warp_arrive(shared.q_empty(before.stage));
      const Context c = context(now);
      const Elements own = elements(now, at.stage);
      unsigned keep[Elements::kWords];
      own.drop(c, keep);
      load_slopes(slopes, tiles & 1);
      wgmma_wait<0>();
      wgmma_pin(d);
      own.gradients(
          c, slopes, d, keep,
          [&](int n, int half, float low, float high) {
            operand[n / 2][n % 2 * 2 + half] = pack_2<spec::kDType>(low, high);
          },
          learned);
      wgmma_pin(operand);
      warp_arrive(shared.do_empty(at.stage));
      mbarrier_wait(shared.q_full(at.stage), at.parity);
      wgmma_fence();
      plan::multiply_dk<kRowBytes, 4 * kRowBytes>(d_k, operand, q_descriptor(at.stage));
      wgmma_commit();
      before = at;
      at.advance();
      ++tiles;
      if (p.kv_len < 0) {
        wgmma_wait<0>();
        return;
      }
      more = now.more != 0;
    }
    wgmma_wait<0>();
    wgmma_pin(d_k);
    learned.end(item_context(p, own, b, 0, h_kv));
  }

  // A part's of a walk, to be added up by others. False where there is a single part.
  template <int kHeadDim, int kNumbers>
  ATT_MEMBER bool leaves_part(float (&gradient)[kNumbers], float* sums) const {
    wgmma_pin(gradient);
    const WalkPart walked = spec::kIsPacked ? walk_part(p, own.q_len, part) : own_walk_part(p);
    if (walked.parts == 1) return false;
    int row = k0, head = b * p.kv_heads + h_kv;
    if constexpr (spec::kIsPacked) {
      row += first_listed_tile(own, b) * kPartKeys;
      head = h_kv;
    }
    leave_part<kHeadDim>(p, walked, gradient, sums, head, row, thread);
    return true;
  }

  // A gradient's 64 rows to where K's or V's were, and from there to global memory. Of packed
  // sequences those of another one are not its business.
  template <int kHeadDim>
  ATT_MEMBER void store(const float (&gradient)[whole_steps(kHeadDim) / 2], float scale,
                        unsigned matrix, const TensorMap* map, [[maybe_unused]] void* d_tensor,
                        [[maybe_unused]] const Strides& stride) const {
    constexpr int kColumns = whole_steps(kHeadDim);
    const int row = thread / 32 * 16;
    KeyRows to{matrix, slab_bytes(kKeys), map, k0, h_kv, b};
    if constexpr (spec::kIsPacked) {
      const int key = k0 + row;
      if (key + 16 > own.kv_len) {
        leave_key_rows<kColumns>(gradient, scale, to, row, thread);
        sync_warp();
        store_key_rows<kHeadDim>(
            static_cast<char*>(d_tensor) + 2 * key_offset(own, stride, h_kv, key), 2 * stride.seq,
            to, row, own.kv_len - key);
        return;
      }
      to.k0 += own.kv_first;
      to.batch = own.slice;
    }
    store_key_rows<kColumns>(gradient, scale, to, row, thread);
    if (thread % 32 == 0) tma_store_wait();
  }
};

}  // namespace sm90
}  // namespace att
