// Rows of later heads where a warp of its own loads the keys (sm90_backward_rows_ahead.cuh is where
// none does): there is room for two more warps, and for fewer rows of O and dO. They follow no
// items but make the rows of all heads as fast as they come, two lanes a row: with one, whose loads
// wait for the products, a window of 1024 took an H200 6 % longer in the main launch.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/arrive.cuh"
#include "templates/ptx/fence.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/elements.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_rows_ahead.cuh"

namespace att {
namespace sm90 {

// Of a row that has an odd number of units of 16 bytes the first half is the longer one.
constexpr int kHalfRowBytes = (kStagedRowBytes / 16 + 1) / 2 * 16;
constexpr int kOtherHalfBytes = kStagedRowBytes - kHalfRowBytes;

// As make_rows(), for parts of 16 rows.
ATT_FN void make_rows_by_pairs(const BackwardParams& p, const SharedMemory& shared, int head,
                               int warp, unsigned& parity) {
  const int lane = lane_index();
  const int half = lane % 2;
  const int parts_of_head = padded_rows(p.q_len) / kRowsOfPart;
  const int b = head / p.kv_heads;
  const int first_head = (head - b * p.kv_heads) * (p.heads / p.kv_heads);
  HeadCounters* const counters = p.head_counters + head;
  const unsigned o = shared.staged_rows(warp) + lane / 2 * kStagedRowBytes;
  const unsigned d_o = o + kRowsOfPart * kStagedRowBytes;
  while (true) {
    int part = 0;
    if (lane == 0) part = take_one_of(&counters->rows_taken);
    part = shuffle_from(part, 0);
    if (part >= row_parts(p)) return;
    const int h = first_head + part / parts_of_head;
    const int first = part % parts_of_head * kRowsOfPart;
    const int q = first + lane / 2;
    if (lane == 0) {
      const int rows = max_i32(min_i32(p.q_len - first, kRowsOfPart), 0);
      mbarrier_arrive_expect(shared.rows_staged(warp), rows * (2 * kStagedRowBytes));
    }
    sync_warp();
    if (q < p.q_len) {
      const Strides& stride = half == 0 ? p.o_stride : p.d_o_stride;
      const char* const tensor = static_cast<const char*>(half == 0 ? p.o : p.d_o);
      bulk_load(half == 0 ? o : d_o,
                tensor + Element::kBytes * query_offset(sequence_of(p, b), stride, h, q),
                kStagedRowBytes, shared.rows_staged(warp));
    }
    mbarrier_wait(shared.rows_staged(warp), parity);
    parity ^= 1;
    float product = 0.0f;
    if (q < p.q_len) {
      const unsigned from = half * kHalfRowBytes;
      if constexpr (kOtherHalfBytes == kHalfRowBytes) {
        product = staged_product<kHalfRowBytes>(o + from, d_o + from);
      } else {
        product = half == 0 ? staged_product<kHalfRowBytes>(o, d_o)
                            : staged_product<kOtherHalfBytes>(o + from, d_o + from);
      }
    }
    product += shuffle_xor(product, 1);
    if (half == 0) {
      const long long row_head = opaque(b * p.heads + h);  // not kept in registers all the while
      const long long lse_row = lse_offset(p, row_head, q);
      const float lse = q < p.q_len ? p.lse[lse_row] : -infinity();
      store_row(p, first_row_of_head(p, {}, b, row_head) + q, lse, product, lse_row);
    }
    fence_global_for_async();
    sync_warp();
    if (lane == 0) arrive(&counters->rows_made);
  }
}

// A warp's. CTAs wait for a head's rows, these warps for nobody.
ATT_FN void make_later_rows(const BackwardParams& p, const SharedMemory& shared, int warp) {
  unsigned parity = 0;
#pragma unroll 1
  for (int head = heads_with_rows(p); head < p.batch * p.kv_heads; ++head) {
    make_rows_by_pairs(p, shared, head, warp, parity);
  }
}

}  // namespace sm90
}  // namespace att
