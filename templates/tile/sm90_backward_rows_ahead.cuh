// Rows of heads whose key tiles other CTAs will take. What the sm90a family's backward kernel knows
// of a row of queries is made from all of O and dO, which by a launch of its own takes as long as
// memory does: 47 us of 480 to 690 at 16 x 16 heads of 1024 queries, d 128, on an H200. So only the
// first heads' are made so. The warps beside the loader, whose processor multiplies meanwhile, make
// the others', a wave of CTAs ahead.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/arrive.cuh"
#include "templates/ptx/fence.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/elements.cuh"
#include "templates/tile/sm90_backward_layout.cuh"

namespace att {
namespace sm90 {

static_assert(kRowPadding % kRowsOfPart == 0);

// Of all query heads that share a K/V head.
ATT_FN int row_parts(const BackwardParams& p) {
  return p.heads / p.kv_heads * (padded_rows(p.q_len) / kRowsOfPart);
}

// Until K/V head `head` (b * kv_heads + h_kv) has its rows, which TMA may read then. CTAs start in
// the order of their numbers, and those that make them have lower ones.
ATT_FN void wait_for_rows(const BackwardParams& p, int head) {
  if (head < heads_with_rows(p)) return;
  while (load_acquire(&p.head_counters[head].rows_made) < row_parts(p)) wait_a_while();
  fence_global_for_async();
}

// rowsum(dO O) of a lane's row, or of kBytes of one, where both lie in shared memory as they lie in
// global memory. Each lane begins with another unit of 16 bytes, or all would ask the same banks.
template <int kBytes>
ATT_FN float staged_product(unsigned o, unsigned d_o) {
  constexpr int kUnits = kBytes / 16;
  float sum = 0.0f;
  unsigned unit = static_cast<unsigned>(lane_index()) % kUnits * 16;
#pragma unroll 1
  for (int i = 0; i < kUnits; ++i) {
    unsigned a[4], b[4];
    load_shared_16(o + unit, a);
    load_shared_16(d_o + unit, b);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum = Element::add_products(sum, a[j], b[j]);
    unit = unit + 16 < kBytes ? unit + 16 : 0;
  }
  return sum;
}

// One of kRowWarps warps': a part of rows of K/V head `head` after the other, a row a lane, as long
// as no other warp has taken it.
ATT_FN void make_rows(const BackwardParams& p, const SharedMemory& shared, int head, int warp,
                      unsigned& parity) {
  const int lane = lane_index();
  const int parts_of_head = padded_rows(p.q_len) / kRowsOfPart;
  const int b = head / p.kv_heads;
  const int first_head = (head - b * p.kv_heads) * (p.heads / p.kv_heads);
  HeadCounters* const counters = p.head_counters + head;
  const unsigned o = shared.staged_rows(warp) + lane * kStagedRowBytes;
  const unsigned d_o = o + kRowsOfPart * kStagedRowBytes;
  while (true) {
    int part = 0;
    if (lane == 0) part = take_one_of(&counters->rows_taken);
    part = shuffle_from(part, 0);
    if (part >= row_parts(p)) return;
    const int h = first_head + part / parts_of_head;
    const int first = part % parts_of_head * kRowsOfPart;
    const int q = first + lane;
    if (lane == 0) {
      const int rows = max_i32(min_i32(p.q_len - first, kRowsOfPart), 0);
      mbarrier_arrive_expect(shared.rows_staged(warp), rows * (2 * kStagedRowBytes));
    }
    sync_warp();
    if (q < p.q_len) {
      const auto row_of = [&](const void* tensor, const Strides& stride) {
        return static_cast<const char*>(tensor) +
               Element::kBytes * query_offset(sequence_of(p, b), stride, h, q);
      };
      bulk_load(o, row_of(p.o, p.o_stride), kStagedRowBytes, shared.rows_staged(warp));
      bulk_load(d_o, row_of(p.d_o, p.d_o_stride), kStagedRowBytes, shared.rows_staged(warp));
    }
    mbarrier_wait(shared.rows_staged(warp), parity);
    parity ^= 1;
    const float product = q < p.q_len ? staged_product<kStagedRowBytes>(o, d_o) : 0.0f;
    const long long row_head = opaque(b * p.heads + h);  // not kept in registers all the while
    const long long lse_row = lse_offset(p, row_head, q);
    const float lse = q < p.q_len ? p.lse[lse_row] : -infinity();
    store_row(p, first_row_of_head(p, {}, b, row_head) + q, lse, product, lse_row);
    fence_global_for_async();
    sync_warp();
    if (lane == 0) arrive(&counters->rows_made);
  }
}

// Those of the head as many heads after `head` as have their rows from a launch of their own.
// `parity`: of rows_staged, kept from item to item.
ATT_FN void make_rows_ahead(const BackwardParams& p, const SharedMemory& shared, int head, int warp,
                            unsigned& parity) {
  const int later = head + heads_with_rows(p);
  if (later < p.batch * p.kv_heads) make_rows(p, shared, later, warp, parity);
}

}  // namespace sm90
}  // namespace att
