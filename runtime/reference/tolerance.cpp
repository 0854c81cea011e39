#include "runtime/reference/tolerance.hpp"

#include <algorithm>

namespace attune {
namespace {

struct Rounding {
  double unit, smallest;  // of a normal value, of a subnormal one
};
Rounding rounding_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {0x1p-11, 0x1p-25};
    case DType::kBf16:
      return {0x1p-8, 0x1p-126};  // hardware may flush
    case DType::kF32:
      return {kFp32Unit, 0x1p-126};
    case DType::kFp8E4m3:
      break;
  }
  return {0x1p-4, 0x1p-10};
}

ErrorModel model_of_dtype(DType dtype, Arithmetic arithmetic, Precision precision) {
  const Rounding o = rounding_of(dtype);
  // Normalising O is a reciprocal and two products.
  ErrorModel model{.o_unit = o.unit + 4 * kFp32Unit, .o_smallest = o.smallest};
  if (arithmetic == Arithmetic::kVector) {
    model.exponent_reach = 4;
    model.lse_unit = model.lse_smallest = 4 * kFp32Unit;
    return model;
  }
  if (dtype == DType::kF32) {
    // References stay near the largest score, and what logarithms are taken of is at least 1.
    model.exponent_reach = 32;
    model.lse_unit = 4 * kFp32Unit;
    model.lse_smallest = 0x1p-21;
    if (precision == Precision::kTf32) {
      model.p_unit = kTf32Unit;
      model.truncation = kFp32Unit / 8;  // a step is 8 keys
    }
    return model;
  }
  model.p_unit = o.unit;
  // A reference may lie 8 binary orders above a row's first scores.
  if (dtype == DType::kF16) model.p_smallest = 0x1p8 * o.smallest;
  model.truncation = kFp32Unit / 16;  // a step is 16 keys
  model.exponent_reach = 64;
  // lg2.approx errs by 2^-22, of a sum that a reference may put 40 binary orders below 1.
  model.lse_unit = 0x1p-22;
  model.lse_smallest = 40 * 0x1p-22;
  return model;
}

}  // namespace

Arithmetic arithmetic_of(Target target) {
  return target == Target::kCpu ? Arithmetic::kVector : Arithmetic::kMatrixUnit;
}

ErrorModel error_model(const AttentionSpec& spec, Arithmetic arithmetic) {
  ErrorModel model = model_of_dtype(spec.dtype, arithmetic, spec.precision);
  if (!has_scaled_cache(spec)) return model;
  // An element times its scale is one more rounding, of K or of a score, of V or of P.
  model.product_unit = std::max(model.product_unit, kFp32Unit);
  model.p_unit = kFp32Unit;
  if (arithmetic == Arithmetic::kMatrixUnit) {
    // P times the scale of V may be any number, so it is a bf16, whatever Q is.
    model.p_unit += rounding_of(DType::kBf16).unit;
    model.p_smallest = 0;
  }
  return model;
}

}  // namespace attune
