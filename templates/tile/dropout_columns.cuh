// Dropout where an accumulator's rows are keys and its columns queries, as in a backward kernel.
#pragma once

#include "templates/ptx/shuffles.cuh"
#include "templates/tile/dropout.cuh"

namespace att {

// The random words of a block of 16 queries and the 16 keys of a warp's accumulator rows, which
// begin at a multiple of 16. Lane 4g + t holds keys g and g + 8 and queries 2t, 2t + 1, and these
// + 8. Lanes whose keys are a pair need the same two draws: each makes one.
struct ColumnDropout {
  unsigned even[4], odd[4];  // of queries 2t and 2t + 1

  ATT_MEMBER ColumnDropout(const Context& c, int q_block, int kv_block) {
    const int lane = thread_index() % 32;
    const bool is_odd = (lane / 4 & 1) != 0;
    unsigned own[4];
    dropout_words(c, q_block, lane % 4 * 2 + (is_odd ? 1 : 0), kv_block, lane / 8, own);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned other = shuffle_xor(own[i], 4);
      even[i] = is_odd ? other : own[i];
      odd[i] = is_odd ? own[i] : other;
    }
  }

  // Whether the element of query 8 * q_half + 2t + q_odd and of key g + 8 * key_half stays;
  // `key_block` is the first key's block of 8 in its 32.
  ATT_MEMBER bool keeps(int q_half, int q_odd, int key_block, int key_half,
                        unsigned drop_below) const {
    const unsigned(&words)[4] = q_odd != 0 ? odd : even;
    // The block is 0 or 2, so that the word is known where the loop is unrolled.
    const unsigned word = key_block == 0 ? words[2 * q_half] : words[2 * q_half + 1];
    const int byte = key_half * 2 + (thread_index() % 32 / 4 & 1);
    return (word >> 8 * byte & 0xffu) >= drop_below;
  }
};

}  // namespace att
