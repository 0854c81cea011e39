// Softmax on the accumulators of a warpgroup's QK product: a thread holds two rows (see
// templates/ptx/wgmma.cuh), and its exponentials are, packed, the A operand of the PV product.
#pragma once

#include "templates/ptx/convert.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/dropout.cuh"
#include "templates/tile/row_mask.cuh"
#include "templates/tile/sm90_layout.cuh"

namespace att {
namespace sm90 {

using Scores = float[kPieceKeys / 2];         // of one piece of a tile
using Probabilities = unsigned[kPvSteps][4];  // A fragments, one a step of 16 keys
using Output = float[spec::kHeadDimV / 2];

// With a frozen maximum P, the row sum and O may grow after the reference was chosen. fp32 and bf16
// have room for 2^64; fp16 ends at 2^16, so there the reference lies 8 above the maximum.
constexpr float kFrozenOffset = kBf16 ? 0.0f : 8.0f;
constexpr float kFrozenLimit = kBf16 ? 18446744073709551616.0f : 32768.0f;

// Where a thread's elements are: rows `row` and `row` + 8, keys `key` + 8j + {0, 1}.
struct Position {
  int row, key;
};

struct RowState {
  float maximum[2];    // of the scores so far, log2 units
  float reference[2];  // what the exponentials subtract
  float sum[2];        // of the exponentials of this thread's columns
};

ATT_FN float softmax_scale(const ForwardParams& p) {
  return spec::kScaleAtLaunch ? p.softmax_scale : spec::kSoftmaxScale;
}

// Puts -inf where the mask or kv_len leaves no key.
ATT_FN void mask_scores(const Context& c, Scores& s, const Position& at) {
  const RowMask masks[2] = {row_mask(c, at.row, at.key), row_mask(c, at.row + 8, at.key)};
#pragma unroll
  for (int i = 0; i < kPieceKeys / 2; ++i) {
    if (!is_live(c, masks[i / 2 % 2], i / 4 * 8 + (i & 1))) s[i] = -infinity();
  }
}

// Applies scale, score and, where the tile is not full, mask and kv_len: log2 units afterwards.
ATT_FN void scores_to_log2(const Context& c, Scores& s, const Position& at, bool full) {
  const float scale = softmax_scale(c.params);
#pragma unroll
  for (int i = 0; i < kPieceKeys / 2; ++i) {
    if constexpr (spec::kHasScore) {
      const int row = at.row + (i & 2) * 4;
      const int key = at.key + i / 4 * 8 + (i & 1);
      s[i] = score(c, s[i] * scale, row, key) * kLog2E;
    } else {
      s[i] *= scale * kLog2E;
    }
  }
  if (!full) mask_scores(c, s, at);
}

// s = exp2(multiplier * s - reference), and its sum: all that the steady loop does to an element,
// beside packing it.
ATT_FN void exponentials(Scores& s, RowState& rows, float multiplier) {
#pragma unroll
  for (int i = 0; i < kPieceKeys / 2; ++i) {
    const int half = i / 2 % 2;
    s[i] = math_exp2(s[i] * multiplier - rows.reference[half]);
    rows.sum[half] += s[i];
  }
}

// Zeroes the dropped elements of two steps of 16 keys (32 keys, whose first is `key`).
ATT_FN void drop(const Context& c, unsigned (&even)[4], unsigned (&odd)[4], int row, int key,
                 unsigned drop_below) {
  unsigned words[4];
  dropout_words(c, row / 16, row % 8, key / 32, thread_index() % 4, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned selector = i < 2 ? 0x9988u : 0xBBAAu;
    even[i] &= byte_permute(dropout_keep_bits(words[(i & 1) * 2], drop_below), 0, selector);
    odd[i] &= byte_permute(dropout_keep_bits(words[(i & 1) * 2 + 1], drop_below), 0, selector);
  }
}

// The exponentials as the PV product's A operand, some of them dropped.
ATT_FN void pack(const Context& c, const Scores& s, Probabilities& p, const Position& at) {
#pragma unroll
  for (int step = 0; step < kPvSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      p[step][i] = pack_2<spec::kDType>(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
    }
    if constexpr (spec::kHasDropout) {
      if (step % 2 == 1) {
        drop(c, p[step - 1], p[step], at.row, at.key / 32 * 32 + (step - 1) * 16,
             dropout_drop_below(c));
      }
    }
  }
}

// A step of the steady loop, whose reference is fixed.
ATT_FN void softmax_frozen(const Context& c, Scores& s, RowState& rows, const Position& at,
                           bool full) {
  // A positive constant scale leaves -inf as it is, and stays an immediate operand of the FFMA.
  constexpr bool kMaskUnscaled = !spec::kScaleAtLaunch && spec::kSoftmaxScale > 0.0f;
  float multiplier = 1.0f;
  if constexpr (spec::kHasScore) {
    scores_to_log2(c, s, at, full);
  } else {
    multiplier = softmax_scale(c.params) * kLog2E;
    if (spec::kHasMask && !full) {
      if constexpr (kMaskUnscaled) {
        mask_scores(c, s, at);
      } else {
        scores_to_log2(c, s, at, false);
        multiplier = 1.0f;
      }
    }
  }
  exponentials(s, rows, multiplier);
}

// A step of the online softmax: raises the maximum to this tile's, and scales what was summed
// before.
ATT_FN void softmax_running(const Context& c, Scores& s, RowState& rows, Output& o,
                            const Position& at, bool full, bool first, float offset) {
  scores_to_log2(c, s, at, full);
  float correction[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float tile_maximum = -infinity();
#pragma unroll
    for (int i = 0; i < kPieceKeys / 2; ++i) {
      if (i / 2 % 2 == half) tile_maximum = math_max(tile_maximum, s[i]);
    }
    tile_maximum = math_max(tile_maximum, shuffle_xor(tile_maximum, 1));
    tile_maximum = math_max(tile_maximum, shuffle_xor(tile_maximum, 2));
    const float old_reference = rows.maximum[half] + offset;
    rows.maximum[half] = math_max(rows.maximum[half], tile_maximum);
    rows.reference[half] = (rows.maximum[half] == -infinity() ? 0.0f : rows.maximum[half]) + offset;
    correction[half] = math_exp2(old_reference - rows.reference[half]);
    rows.sum[half] *= correction[half];
  }
#pragma unroll
  for (int i = 0; i < spec::kHeadDimV / 2; ++i) {
    o[i] = first ? 0.0f : o[i] * correction[i / 2 % 2];
  }
  exponentials(s, rows, 1.0f);
}

}  // namespace sm90
}  // namespace att
