// The warpgroup of the sm90a family's backward kernel of wide heads that makes P and dS of all of a
// tile's queries and keys, and leaves them in shared memory for those that make gradients of them.
#pragma once

#include "templates/ptx/convert.cuh"
#include "templates/ptx/fence.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/stmatrix.cuh"
#include "templates/ptx/wgmma.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/backward_scores.cuh"
#include "templates/tile/sm90_wide_layout.cuh"

namespace att {
namespace sm90 {

struct ScoresConsumer {
  using Products = float[kTileKv / 2];        // S, dP: kTileQ queries x kTileKv keys
  using Operand = unsigned[kTileKv / 16][4];  // dS of them

  const BackwardParams& p;
  const WideMemory& shared;
  const int thread;  // of the warpgroup
  const int b, h_kv, k0;

  ATT_MEMBER void warp_arrive(unsigned barrier) const {
    if (thread % 32 == 0) mbarrier_arrive(barrier);
  }
  static ATT_MEMBER float load_float(unsigned address) {
    return __builtin_bit_cast(float, load_shared_4(address));
  }
  ATT_MEMBER int row() const { return thread / 32 * 16 + thread % 32 / 4; }

  // Of 16 keys.
  ATT_MEMBER void store(unsigned matrix, int step, const unsigned (&rows)[4]) const {
    // Of later steps' units the bits above the lowest one differ, and nothing is above 1024 bytes.
    const unsigned first = swizzled(matrix, thread / 32 * 16 + thread % 16, thread % 32 / 16);
    stmatrix_x4((first ^ (step % 4 * 32)) + step / 4 * kQSlabBytes, rows);
  }
  static ATT_MEMBER void pack(const Products& numbers, int step, unsigned (&rows)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rows[i] = pack_2<spec::kDType>(numbers[8 * step + 2 * i], numbers[8 * step + 2 * i + 1]);
    }
  }
  ATT_MEMBER void leave(unsigned n, const Operand& p_rows, const Operand& ds_rows) const {
    mbarrier_wait(shared.p_empty(n), turn_parity(n) ^ 1);
#pragma unroll
    for (int step = 0; step < kTileKv / 16; ++step) store(shared.p(n), step, p_rows[step]);
    mbarrier_wait(shared.ds_empty(n), turn_parity(n) ^ 1);
#pragma unroll
    for (int step = 0; step < kTileKv / 16; ++step) store(shared.d_s(n), step, ds_rows[step]);
    fence_shared_for_async();
    sync_warp();
    warp_arrive(shared.p_full(n));
    warp_arrive(shared.ds_full(n));
  }

  ATT_MEMBER void run() const {
    Products s, d;
    Operand p_rows, ds_rows;
    const unsigned k = wgmma_descriptor(shared.k(), kKvSlabBytes);
    const unsigned v = wgmma_descriptor(shared.v(), kKvSlabBytes);
    Ring<kStages> at;
    unsigned n = 0;
    mbarrier_wait(shared.q_full(0), 0);
    if (spec::kHasMask && load_tile_info(shared.q_tile(0)).tile < 0) return;
    bool more = true;
    while (more) {
      at = uniform(at);
      const unsigned q =
          wgmma_descriptor(shared.q(0), kQSlabBytes) + at.stage * (kQkSlabs * kQSlabBytes / 16);
      const unsigned o =
          wgmma_descriptor(shared.d_o(0), kQSlabBytes) + at.stage * (kVSlabs * kQSlabBytes / 16);
      mbarrier_wait(shared.q_full(at.stage), at.parity);
      wgmma_fence();
      plan::multiply_s<2, kKvSlabBytes / 16, 2, kQSlabBytes / 16>(s, q, k);
      wgmma_commit();
      const TileInfo now = load_tile_info(shared.q_tile(at.stage));
      float references[2], deltas[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        references[half] = load_float(shared.references(at.stage) + (row() + 8 * half) * 4);
      }
      mbarrier_wait(shared.do_full(at.stage), at.parity);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        deltas[half] = load_float(shared.deltas(at.stage) + (row() + 8 * half) * 4);
      }
      if (spec::kHasMask && now.flags == 0) {
        clean_dead_rows<kTileQ>(shared.references(at.stage), shared.d_o(at.stage),
                                warpgroup_barrier(0));
      }
      wgmma_fence();
      plan::multiply_dp<2, kKvSlabBytes / 16, 2, kQSlabBytes / 16>(d, o, v);
      wgmma_commit();
      const Context c = item_context(p, {}, b, now.h, h_kv);
      const RowElements rows{now.tile * kTileQ + row(), references, deltas};
      const int key = k0 + thread % 4 * 2;
      wgmma_wait<1>();
      wgmma_pin(s);
      const auto keep_pair = [&](int block, int half, float low, float high) {
        p_rows[block / 2][block % 2 * 2 + half] = pack_2<spec::kDType>(low, high);
      };
      rows.template probabilities<kTileKv>(c, s, key, now.flags != 0, keep_pair);
      wgmma_pin(p_rows);
      warp_arrive(shared.q_empty(at.stage));
      wgmma_wait<0>();
      wgmma_pin(d);
      warp_arrive(shared.do_empty(at.stage));
      rows.template gradients<kTileKv>(c, s, d, key);
#pragma unroll
      for (int step = 0; step < kTileKv / 16; ++step) pack(d, step, ds_rows[step]);
      // Stores wait for products that read both operands from shared memory: none of this
      // warpgroup's are in flight.
      leave(n, p_rows, ds_rows);
      at.advance();
      ++n;
      // Never taken; as in sm90_backward_consumer.cuh.
      if (p.kv_len < 0) return;
      more = now.more != 0;
    }
  }
};

}  // namespace sm90
}  // namespace att
