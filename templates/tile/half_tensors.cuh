// Look-ups of auxiliary tensors of 16-bit floats, as float: a kernel has this file where its spec
// declares such a tensor.
#pragma once

#include "templates/tile/ranges.cuh"

namespace att {

// What tensor_range() and the pre-pass call the elements.
struct Float16 {
  unsigned short bits;
};
struct BFloat16 {
  unsigned short bits;
};

ATT_FN unsigned load_u16(const TensorArg& tensor, long long offset) {
  const unsigned short* at = static_cast<const unsigned short*>(tensor.data) + offset;
#if ATT_DEVICE_CODE
  unsigned short value;
  asm("ld.global.nc.u16 %0, [%1];" : "=h"(value) : "l"(at));
  return value;
#else
  return *at;
#endif
}
ATT_FN float load_f16(const TensorArg& tensor, long long offset) {
  const unsigned bits = load_u16(tensor, offset);
#if ATT_DEVICE_CODE
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(bits)));
  return value;
#else
  // Exponent and fraction moved into place, and 2^112 for the exponents' other bias.
  const unsigned size = (bits & 0x7fffu) << 13, sign = (bits & 0x8000u) << 16;
  const unsigned moved = __builtin_bit_cast(unsigned, __builtin_bit_cast(float, size) * 0x1p112f);
  const bool is_finite = size < 0x0f800000u;
  return __builtin_bit_cast(float, sign | (is_finite ? moved : size | 0x7f800000u));
#endif
}
ATT_FN float load_bf16(const TensorArg& tensor, long long offset) {
  return __builtin_bit_cast(float, load_u16(tensor, offset) << 16);
}

// Element `index` of a row, the offset of whose first element is `row`. Index is int or what stands
// for one (columns.cuh).
template <typename Index>
ATT_FN float load_f16(const TensorArg& tensor, long long row, const Index& index) {
  return load_f16(tensor, row + static_cast<int>(index));
}
template <typename Index>
ATT_FN float load_bf16(const TensorArg& tensor, long long row, const Index& index) {
  return load_bf16(tensor, row + static_cast<int>(index));
}

// Their pairs are of float.
template <>
struct RangeOf<Float16> {
  using Type = FloatRange;
  using Stored = float;
  ATT_FN FloatRange everything() { return RangeOf<float>::everything(); }
  ATT_FN FloatRange nothing() { return RangeOf<float>::nothing(); }
  ATT_FN float load(const TensorArg& tensor, long long at) { return load_f16(tensor, at); }
  ATT_FN FloatRange load_cell(const TensorArg& tensor, long long at, bool pairs) {
    if (pairs) return RangeOf<float>::load_cell(tensor, at, pairs);
    const float value = load(tensor, at);
    return {value, value};
  }
};
template <>
struct RangeOf<BFloat16> {
  using Type = FloatRange;
  using Stored = float;
  ATT_FN FloatRange everything() { return RangeOf<float>::everything(); }
  ATT_FN FloatRange nothing() { return RangeOf<float>::nothing(); }
  ATT_FN float load(const TensorArg& tensor, long long at) { return load_bf16(tensor, at); }
  ATT_FN FloatRange load_cell(const TensorArg& tensor, long long at, bool pairs) {
    if (pairs) return RangeOf<float>::load_cell(tensor, at, pairs);
    const float value = load(tensor, at);
    return {value, value};
  }
};

}  // namespace att
