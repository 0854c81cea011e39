// A CTA's copies of tiles of keys whose rows are wide: eight threads bring a row, 128 bytes at a
// time, so that a thread needs to know where few rows lie.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/sequence.h"
#include "templates/tile/page_rows.cuh"
#include "templates/tile/smem_layout.cuh"

namespace att {

// How rows lie in shared memory: where the 16-byte unit `unit` below 8 of a row is, and how far
// from one unit to the eighth behind it. As ldmatrix reads them, whole rows one after the other:
template <int kDim>
struct WholeRows {
  static constexpr int kStepBytes = 128;
  static ATT_MEMBER int offset(int row, int unit) { return RowLayout<kDim>::offset(row, unit); }
};
// As wgmma does: slabs of 64 columns, rows of which are 128 bytes under the 128-byte swizzle.
template <int kRows>
struct SlabRows {
  static constexpr int kStepBytes = kRows * 128;
  static ATT_MEMBER int offset(int row, int unit) { return row * 128 + ((unit ^ (row & 7)) << 4); }
};

// Of kKeys rows of kDim elements of 2 bytes, kDim a multiple of 64, by the threads whose number is
// that of one of them modulo kThreads.
template <int kKeys, int kDim, int kThreads, typename Layout>
struct KeyTiles {
  static constexpr int kLanes = 8;  // of a row
  static constexpr int kAtOnce = kThreads / kLanes;
  static constexpr int kPasses = kKeys / kAtOnce;
  static_assert(kDim % 64 == 0 && kPasses * kAtOnce == kKeys);

  // Where the thread's rows of the next tile lie, looked up some time before they are copied.
  PagedKey ahead[spec::kIsPaged ? kPasses : 1];

  static ATT_MEMBER int row(int pass) {
    return thread_index() % kThreads / kLanes + pass * kAtOnce;
  }

  ATT_MEMBER void look_up(const PagedSequence& from, int k0) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) ahead[pass] = from.look_up(k0 + row(pass));
  }

  // Starts the copy of what was looked up.
  ATT_MEMBER void load_pages(unsigned to, const void* tensor, const Strides& stride,
                             const PagedSequence& from) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const long long at = bytes_before(checked_key(from.table, ahead[pass]), stride, from.h_kv);
      const bool exists = at != kNowhere;
      copy_row(to, row(pass), static_cast<const char*>(tensor) + (exists ? at : 0), exists);
    }
  }

  // Starts the copy of rows that follow one another, `stride_bytes` apart; those from `valid` on
  // become zeros.
  static ATT_MEMBER void load(unsigned to, const char* from, long long stride_bytes, int valid) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      copy_row(to, row(pass), from + row(pass) * stride_bytes, row(pass) < valid);
    }
  }

  // Starts the copy of one row, or of zeros.
  static ATT_MEMBER void copy_row(unsigned to, int row, const char* from, bool exists) {
    const int lane = thread_index() % kLanes;
    const unsigned first = to + Layout::offset(row, lane);
    const char* const source = from + lane * 16;
#pragma unroll
    for (int i = 0; i < kDim / 64; ++i) {
      cp_async_16_or_zero(first + i * Layout::kStepBytes, source + i * 128, exists);
    }
  }
};

}  // namespace att
