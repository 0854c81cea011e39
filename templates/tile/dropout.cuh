// Which elements of P are dropped: a pure function of (seed, offset, b, h, q_idx, kv_idx), so every
// tile size, family and pass drops the same ones.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/tile/dropout_state.h"

namespace att {

// Philox4x32 with 7 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011):
// one statement, since 70 operations in ten copies cost the optimizer 6 % of a kernel's compile
// time.
#define ATT_PHILOX_ROUND_                                                            \
  "mul.wide.u32 p, %0, 0xD2511F53;\nmul.wide.u32 q, %2, 0xCD9E8D57;\n"               \
  "xor.b32 a, %1, k;\nxor.b32 b, %3, l;\nmov.b64 {%3, c}, p;\nmov.b64 {%1, d}, q;\n" \
  "xor.b32 %0, d, a;\nxor.b32 %2, c, b;\nadd.u32 k, k, 0x9E3779B9;\nadd.u32 l, l, 0xBB67AE85;\n"
ATT_FN void philox_7(unsigned (&counter)[4], unsigned key0, unsigned key1) {
  asm("{\n.reg .b64 p, q;\n.reg .b32 a, b, c, d, k, l;\nmov.b32 k, %4;\nmov.b32 l, "
      "%5;\n" ATT_PHILOX_ROUND_ ATT_PHILOX_ROUND_ ATT_PHILOX_ROUND_ ATT_PHILOX_ROUND_
          ATT_PHILOX_ROUND_ ATT_PHILOX_ROUND_ ATT_PHILOX_ROUND_ "}"
      : "+r"(counter[0]), "+r"(counter[1]), "+r"(counter[2]), "+r"(counter[3])
      : "r"(key0), "r"(key1));
}
#undef ATT_PHILOX_ROUND_

// The random bytes of the 16 elements that one lane of an m16n8 accumulator owns in a block of 16
// queries x 32 keys: queries 16 * q_block + row and + row + 8, row = 0..7; keys
// 32 * kv_block + 8 * n + 2 * pair + {0, 1}, n = 0..3, pair = 0..3. Byte i of word w (4w + i from
// 0) is element (query half, n, key parity) = (byte / 8, byte / 2 % 4, byte % 2).
ATT_FN void dropout_words(const Context& c, int q_block, int row, int kv_block, int pair,
                          unsigned (&words)[4]) {
  const unsigned long long seed = dropout_seed(c.params);
  const unsigned long long offset = dropout_offset(c.params);
  words[0] = static_cast<unsigned>(kv_block * 4 + pair);
  words[1] = static_cast<unsigned>(q_block * 8 + row);
  words[2] = static_cast<unsigned>(c.b * c.params.heads + c.h);
  words[3] = static_cast<unsigned>(offset);
  philox_7(words, static_cast<unsigned>(seed),
           static_cast<unsigned>(seed >> 32) + static_cast<unsigned>(offset >> 32));
}

// Of 256: an element is dropped when its byte is below.
ATT_FN unsigned dropout_drop_below(const Context& c) {
  return spec::kDropoutAtLaunch ? c.params.dropout_drop_below : spec::kDropoutDropBelow;
}

ATT_FN float dropout_keep_scale(const Context& c) {
  return spec::kDropoutAtLaunch ? c.params.dropout_keep_scale : spec::kDropoutKeepScale;
}

// The top bit of each byte of the result: that byte of `word` is not below `drop_below`. A byte's
// low seven bits never borrow from its neighbour once its top bit is set.
ATT_FN unsigned dropout_keep_bits(unsigned word, unsigned drop_below) {
  const unsigned low = (word | 0x80808080u) - (drop_below & 127u) * 0x01010101u;
  return drop_below < 128u ? word | low : word & low;
}

}  // namespace att
