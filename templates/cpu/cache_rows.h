// Tiles of K and V as fp32 rows, from how the cache holds them: in the dtype of Q, here;
// fp8_rows.h, which kernels of a cache of fp8 include first, has the other.
#pragma once

#include "templates/cpu/page_rows.h"
#include "templates/cpu/rows.h"
#include "templates/items.h"
#include "templates/sequence.h"

namespace att {

// The keys [first, first + count) of the item's sequence and K/V head. Rows from `count` to
// `padded` are zero.
template <DType kStored>
struct CacheRows {
  template <int kDim, int kRows>
  ATT_INLINE Rows k_rows(const ForwardParams& p, const Item& item, int first, int count, int padded,
                         float (&copy)[kRows][kDim]) {
    return rows(p, p.k, p.k_stride, item, first, count, padded, copy);
  }
  template <int kDim, int kRows>
  ATT_INLINE Rows v_rows(const ForwardParams& p, const Item& item, int first, int count, int padded,
                         float (&copy)[kRows][kDim]) {
    return rows(p, p.v, p.v_stride, item, first, count, padded, copy);
  }

 private:
  template <int kDim, int kRows>
  ATT_INLINE Rows rows(const ForwardParams& p, const void* base, const Strides& stride,
                       const Item& item, int first, int count, int padded,
                       float (&copy)[kRows][kDim]) {
    if constexpr (spec::kIsPaged) {
      const PagedRows from = {page_table_of(p), base, stride, item.b, item.h_kv};
      return paged_rows(from, first, count, padded, copy);
    }
    const Storage* from =
        static_cast<const Storage*>(base) + key_offset(item.sequence, stride, item.h_kv, first);
    return fp32_rows(from, stride.seq, count, padded, copy);
  }
};
using Cache = CacheRows<spec::kKvDType>;

}  // namespace att
