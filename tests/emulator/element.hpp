// Numbers of matrix products as floats.
#pragma once

#include <immintrin.h>

#include "tests/emulator/machine_calls.hpp"

namespace emu {

inline float widened(u16 bits, Element type) {
  if (type == Element::f16) return _cvtsh_ss(bits);
  return __builtin_bit_cast(float, static_cast<u32>(bits) << 16);
}
// Of which the tensor unit reads the upper 19 bits.
inline float tf32(u32 bits) { return __builtin_bit_cast(float, bits & ~0x1FFFu); }

}  // namespace emu
