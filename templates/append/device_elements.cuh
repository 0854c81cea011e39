// Stored elements on a GPU, and as fp32.
#pragma once

#include "templates/kernels/append_head.cuh"

namespace att {

struct Half {
  unsigned short bits;
};
struct BFloat {
  unsigned short bits;
};

ATT_FN float to_float(float value) { return value; }
ATT_FN float to_float(Half value) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(value.bits));
  return out;
}
ATT_FN float to_float(BFloat value) {
  return __builtin_bit_cast(float, static_cast<unsigned>(value.bits) << 16);
}
ATT_FN void from_float(float value, float& to) { to = value; }
ATT_FN void from_float(float value, Half& to) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(value));
}
ATT_FN void from_float(float value, BFloat& to) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(value));
}

template <DType kType>
struct StorageOf {
  using Type = BFloat;
};
template <>
struct StorageOf<DType::f16> {
  using Type = Half;
};
template <>
struct StorageOf<DType::f32> {
  using Type = float;
};
using Storage = StorageOf<spec::kDType>::Type;

}  // namespace att
