// Dropout of a tile of P, the same bits as every other family: Philox4x32-7 (Salmon et al. 2011),
// one call for the 16 elements of a 16 x 32 block that one thread of an mma accumulator would own.
#pragma once

#include "templates/cpu/vector.h"
#include "templates/tile/dropout_state.h"

namespace att {

constexpr int kDropoutQueries = 16, kDropoutKeys = 32;  // of a block

// The random bytes of the block of queries [16 q_block, ...) and keys [32 k_block, ...), those of a
// query together or those of a key. The 32 calls are the inner loop, so that they become vector
// code.
template <bool kByQuery>
ATT_INLINE void dropout_bytes(const ForwardParams& p, int b, int h, int q_block, int k_block,
                              unsigned char (&bytes)[kDropoutQueries * kDropoutKeys]) {
  constexpr int kCalls = 32;  // 8 query rows x 4 key pairs
  constexpr unsigned kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  unsigned c0[kCalls], c1[kCalls], c2[kCalls], c3[kCalls];
  for (int call = 0; call < kCalls; ++call) {
    c0[call] = static_cast<unsigned>(k_block * 4 + call / 8);
    c1[call] = static_cast<unsigned>(q_block * 8 + call % 8);
    c2[call] = static_cast<unsigned>(b * p.heads + h);
    c3[call] = static_cast<unsigned>(dropout_offset(p));
  }
  unsigned key0 = static_cast<unsigned>(dropout_seed(p));
  unsigned key1 =
      static_cast<unsigned>(dropout_seed(p) >> 32) + static_cast<unsigned>(dropout_offset(p) >> 32);
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
  constexpr int kLength = kByQuery ? kDropoutKeys : kDropoutQueries;
  for (int i = 0; i < kDropoutQueries * kDropoutKeys / kLength; ++i) {
    for (int j = 0; j < kLength; ++j) {
      const int q = kByQuery ? i : j, k = kByQuery ? j : i;
      const int call = (k % 8) / 2 * 8 + q % 8;
      const int byte = q / 8 * 8 + k / 8 * 2 + k % 2;
      const unsigned word = byte < 4    ? c0[call]
                            : byte < 8  ? c1[call]
                            : byte < 12 ? c2[call]
                                        : c3[call];
      bytes[i * kLength + j] = static_cast<unsigned char>(word >> (byte % 4 * 8));
    }
  }
}

// What a dropped element becomes. The sign of P is free to say that it is dropped, where P itself
// is needed as well.
enum class Dropped { kZero, kNegative };
template <Dropped kBecomes>
ATT_INLINE float dropped(float value) {
  return kBecomes == Dropped::kZero ? 0.0f : -value;
}

// Elements [begin, end) of what starts at block * size, within that block.
struct BlockPart {
  int begin, end;
};
ATT_INLINE BlockPart part_of_block(int block, int size, int begin, int end) {
  const int first = block * size;
  return {begin > first ? begin - first : 0, end - first < size ? end - first : size};
}

// Drops of the queries [q0, q1) and keys [k0, k1) of a head. Element (q, k) is
// tile[(q - q0) * kQueryStride + (k - k0) * kKeyStride]; one of the strides is 1.
template <Dropped kBecomes, long kQueryStride, long kKeyStride>
ATT_INLINE void drop_elements(const ForwardParams& p, int b, int h, float* tile, int q0, int q1,
                              int k0, int k1) {
  constexpr bool kByQuery = kKeyStride == 1;
  static_assert(kByQuery || kQueryStride == 1);
  const unsigned below = spec::kDropoutAtLaunch ? p.dropout_drop_below : spec::kDropoutDropBelow;
  unsigned char bytes[kDropoutQueries * kDropoutKeys];
  for (int q_block = q0 / kDropoutQueries; q_block * kDropoutQueries < q1; ++q_block) {
    const BlockPart queries = part_of_block(q_block, kDropoutQueries, q0, q1);
    for (int k_block = k0 / kDropoutKeys; k_block * kDropoutKeys < k1; ++k_block) {
      const BlockPart keys = part_of_block(k_block, kDropoutKeys, k0, k1);
      dropout_bytes<kByQuery>(p, b, h, q_block, k_block, bytes);
      const long block = (q_block * kDropoutQueries - q0) * kQueryStride +
                         (k_block * kDropoutKeys - k0) * kKeyStride;
      const BlockPart rows = kByQuery ? queries : keys;
      const BlockPart columns = kByQuery ? keys : queries;
      constexpr int kLength = kByQuery ? kDropoutKeys : kDropoutQueries;
      for (int i = rows.begin; i < rows.end; ++i) {
        const long row = block + i * (kByQuery ? kQueryStride : kKeyStride);
        for (int j = columns.begin; j < columns.end; ++j) {
          float& element = tile[row + j];
          element = bytes[i * kLength + j] < below ? dropped<kBecomes>(element) : element;
        }
      }
    }
  }
}

}  // namespace att
