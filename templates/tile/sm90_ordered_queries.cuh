// A consumer warpgroup of the sm90a family's ordered queries' kernel: 64 queries, whose dQ stays in
// its registers. S and dP are computed once more, so that nothing is added up in memory.
#pragma once

#include "templates/ptx/convert.cuh"
#include "templates/ptx/ldmatrix.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/wgmma.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/backward_scores.cuh"
#include "templates/tile/sm90_ordered_queries_layout.cuh"
#include "templates/tile/transpose.cuh"

namespace att {
namespace sm90 {

struct QueriesConsumer {
  using Products = float[kStepKeys / 2];        // S, dP: 64 queries x kStepKeys keys
  using Operand = unsigned[kStepKeys / 16][4];  // dS of them
  using Gradient = float[kColumnsQk / 2];
  template <int kColumns>
  using Rows = unsigned[plan::kRowsInRegisters ? kColumns / 16 : 1][4];

  const BackwardParams& p;
  const QueriesMemory& shared;
  const int warpgroup;
  const int thread;  // of the warpgroup
  const int b, h, q0;
  const Sequence own;  // of packed sequences

  ATT_MEMBER void warp_arrive(unsigned barrier) const {
    if (thread % 32 == 0) mbarrier_arrive(barrier);
  }
  ATT_MEMBER int row() const { return q0 + warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4; }

  ATT_MEMBER RowElements elements() const {
    const long long first = first_padded_row(p, spec::kIsPacked ? own : sequence_of(p, b), b, h);
    float references[2], deltas[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Of rows past the padding nothing is stored.
      const bool is_past =
          kRowPadding % kRows != 0 && row() + 8 * half >= padded_rows(queries_of(p, own));
      references[half] = is_past ? infinity() : stored_reference(p, first + row() + 8 * half);
      deltas[half] = is_past ? 0.0f : row_delta(p, first + row() + 8 * half);
    }
    return {row(), references, deltas};
  }

