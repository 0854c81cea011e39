// A CTA's copies of tiles of keys whose rows are wide: eight threads bring a row, 128 bytes at a
// time, so that a thread needs to know where few rows lie.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/sequence.h"
#include "templates/tile/page_rows.cuh"
#include "templates/tile/smem_layout.cuh"

namespace att {

// Of kKeys rows of kDim elements of 2 bytes, kDim a multiple of 64.
template <int kKeys, int kDim, int kThreads>
struct KeyTiles {
  using Layout = RowLayout<kDim>;
  static constexpr int kLanes = 8;  // of a row
  static constexpr int kAtOnce = kThreads / kLanes;
  static constexpr int kPasses = kKeys / kAtOnce;
  static_assert(Layout::kUnits % kLanes == 0 && kPasses * kAtOnce == kKeys);

  // Where the thread's rows of the next tile lie, looked up some time before they are copied.
  PagedKey ahead[spec::kIsPaged ? kPasses : 1];

  static ATT_MEMBER int row(int pass) { return thread_index() / kLanes + pass * kAtOnce; }

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

 private:
  static ATT_MEMBER void copy_row(unsigned to, int row, const char* from, bool exists) {
    const int lane = thread_index() % kLanes;
    const unsigned first = to + Layout::offset(row, lane);
    const char* const source = from + lane * 16;
#pragma unroll
    for (int i = 0; i < Layout::kUnits / kLanes; ++i) {
      cp_async_16_or_zero(first + i * kLanes * 16, source + i * kLanes * 16, exists);
    }
  }
};

}  // namespace att
