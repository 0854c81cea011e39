// Operations on the bits of int32 that are no arithmetic: a kernel has this file where its mask,
// score or sink uses them. Arguments are ints, whatever stands for one (columns.cuh).
#pragma once

#include "templates/tile/head_support.cuh"

namespace att {

// By less than 0 or more than 31: all bits are shifted out.
ATT_FN int shift_left(int x, int bits) {
  const bool is_out = static_cast<unsigned>(bits) > 31u;
  return is_out ? 0 : static_cast<int>(static_cast<unsigned>(x) << (bits & 31));
}
ATT_FN int shift_right(int x, int bits) {
  return x >> (static_cast<unsigned>(bits) > 31u ? 31 : bits);
}
ATT_FN int bit_and(int x, int y) { return x & y; }
ATT_FN int bit_or(int x, int y) { return x | y; }
ATT_FN int bit_xor(int x, int y) { return x ^ y; }

}  // namespace att
