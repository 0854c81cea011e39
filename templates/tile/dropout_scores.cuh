// Dropout on a warp's accumulators, fp32.
#pragma once

#include "templates/tile/dropout.cuh"

namespace att {

// Clears the dropped elements of p[m][first ...], the probabilities of queries q0 + 16m and of the
// kKeys keys from k0 on: 32, which one draw serves, or half of them. q0 is a multiple of 16, k0 of
// kKeys.
template <int kKeys, int kBlocks, int kTiles>
ATT_FN void drop_probabilities(float (&p)[kBlocks][kTiles][4], int first, const Context& c, int q0,
                               int k0) {
  const int lane = lane_index();
  const unsigned drop_below = dropout_drop_below(c);
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    unsigned words[4];
    dropout_words(c, q0 / 16 + m, lane / 4, k0 / 32, lane % 4, words);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int byte = e / 2 * 8 + n * 2 + e % 2;
        unsigned word = words[byte / 4];
        if constexpr (kKeys == 16) {
          if (k0 / 16 % 2 != 0) word = words[byte / 4 + 1];
        }
        const bool keeps = (word >> byte % 4 * 8 & 0xffu) >= drop_below;
        p[m][first + n][e] = keeps ? p[m][first + n][e] : 0.0f;
      }
    }
  }
}

}  // namespace att
