// Rows of a cache of fp8 (e4m3) as fp32, each element times its scale. Those of a page, or of a
// sequence that has none, lie one behind the other and share a scale.
#pragma once

#include "templates/cpu/cache_rows.h"

namespace att {

// Sign, 4 bits of exponent, 3 of the number: seven places to the left they are an fp16 of 2^-8
// times the value, subnormal ones too. All ones are NaN, which an fp16 has elsewhere.
ATT_INLINE float fp8_to_float(unsigned char bits) {
  const auto half = static_cast<unsigned short>((bits & 0x80u) << 8 | (bits & 0x7fu) << 7);
  const float value = static_cast<float>(__builtin_bit_cast(_Float16, half)) * 256.0f;
  return (bits & 0x7fu) == 0x7fu ? __builtin_nanf("") : value;
}

ATT_INLINE float scale_at(const CacheScales& scales, int slice, int head) {
  return scales.values == nullptr ? 1.0f : scales.values[slice * scales.slice + head * scales.head];
}

template <>
struct CacheRows<DType::f8_e4m3> {
  template <int kDim, int kRows>
  ATT_INLINE Rows k_rows(const ForwardParams& p, const Item& item, int first, int count, int padded,
                         float (&copy)[kRows][kDim]) {
    return rows(p, p.k, p.k_stride, static_cast<const LaunchParams&>(p).k_scales, item, first,
                count, padded, copy);
  }
  template <int kDim, int kRows>
  ATT_INLINE Rows v_rows(const ForwardParams& p, const Item& item, int first, int count, int padded,
                         float (&copy)[kRows][kDim]) {
    return rows(p, p.v, p.v_stride, static_cast<const LaunchParams&>(p).v_scales, item, first,
                count, padded, copy);
  }

 private:
  // `count` rows of one scale, `stride` apart; `from` null: zeros.
  template <int kDim, int kRows>
  ATT_INLINE void copy_scaled(const unsigned char* from, long stride, float scale, int row,
                              int count, float (&copy)[kRows][kDim]) {
    for (int end = row + count; row < end; ++row) {
      for (int i = 0; i < kDim; ++i) {
        copy[row][i] = from == nullptr ? 0.0f : fp8_to_float(from[i]) * scale;
      }
      if (from != nullptr && row + 1 < end) from += stride;
    }
  }

  template <int kDim, int kRows>
  ATT_INLINE Rows rows(const ForwardParams& p, const void* base, const Strides& stride,
                       const CacheScales& scales, const Item& item, int first, int count,
                       int padded, float (&copy)[kRows][kDim]) {
    const auto* const bytes = static_cast<const unsigned char*>(base);
    if constexpr (spec::kIsPaged) {
      const PageTable& table = page_table_of(p);
      for (int row = 0; row < count;) {
        const PagedKey key = paged_key(table, item.b, first + row);
        const int left = table.page_size - key.row;
        const int own = left < count - row ? left : count - row;
        const bool exists = key.page >= 0;
        copy_scaled(exists ? bytes + key_offset(key, stride, item.h_kv) : nullptr, stride.seq,
                    exists ? scale_at(scales, key.page, item.h_kv) : 0.0f, row, own, copy);
        row += own;
      }
    } else {
      copy_scaled(bytes + key_offset(item.sequence, stride, item.h_kv, first), stride.seq,
                  scale_at(scales, item.sequence.slice, item.h_kv), 0, count, copy);
    }
    copy_scaled(nullptr, 0, 0.0f, count, padded - count, copy);
    return {&copy[0][0], kDim};
  }
};

}  // namespace att
