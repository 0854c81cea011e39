// Dropout of a tile of P, the same bits as every other family: Philox4x32-7 (Salmon et al. 2011),
// one call for the 16 elements of a 16 x 32 block that one thread of an mma accumulator would own.
#pragma once

#include "templates/cpu/vector.h"
#include "templates/cpu/work.h"

namespace att {

// The 512 random bytes of the block of queries [16 q_block, ...) and keys [32 k_block, ...), by
// key, then query. The 32 calls are the inner loop, so that they become vector code.
ATT_INLINE void dropout_bytes(const ForwardParams& p, int b, int h, int q_block, int k_block,
                              unsigned char (&bytes)[32][16]) {
  constexpr int kCalls = 32;  // 8 query rows x 4 key pairs
  constexpr unsigned kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  unsigned c0[kCalls], c1[kCalls], c2[kCalls], c3[kCalls];
  for (int call = 0; call < kCalls; ++call) {
    c0[call] = static_cast<unsigned>(k_block * 4 + call / 8);
    c1[call] = static_cast<unsigned>(q_block * 8 + call % 8);
    c2[call] = static_cast<unsigned>(b * p.heads + h);
    c3[call] = static_cast<unsigned>(p.dropout_offset);
  }
  unsigned key0 = static_cast<unsigned>(p.dropout_seed);
  unsigned key1 =
      static_cast<unsigned>(p.dropout_seed >> 32) + static_cast<unsigned>(p.dropout_offset >> 32);
  for (int round = 0; round < 7; ++round) {
    for (int call = 0; call < kCalls; ++call) {
      const unsigned long long product0 = static_cast<unsigned long long>(kMultiplier0) * c0[call];
      const unsigned long long product1 = static_cast<unsigned long long>(kMultiplier1) * c2[call];
      c0[call] = static_cast<unsigned>(product1 >> 32) ^ c1[call] ^ key0;
      c2[call] = static_cast<unsigned>(product0 >> 32) ^ c3[call] ^ key1;
      c1[call] = static_cast<unsigned>(product1);
      c3[call] = static_cast<unsigned>(product0);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int k = 0; k < 32; ++k) {
    for (int q = 0; q < 16; ++q) {
      const int call = (k % 8) / 2 * 8 + q % 8;
      const int byte = q / 8 * 8 + k / 8 * 2 + k % 2;
      const unsigned word = byte < 4    ? c0[call]
                            : byte < 8  ? c1[call]
                            : byte < 12 ? c2[call]
                                        : c3[call];
      bytes[k][q] = static_cast<unsigned char>(word >> (byte % 4 * 8));
    }
  }
}

// Zeroes the dropped elements of p[key][row] for the keys [k0, k0 + keys), k0 a multiple of 32, and
// the item's rows [row0, row1). The kept ones are scaled at the end, through O.
static __attribute__((noinline)) void drop(const ForwardParams& p, const Item& item, float* tile,
                                           long stride, int k0, int keys, int row0, int row1) {
  const unsigned below = spec::kDropoutAtLaunch ? p.dropout_drop_below : spec::kDropoutDropBelow;
  const int queries = item.queries();
  unsigned char bytes[32][16];
  for (int head = row0 / queries; head * queries < row1; ++head) {
    // Rows of this head in the tile, as queries.
    const int from = row0 > head * queries ? row0 - head * queries : 0;
    const int to = row1 - head * queries < queries ? row1 - head * queries : queries;
    for (int q_block = (item.q0 + from) / 16; q_block * 16 < item.q0 + to; ++q_block) {
      const int q_first = q_block * 16 > item.q0 + from ? q_block * 16 : item.q0 + from;
      const int q_last = q_block * 16 + 16 < item.q0 + to ? q_block * 16 + 16 : item.q0 + to;
      float* column = tile + head * queries + q_first - item.q0 - row0;
      for (int k = 0; k < keys; k += 32) {
        dropout_bytes(p, item.b, item.h0 + head, q_block, (k0 + k) / 32, bytes);
        const int count = keys - k < 32 ? keys - k : 32;
        for (int i = 0; i < count; ++i) {
          float* row = column + (k + i) * stride;
          for (int q = q_first; q < q_last; ++q) {
            row[q - q_first] = bytes[i][q % 16] < below ? 0.0f : row[q - q_first];
          }
        }
      }
    }
  }
}

}  // namespace att
