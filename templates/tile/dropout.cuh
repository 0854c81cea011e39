// Which elements of P are dropped: a pure function of (seed, offset, b, h, q_idx, kv_idx), so every
// tile size, family and pass drops the same ones.
#pragma once

#include "templates/kernels/head.cuh"

namespace att {

// Philox4x32 with 7 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
ATT_FN void philox_7(unsigned (&counter)[4], unsigned key0, unsigned key1) {
#pragma unroll
  for (int round = 0; round < 7; ++round) {
    const unsigned long long product0 = 0xD2511F53ull * counter[0];
    const unsigned long long product1 = 0xCD9E8D57ull * counter[2];
    counter[0] = static_cast<unsigned>(product1 >> 32) ^ counter[1] ^ key0;
    counter[1] = static_cast<unsigned>(product1);
    counter[2] = static_cast<unsigned>(product0 >> 32) ^ counter[3] ^ key1;
    counter[3] = static_cast<unsigned>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// The random bytes of the 16 elements that one lane of an m16n8 accumulator owns in a block of 16
// queries x 32 keys: queries 16 * q_block + row and + row + 8, row = 0..7; keys
// 32 * kv_block + 8 * n + 2 * pair + {0, 1}, n = 0..3, pair = 0..3. Byte i of word w (4w + i from
// 0) is element (query half, n, key parity) = (byte / 8, byte / 2 % 4, byte % 2).
ATT_FN void dropout_words(const Context& c, int q_block, int row, int kv_block, int pair,
                          unsigned (&words)[4]) {
  const unsigned long long seed = c.params.dropout_seed;
  const unsigned long long offset = c.params.dropout_offset;
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
