// Seed and offset of dropout, for every family: numbers of the launch, or of the device's memory.
#pragma once

#include "templates/kernels/head.cuh"

namespace att {

struct DropoutState {
  unsigned long long seed, offset;
};
ATT_FN unsigned long long load_dropout_word(const unsigned long long* at) {
#if ATT_DEVICE_CODE
  unsigned long long value;
  asm("ld.global.nc.u64 %0, [%1];" : "=l"(value) : "l"(at));
  return value;
#else
  return *at;
#endif
}
// Those of the device are read wherever elements are drawn: the compiler keeps them from one draw to
// the next where it has the registers.
ATT_FN DropoutState dropout_state(const ForwardParams& p) {
  if constexpr (spec::kDropoutSeedOnDevice) {
    return {load_dropout_word(p.dropout_state), load_dropout_word(p.dropout_state + 1)};
  } else {
    return {p.dropout_seed, p.dropout_offset};
  }
}

}  // namespace att
