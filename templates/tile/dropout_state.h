// Seed and offset of dropout, for every family: numbers of the launch, or of the device's memory.
// Those are read wherever elements are drawn: the compiler keeps them from one draw to the next
// where it has the registers.
#pragma once

#include "templates/kernels/head.cuh"

namespace att {

ATT_FN unsigned long long load_dropout_state(const ForwardParams& p, int word) {
  const auto* at = reinterpret_cast<const unsigned long long*>(p.dropout_seed) + word;
#if ATT_DEVICE_CODE
  unsigned long long value;
  asm("ld.global.nc.u64 %0, [%1];" : "=l"(value) : "l"(at));
  return value;
#else
  return *at;
#endif
}

ATT_FN unsigned long long dropout_seed(const ForwardParams& p) {
  if constexpr (spec::kDropoutSeedOnDevice) {
    return load_dropout_state(p, 0);
  } else {
    return p.dropout_seed;
  }
}

ATT_FN unsigned long long dropout_offset(const ForwardParams& p) {
  if constexpr (spec::kDropoutSeedOnDevice) {
    return load_dropout_state(p, 1);
  } else {
    return p.dropout_offset;
  }
}

}  // namespace att
