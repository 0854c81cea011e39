// Copies of a tile of paged rows from global to shared memory: a CTA's, and a warp's step by step.
//
// Who copies a row is who copies it of a matrix that is not paged (templates/tile/load.cuh). Where
// tiles lie within pages, which the page size says, the copy is that of a matrix. Else each lane
// looks up one of the rows that its warp copies, 32 at most at a time, and the others have from it
// where the row lies: pages of one row cost as many look-ups as pages of 16.
#pragma once

#include "templates/ptx/shuffles.cuh"
#include "templates/sequence.h"
#include "templates/tile/load.cuh"

namespace att {

// How the threads of a copy share the rows of a tile.
template <int kRows, int kDim, int kThreads>
struct RowShares {
  using Layout = typename Element::template Rows<padded_dim(kDim)>;
  static constexpr int kUnits = Layout::kUnits;
  static constexpr int kColumns = power_of_two_from(kUnits);
  static_assert(kThreads % 32 == 0);
  static constexpr int kRowStep = kThreads / kColumns;  // rows of all threads' one copy
  static constexpr int kAtOnce = kColumns < 32 ? 32 / kColumns : 1;  // of them a warp's
  static constexpr int kCopies = (kRows + kRowStep - 1) / kRowStep;
  static constexpr int kCopiesOfLookUp = 32 / kAtOnce < kCopies ? 32 / kAtOnce : kCopies;
  static constexpr bool kIsExact = kRows % (kRowStep * kCopiesOfLookUp) == 0;

  // The row that the thread looks up, of those that its warp copies from copy `first` on.
  static ATT_MEMBER int row(int thread, int first) {
    const int lane = thread % 32;
    return (first + lane / kAtOnce) * kRowStep + thread / 32 * 32 / kColumns + lane % kAtOnce;
  }
};

// Bytes before a row of K or V; of one that lies nowhere.
constexpr long long kNowhere = -0x7fffffffffffffffll - 1;

ATT_FN long long bytes_before(const PagedKey& key, const Strides& stride, int h_kv) {
  return key.page < 0 ? kNowhere : Element::kBytes * key_offset(key, stride, h_kv);
}

// Starts the copy of the rows that the warp has from copy `first` on; before: bytes before the row
// that this thread has looked up. Rows that lie nowhere, and padding columns, become zeros.
template <int kRows, int kDim, int kThreads>
ATT_FN void load_looked_up(unsigned to, const void* tensor, long long before, int thread,
                           int first) {
  using Shares = RowShares<kRows, kDim, kThreads>;
  using Layout = typename Shares::Layout;
  const int unit = thread & (Shares::kColumns - 1);
  const int row = thread / Shares::kColumns;
  const bool has_column = Shares::kUnits == Shares::kColumns || unit < Shares::kUnits;
  const char* const column = static_cast<const char*>(tensor) + unit * 16;
#pragma unroll
  for (int i = 0; i < Shares::kCopiesOfLookUp; ++i) {
    const int copied = row + (first + i) * Shares::kRowStep;
    const long long at = shuffle_long_from(before, i * Shares::kAtOnce + row % Shares::kAtOnce);
    if (has_column && (Shares::kIsExact || copied < kRows)) {
      cp_async_16_or_zero(to + Layout::offset(copied, unit), column + (at == kNowhere ? 0 : at),
                          at != kNowhere && unit * Element::kOfUnit < kDim);
    }
  }
}

// Starts the copy of a tile that lies within a page, from `key` on.
template <int kRows, int kDim, int kThreads>
ATT_FN void load_within_page(unsigned to, const void* tensor, const Strides& stride,
                             const PagedKey& key, int h_kv, int valid_rows, int thread) {
  const PagedKey known = {key.page < 0 ? 0 : key.page, key.row};
  const char* const from =
      static_cast<const char*>(tensor) + Element::kBytes * key_offset(known, stride, h_kv);
  load_rows<kRows, kDim, kThreads>(to, from, stride.seq * Element::kBytes,
                                   key.page < 0 ? 0 : valid_rows, thread);
}

// Whose keys are copied.
struct PagedSequence {
  const PageTable& table;
  int b, h_kv, kv_len;

  ATT_MEMBER PagedKey look_up(int key) const {
    if (key >= kv_len) return {-1, 0};
    return listed_key(table, b, key);
  }
};

// Starts a CTA's copy of the keys [k0, k0 + kRows), the first of which the sequence has.
template <int kRows, int kDim, int kThreads>
ATT_FN void load_paged_rows(unsigned to, const void* tensor, const Strides& stride,
                            const PagedSequence& from, int k0) {
  using Shares = RowShares<kRows, kDim, kThreads>;
  const int thread = thread_index();
  if (from.table.page_size % kRows == 0) {
    const PagedKey key = checked_key(from.table, from.look_up(k0));
    load_within_page<kRows, kDim, kThreads>(to, tensor, stride, key, from.h_kv, from.kv_len - k0,
                                            thread);
    return;
  }
#pragma unroll
  for (int first = 0; first < Shares::kCopies; first += Shares::kCopiesOfLookUp) {
    const int row = Shares::row(thread, first);
    const PagedKey key =
        checked_key(from.table, row < kRows ? from.look_up(k0 + row) : PagedKey{-1, 0});
    load_looked_up<kRows, kDim, kThreads>(to, tensor, bytes_before(key, stride, from.h_kv), thread,
                                          first);
  }
}

// A warp's steps of kRows keys, each looked up while the copy of the one before is on its way: lane
// i has looked up row i, and row i - kRows.
template <int kRows>
struct PageSteps {
  static_assert(kRows == 16 || kRows == 32);
  PagedKey ahead;  // as listed: nothing waits for it before it is used

  ATT_MEMBER void look_up(const PagedSequence& from, int k0) {
    ahead = from.look_up(k0 + lane_index() % kRows);
  }

  // Starts the copy of what was looked up, [k0, k0 + kRows).
  template <int kDim>
  ATT_MEMBER void load(unsigned to, const void* tensor, const Strides& stride,
                       const PagedSequence& from, int k0) const {
    const PagedKey own = checked_key(from.table, ahead);
    if (from.table.page_size % kRows == 0) {
      const PagedKey first = {shuffle_from(own.page, 0), shuffle_from(own.row, 0)};
      load_within_page<kRows, kDim, 32>(to, tensor, stride, first, from.h_kv, from.kv_len - k0,
                                        lane_index());
    } else {
      load_looked_up<kRows, kDim, 32>(to, tensor, bytes_before(own, stride, from.h_kv),
                                      lane_index(), 0);
    }
  }
};

}  // namespace att
