// Dropout where an accumulator's rows are keys and its columns queries, as in a backward kernel.
#pragma once

#include "templates/ptx/shuffles.cuh"
#include "templates/tile/dropout.cuh"

namespace att {

// Which elements stay of a block of 16 queries and the 16 keys of a warp's accumulator rows, which
// begin at `key_block` times 8 keys, an even number. Lane 4g + t holds keys g and g + 8 and queries
// 2t, 2t + 1, and these + 8. Lanes whose keys are a pair need the same two draws: each makes one,
// and they tell each other the bits. Bit 7 is that of the first query and key; column_keep_bit()
// knows the others.
ATT_FN unsigned column_keep_bits(const Context& c, int q_block, int key_block,
                                 unsigned drop_below) {
  const int lane = thread_index() % 32;
  const bool is_odd = (lane / 4 & 1) != 0;
  unsigned words[4];
  dropout_words(c, q_block, lane % 4 * 2 + (is_odd ? 1 : 0), key_block / 4, lane / 8, words);
  // A draw has 32 keys, the warp the first or the last half of them.
  const bool is_first = key_block % 4 == 0;
  constexpr unsigned kTop = 0x80808080u, kTopTwo = 0xc0c0c0c0u;
  const unsigned low = dropout_keep_bits(is_first ? words[0] : words[1], drop_below) & kTop;
  const unsigned high = dropout_keep_bits(is_first ? words[2] : words[3], drop_below) & kTop;
  const unsigned own = low | high >> 1;
  const unsigned other = shuffle_xor(own, 4);
  const unsigned even = is_odd ? other : own, odd = is_odd ? own : other;
  const unsigned bits = (even & kTopTwo) | (odd & kTopTwo) >> 2;
  return bits >> (is_odd ? 8 : 0) & 0x00f000f0u;
}
// Number of the bit of query 8 * q_half + 2t + q_odd and of key g + 8 * key_half.
ATT_FN constexpr int column_keep_bit(int q_half, int q_odd, int key_half) {
  return 7 - q_half - 2 * q_odd + 16 * key_half;
}

// Four blocks' bits have room in a word.
ATT_FN unsigned place_keep_bits(unsigned bits, int block) {
  return block == 0 ? bits : block == 1 ? bits >> 4 : block == 2 ? bits << 8 : bits << 4;
}
ATT_FN constexpr int placed_keep_bit(int bit, int block) {
  return block == 0 ? bit : block == 1 ? bit - 4 : block == 2 ? bit + 8 : bit + 4;
}

}  // namespace att