  ATT_MEMBER void run() const {
    Products s, d;
    Operand operand;
    Gradient d_q;
#pragma unroll
    for (int i = 0; i < kColumnsQk / 2; ++i) d_q[i] = 0.0f;
    const Context c = item_context(p, own, b, h, h / (p.heads / p.kv_heads));
    const RowElements rows = elements();
    // On the left of S and dP: descriptors, or fragments.
    Rows<kColumnsQk> q_rows;
    Rows<kColumnsV> o_rows;
    const unsigned q = wgmma_descriptor(shared.q() + warpgroup * slab_bytes(64), slab_bytes(kRows));
    const unsigned o =
        wgmma_descriptor(shared.d_o() + warpgroup * slab_bytes(64), slab_bytes(kRows));
    const auto q_operand = [&]() -> decltype(auto) {
      if constexpr (plan::kRowsInRegisters) {
        return (q_rows);
      } else {
        return q;
      }
    };
    const auto o_operand = [&]() -> decltype(auto) {
      if constexpr (plan::kRowsInRegisters) {
        return (o_rows);
      } else {
        return o;
      }
    };
    Ring<QueriesMemory::kKStages> at, before;
    Ring<QueriesMemory::kVStages> at_v;
    int tiles = 0;
    mbarrier_wait(shared.rows_full(), 0);
    if constexpr (plan::kRowsInRegisters) {
      load_rows(shared.q(), q_rows);
      load_rows(shared.d_o(), o_rows);
    }
    mbarrier_wait(shared.k_full(0), 0);
    int tile = load_tile(0);
    // Queries that see no key: under a mask, or of a packed sequence without keys.
    if ((spec::kHasMask || spec::kIsPacked) && tile < 0) {
      store(d_q, rows);
      return;
    }
    // Entered without a test, for ptxas, which else serialises the products (C7515).
    bool more = true;
    while (more) {
      at = uniform(at);
      before = uniform(before);
      at_v = uniform(at_v);
      const unsigned k = wgmma_descriptor(shared.k(0), slab_bytes(kStepKeys)) +
                         at.stage * (qk_bytes(kStepKeys) / 16);
      const unsigned v = wgmma_descriptor(shared.v(0), slab_bytes(kStepKeys)) +
                         at_v.stage * (v_bytes(kStepKeys) / 16);
      wgmma_fence();
      plan::multiply_row_s<2, slab_bytes(kStepKeys) / 16, 2, slab_bytes(kRows) / 16>(s, q_operand(),
                                                                                     k);
      wgmma_commit();
      mbarrier_wait(shared.v_full(at_v.stage), at_v.parity);
      wgmma_fence();
      plan::multiply_row_dp<2, slab_bytes(kStepKeys) / 16, 2, slab_bytes(kRows) / 16>(
          d, o_operand(), v);
      wgmma_commit();
      wgmma_wait<2>();  // for dQ of the tile before
      if (tiles > 0) warp_arrive(shared.k_empty(before.stage));
      wgmma_wait<1>();
      wgmma_pin(s);
      const int key = tile / 2 * kStepKeys;
      rows.template probabilities<kStepKeys>(c, s, key + thread % 4 * 2, tile % 2 != 0);
      wgmma_wait<0>();
      wgmma_pin(d);
      warp_arrive(shared.v_empty(at_v.stage));
      rows.template gradients<kStepKeys>(c, s, d, key);
#pragma unroll
      for (int n = 0; n < kStepKeys / 8; ++n) {
        operand[n / 2][n % 2 * 2] = pack_2<spec::kDType>(d[4 * n], d[4 * n + 1]);
        operand[n / 2][n % 2 * 2 + 1] = pack_2<spec::kDType>(d[4 * n + 2], d[4 * n + 3]);
      }
      wgmma_pin(operand);
      wgmma_fence();
      plan::multiply_dq<kRowBytes, 4 * kRowBytes>(d_q, operand, k);
      wgmma_commit();
      before = at;
      at.advance();
      at_v.advance();
      ++tiles;
      // Never taken; as in sm90_backward_consumer.cuh.
      if (p.kv_len < 0) {
        wgmma_wait<0>();
        return;
      }
      mbarrier_wait(shared.k_full(at.stage), at.parity);
      tile = load_tile(at.stage);
      more = tile >= 0;
    }
    wgmma_wait<0>();
    wgmma_pin(d_q);
    store(d_q, rows);
  }

 private:
  ATT_MEMBER int load_tile(int stage) const {
    return shuffle_from(static_cast<int>(load_shared_4(shared.tile(stage))), 0);
  }

  // The warpgroup's rows of a matrix in slabs.
  template <int kSteps>
  ATT_MEMBER void load_rows(unsigned matrix, unsigned (&rows)[kSteps][4]) const {
    const int from = warpgroup * 64 + thread / 32 * 16 + thread % 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ldmatrix_x4(rows[step], swizzled(matrix + step / 4 * slab_bytes(kRows), from,
                                       step % 4 * 2 + thread % 32 / 16));
    }
  }

  // Rows without live keys get zeros: what their dO made of dS may be anything.
  ATT_MEMBER void store(const Gradient& d_q, const RowElements& rows) const {
    const Strides& stride = p.d_q_stride;
    const Sequence of = spec::kIsPacked ? own : sequence_of(p, b);
    char* const out = static_cast<char*>(p.d_q) + 2 * query_offset(of, stride, h, row());
    constexpr int kBlocks = spec::kHeadDimQk / 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool is_dead = rows.reference[half] == infinity();
      const float scale = softmax_scale(p);
#pragma unroll
      for (int first = 0; first < kBlocks; first += 4) {
        unsigned words[4] = {};
#pragma unroll
        for (int i = 0; i < 4 && first + i < kBlocks; ++i) {
          const float* const from = d_q + 4 * (first + i) + 2 * half;
          words[i] = is_dead ? 0u : pack_2<spec::kDType>(from[0] * scale, from[1] * scale);
        }
        transpose_quad(words);
        const int block = first + thread % 4;
        if (row() + 8 * half < queries_of(p, own) && block < kBlocks) {
          store_global_16(out + 2 * (8 * half * stride.seq + 8 * block), words);
        }
      }
    }
  }
};

}  // namespace sm90
}  // namespace att
