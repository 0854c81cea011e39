// Dropout on packed mma fragments.
#pragma once

#include "templates/ptx/math.cuh"
#include "templates/tile/dropout.cuh"

namespace att {

// Clears the dropped elements of p[m][j], the A fragments of queries q0 + 16m and keys k0 + 16j.
// kGroups is 2: one draw serves 32 keys. q0 is a multiple of 16, k0 of 32.
template <int kBlocks, int kGroups>
ATT_FN void drop_elements(unsigned (&p)[kBlocks][kGroups][4], const Context& c, int q0, int k0) {
  static_assert(kGroups == 2);
  const int lane = lane_index();
  const unsigned drop_below = dropout_drop_below(c);
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    unsigned words[4];
    dropout_words(c, q0 / 16 + m, lane / 4, k0 / 32, lane % 4, words);
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // queries g, then g + 8
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const unsigned keep = dropout_keep_bits(words[2 * half + j], drop_below);
        p[m][j][half] &= byte_permute(keep, 0u, 0x9988u);
        p[m][j][half + 2] &= byte_permute(keep, 0u, 0xbbaau);
      }
    }
  }
}

}  // namespace att
