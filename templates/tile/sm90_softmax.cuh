// Softmax on the accumulators of a warpgroup's QK product: a thread holds two rows (see
// templates/ptx/wgmma.cuh), and its exponentials are, packed, the A operand of the PV product.
#pragma once

#include "templates/ptx/convert.cuh"
#include "templates/ptx/fence.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/stmatrix.cuh"
#include "templates/tile/columns.cuh"
#include "templates/tile/dropout.cuh"
#include "templates/tile/logistic.cuh"
#include "templates/tile/negligible.cuh"
#include "templates/tile/quad.cuh"
#include "templates/tile/row_mask.cuh"
#include "templates/tile/sm90_layout.cuh"
#include "templates/tile/sm90_ways.cuh"
#include "templates/tile/softmax_scale.cuh"

namespace att {
namespace sm90 {

using Scores = float[kPieceKeys / 2];         // of one piece of a tile
using Probabilities = unsigned[kPvSteps][4];  // A fragments, one a step of 16 keys
using Output = float[kColumnsV / 2];

// With a frozen reference P, the row sum and O may grow after it was chosen. fp32 and bf16 have
// room for 2^126 both ways: the reference lies 40 above the first maximum, and a final sum below
// 2^115 proves that nothing overflowed. fp16 ends at 2^16, so there it lies 8 above.
// Where the first way has a constant it is 80: what that does not serve rather rises than stays.
constexpr float kFrozenOffset = kConstantReference ? 80.0f : kBf16 ? 40.0f : 8.0f;
constexpr float kFrozenLimit = kBf16 ? 0x1p115f : 0x1p15f;

constexpr float kFirstReference = kConstantReference ? 40.0f : 0.0f;

// Scores that depend on the key itself may climb from tile to tile for as long as the sequence is:
// sums beyond 2^30 (fp16: 2^12) then move their reference up, so far that the sum becomes 2^-60
// (2^-8), which leaves a tile room for 2^186.
constexpr bool kRecentre = plan::kFrozenMax && kScoreVariesByKey;
constexpr float kLargeSum = kBf16 ? 0x1p30f : 0x1p12f;
constexpr int kRecentredExponent = kBf16 ? -60 : -8;

// Whether a loop that raises references multiplies O after every piece, mostly by 1: with a branch
// over that ptxas leaves sums for behind it, and takes no exponentials meanwhile. A larger O costs
// what that spares: in one piece a tile 0.95 to 1.02 of the speed.
constexpr bool kScalesAlways = kQkSlabs == 1 && kVSlabs == 1 && kPieces == 2;

// By so much a tile's scores may be above a reference that is raised, log2; it then lies
// kFrozenOffset above them, as it does at first, or with kConstantReference a few powers of two
// less. More room only there: elsewhere sums are re-centred meanwhile, or the ordinary way's room
// is less than this.
constexpr float kTrackedRise = kConstantReference ? 90.0f : kBf16 ? 40.0f : 12.0f;
// What is multiplied by 2^-127 or less becomes 0. What was summed of 2^17 keys is below 2^107, or
// 2^57: it counts no more beside a score that is so much above the reference, log2.
constexpr float kOutshines = kConstantReference ? 144.0f : 120.0f;

// Sums below it have lost what counts, exponentials of 2^-36 of the sum and more: with a constant
// reference, or where the first tile, from which the reference was taken, had scores of -inf alone.
// (With a mask, such rows keep it from freezing.)
constexpr bool kHasSmallestSum = plan::kFrozenMax && (kConstantReference || !spec::kHasMask);
constexpr float kSmallestSum = kBf16 ? 0x1p-90f : 0x1p-9f;

// A positive constant scale leaves -inf as it is, so that masked scores can be scaled by the
// exponential's FFMA, where the scale is an immediate.
constexpr bool kMaskUnscaled = !spec::kScaleAtLaunch && spec::kSoftmaxScale > 0.0f;
// What a steady tile's score adds to the products is worked out once a row.
constexpr bool kAddLine = kScoreIsLine && (kMaskUnscaled || !spec::kHasMask);

// Whether a loop that raises references takes no exponentials of a piece that has none which
// counts. It is fp16's hot keys that gain; with bf16, whose heavy tails raise references more often
// than not, in one piece a tile and beside scores of the key the branch cost more than it spared.
// Beside Q in registers, and with longer pieces, ptxas has too few registers (C7512).
constexpr bool kSkips = kTracks && !kBf16 && kPieces == 2 && kPieceKeys <= 64 && !spec::kHasScore &&
                        !plan::kQInRegisters && (kMaskUnscaled || !spec::kHasMask);

// Where a thread's elements are: rows `row` and `row` + 8, keys first_key + lane + 8j + {0, 1}.
struct Position {
  int row;
  int first_key;  // of the piece
  int lane;       // 0, 2, 4, 6
  ATT_MEMBER int key() const { return first_key + lane; }
};

struct RowState {
  float maximum[2];    // of the scores so far, in log2 units; the reference is at an offset to it,
                       // but where that was raised. Of what softmax_running() does exactly both
                       // are score_core()'s
  float reference[2];  // what the exponentials subtract
  float sum[2];        // of the exponentials of this thread's columns
};

// Calls f(i, i + 2, column) for the elements of a thread's two rows in each of its columns, which
// are counted from its first key.
template <typename F>
ATT_FN void for_each_column(const F& f) {
#pragma unroll
  for (int i = 0; i < kPieceKeys / 4; ++i) {
    const int low = i / 2 * 4 + i % 2;
    f(low, low + 2, i / 2 * 8 + i % 2);
  }
}

// `dead` where the mask or kv_len leaves no key; with kIsInside, the piece ends within the keys.
// (Chosen without an `if`, which is half as much again to compile.)
template <bool kIsInside>
ATT_FN void mask_scores(const Context& c, Scores& s, const Position& at, float dead = -infinity()) {
  if constexpr (!spec::kHasMask || kRowIsRange) {
    const RowMask low_row = row_mask(c, at.row, at.key());
    const RowMask high_row = row_mask(c, at.row + 8, at.key());
    for_each_column([&](int low, int high, int column) {
      s[low] = is_live(c, low_row, column) ? s[low] : dead;
      s[high] = is_live(c, high_row, column) ? s[high] : dead;
    });
  } else {
    if constexpr (kRowMayBeRange) {
      if (runs_are_told(c)) {
        const RowMask low_row = range_of_row(c, at.row, at.key());
        const RowMask high_row = range_of_row(c, at.row + 8, at.key());
        for_each_column([&](int low, int high, int column) {
          s[low] = is_in_range(low_row, column) ? s[low] : dead;
          s[high] = is_in_range(high_row, column) ? s[high] : dead;
        });
        return;
      }
    }
    using Key = TileKey<(kPieceKeys & -kPieceKeys), kPieceKeys, kIsInside>;
    const MaskRow low_row = mask_row(c, at.row), high_row = mask_row(c, at.row + 8);
    for_each_column([&](int low, int high, int at_column) {
      const Key key(at.first_key, at.lane, at_column);
      const MaskColumn column = mask_column(c, key);
      s[low] = mask_at(c, low_row, column, key) ? s[low] : dead;
      s[high] = mask_at(c, high_row, column, key) ? s[high] : dead;
    });
    if (kIsInside || at.first_key + kPieceKeys <= c.kv_len) return;
    for_each_column([&](int low, int high, int column) {
      const bool is_key = at.key() + column < c.kv_len;
      s[low] = is_key ? s[low] : dead;
      s[high] = is_key ? s[high] : dead;
    });
  }
}

// A score in log2 units is kScoreFactor times what apply_score() leaves, plus the score's offset.
constexpr float kScoreFactor = kScoreMultiplier * kLog2E;
ATT_FN float plus_score_offset(float x) {
  return kScoreOffset == 0.0f ? x : x + kScoreOffset * kLog2E;
}

// Applies scale, score and, where the tile is not full, mask and kv_len: score_core() afterwards.
template <bool kIsInside>
ATT_FN void apply_score(const Context& c, Scores& s, const Position& at, bool full) {
  const float scale = softmax_scale(c.params);
#pragma unroll
  for (int i = 0; i < kPieceKeys / 2; ++i) {
    if constexpr (spec::kScaleAtLaunch || !spec::kHasScore) s[i] *= scale;
    if constexpr (spec::kHasScore) {
      s[i] = score_core(c, s[i], AtColumn<true>{at.row, (i & 2) * 4},
                        AtColumn<true>{at.key(), i / 4 * 8 + (i & 1)});
    }
  }
  if (!full) mask_scores<kIsInside>(c, s, at);
}

// How many of a piece's exponentials come before the wait for the product that runs meanwhile, at
// least; 0: as ptxas orders them, which is early. In one piece a tile, of the speed so: with
// dropout all of them 1.01 to 1.07, without mask half of them 1.00 to 1.05. Other kernels lose 1 to
// 9 %.
constexpr int kBeforeWait = kPieces == 2                     ? 0
                            : spec::kHasDropout              ? kPieceKeys / 2
                            : spec::kHasMask || kScoreIsLine ? 0
                                                             : kPieceKeys / 4;

// s = exp2(multiplier * s + shift(half, column)), and its sum: all that the steady loop does to an
// element of a full tile, beside packing it. wait() is called after kBeforeWait of them, or of all
// where that is 0.
template <typename Shift, typename Wait>
ATT_FN void exponentials(Scores& s, RowState& rows, float multiplier, const Shift& shift,
                         const Wait& wait) {
#pragma unroll
  for (int i = 0; i < kPieceKeys / 2; ++i) {
    if (kBeforeWait > 0 && i == kBeforeWait) wait();
    const int half = i / 2 % 2;
    s[i] = math_exp2(s[i] * multiplier + shift(half, i / 4 * 8 + (i & 1)));
    rows.sum[half] += s[i];
  }
  if (kBeforeWait == 0 || kBeforeWait == kPieceKeys / 2) wait();
}
template <typename Shift>
ATT_FN void exponentials(Scores& s, RowState& rows, float multiplier, const Shift& shift) {
  exponentials(s, rows, multiplier, shift, [] {});
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
        drop(c, p[step - 1], p[step], at.row, at.key() / 32 * 32 + (step - 1) * 16,
             dropout_drop_below(c));
      }
    }
  }
}

// P to the warpgroup's buffer, from which the PV product reads it. Its rows of a warp are those
// that the warp wrote.
ATT_FN void stage_probabilities(const Probabilities& p, unsigned buffer) {
#pragma unroll
  for (int step = 0; step < kPvSteps; ++step) {
    stmatrix_x4(fragment_address(buffer, step), p[step]);
  }
  fence_shared_for_async();
  sync_warp();
}

// Whether keys beyond kv_len never come with a fixed reference, where the mask does not see to them
// itself: downwards they are in the first piece, whose maximum is taken.
constexpr bool kFrozenIsInside = !kConstantReference && !kScoreVariesByKey;

// Whether the end of the last tile, its product (in two pieces also the low one's softmax), is left
// to the code that a running softmax has for it: a copy less, 6 to 11 % of the compile time. Other
// kernels lose by it: masked ones of up to 128 columns 1 to 6 % of their speed, for want of
// registers, and those of two pieces 2 to 10 %, as ptxas orders the loop worse.
constexpr bool kSharesLast = kPieces == 1 ? !spec::kHasMask || kColumnsV > 128 : kSharesFirst;

// Whether the loops that raise references and that do not have one copy of their last tile's end in
// two pieces: 5 to 9 % of the compile time. Other kernels lose by it, d 64 causal 2 % of its speed,
// and of some ptxas serialises the products (C7514).
constexpr bool kEndsOnce = kTracks && kPieces == 2 && !kSharesLast && kScoreVariesByKey;

// What raise_references() says of two rows in one register, which waits for the product that is
// still to be added to O: their factors (bf16, for they are powers of two), the upper row's in the
// low half.
constexpr unsigned kNoRise = 0x3F803F80u;  // 1 and 1

// The largest of a thread's scores in one of its rows and `least`, which is not negative: floats
// that are not are ordered as their bits are, and of integers one instruction compares three.
ATT_FN float highest_score(const Scores& s, int half, float least) {
  int highest[2] = {__builtin_bit_cast(int, least), 0};  // two chains, for they are in line
#pragma unroll
  for (int i = 0; i < kPieceKeys / 2; i += 4) {
    int& top = highest[i / 4 % 2];
    top = max_i32(max_i32(top, __builtin_bit_cast(int, s[i + 2 * half])),
                  __builtin_bit_cast(int, s[i + 2 * half + 1]));
  }
  return __builtin_bit_cast(float, max_i32(highest[0], highest[1]));
}

// The same where all of them are negative: the lowest of their bits.
ATT_FN float highest_negative_score(const Scores& s, int half) {
  unsigned lowest = 0xFF800000u;  // -inf
#pragma unroll
  for (int i = 0; i < kPieceKeys / 2; ++i) {
    const unsigned bits = __builtin_bit_cast(unsigned, s[i]);
    if (i / 2 % 2 == half) lowest = bits < lowest ? bits : lowest;
  }
  return __builtin_bit_cast(float, lowest);
}

// What is added to a score, times steady_factor(), to be in log2 units: a line is in it already.
constexpr float kSteadyOffset = kAddLine ? 0.0f : kScoreOffset * kLog2E;
ATT_FN float plus_steady_offset(float x) { return kSteadyOffset == 0.0f ? x : x + kSteadyOffset; }

// With kSkips: whether none of the warp's scores, times `factor`, counts beside those that `top`
// knows of, to which they are added.
ATT_FN bool are_negligible(const Scores& s, float (&top)[2], float factor) {
  // 0 stands for a row whose scores are all negative.
  const float highest[2] = {highest_score(s, 0, 0.0f), highest_score(s, 1, 0.0f)};
  const bool are = all_lanes((top[0] - highest[0]) * factor > kNegligible &&
                             (top[1] - highest[1]) * factor > kNegligible);
  top[0] = math_max(top[0], highest[0]);
  top[1] = math_max(top[1], highest[1]);
  return are;
}

// Half of a quad's lanes tell the other half what they met, those next to each other and those two
// apart in turns: all know of it two pieces later that are not skipped, and none waits.
ATT_FN void share_maxima(float (&top)[2], int piece) {
  top[0] = math_max(top[0], shuffle_xor(top[0], 1 + piece));
  top[1] = math_max(top[1], shuffle_xor(top[1], 1 + piece));
}

// The nearest integer, of |x| up to 2^22. What is made of other numbers is not used.
ATT_FN float round_to_integer(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

// With kTracks: raises the references that the scores, times `factor`, are too far above, by a
// power of two, so that nothing is rounded. `rises`: kNoRise before. `top` has the largest scores
// so far of this thread, where they are positive. Whether a reference of the warp rose.
ATT_FN bool raise_references(const Scores& s, RowState& rows, float (&top)[2], float factor,
                             unsigned& rises) {
  const float least = kSteadyOffset - kTrackedRise;
  if constexpr (!kSkips) {
    top[0] = highest_score(s, 0, top[0]);
    top[1] = highest_score(s, 1, top[1]);
  }
  // Of a row whose scores are all negative, 0 is not too far above either, or they are looked at.
  if (all_lanes(top[0] * factor + least <= rows.reference[0] &&
                top[1] * factor + least <= rows.reference[1])) {
    return false;
  }
  // In one piece a tile asked before it is known whether the answer is used: heavy tails take less
  // time. In two ptxas spilled for it, and short items took 3 % longer (d 64, full, 512 keys).
  constexpr bool kAsksEarly = kPieces == 1;
  float highest[2] = {kAsksEarly ? quad_max(top[0]) : top[0],
                      kAsksEarly ? quad_max(top[1]) : top[1]};
  if (!all_lanes(top[0] > 0.0f && top[1] > 0.0f)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float negative = highest_negative_score(s, half);
      if constexpr (kAsksEarly) negative = quad_max(negative);
      highest[half] = highest[half] > 0.0f ? highest[half] : negative;
    }
    if (all_lanes(highest[0] * factor + least <= rows.reference[0] &&
                  highest[1] * factor + least <= rows.reference[1])) {
      return false;
    }
  }
  unsigned factors[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if constexpr (!kAsksEarly) highest[half] = quad_max(highest[half]);
    const float above = plus_steady_offset(highest[half] * factor) - rows.reference[half];
    // What is beyond 10^9, infinity too, sums to infinity, which total_rows() sees.
    float rise = round_to_integer(math_min(above, 1e9f)) + kFrozenOffset;
    if (above < kOutshines) rise = math_min(rise, 126.0f);  // no more: what was summed counts
    // Other rows of the warp rise with those that must: they will the later have to.
    rise = above > -kFrozenOffset ? math_max(rise, 0.0f) : 0.0f;
    rows.reference[half] += rise;
    const float factor = math_exp2(-rise);  // 0 where it is smaller than any float
    rows.sum[half] *= factor;
    factors[half] = __builtin_bit_cast(unsigned, factor);
  }
  rises = byte_permute(factors[0], factors[1], 0x7632);
  return true;
}

// The largest score of a row as the steady loop has it, where it is positive, and back: only one of
// the two is kept while the loop runs. Where it is negative, what the reference would be taken
// from.
ATT_FN void take_maxima(const RowState& rows, float (&top)[2], float factor) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    top[half] = math_max((rows.maximum[half] - kSteadyOffset) * (1.0f / factor), 0.0f);
  }
}
ATT_FN void keep_maxima(RowState& rows, const float (&top)[2], float factor) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float highest = quad_max(top[half]);
    rows.maximum[half] = highest > 0.0f ? plus_steady_offset(highest * factor)
                                        : rows.reference[half] - kFrozenOffset;
  }
}

// Where a reference was raised, the exponential of the largest score is no power of two, and its
// product with V has it rounded: in a row of one large score that is all that O is off by. So O is
// divided by what the sum would be with this one rounded, and the reference keeps the LSE.
ATT_FN void count_rounded_maxima(RowState& rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float exact = math_exp2(rows.maximum[half] - rows.reference[half]);
    const float sum = quad_sum(rows.sum[half]);
    const float more = rounded<spec::kDType>(exact) - exact;
    // Not where the maximum is none of the scores.
    if (more != 0.0f && exact <= sum * 1.001f) {
      rows.reference[half] -= math_log2(sum + more) - math_log2(sum);
      rows.sum[half] += thread_index() % 4 == 0 ? more : 0.0f;
    }
  }
}

// What a kernel's scores are multiplied with, as raise_references() meets them, to be in log2
// units.
ATT_FN float steady_factor(const ForwardParams& p) {
  // The line was added to them in log2 units; inverses are in them.
  if constexpr (kAddLine || kSharesReciprocals) return 1.0f;
  return spec::kHasScore || (spec::kHasMask && !kMaskUnscaled) ? kScoreFactor
                                                               : softmax_scale(p) * kLog2E;
}

// A step of the steady loop, whose reference is fixed, or, with `kTracking`, raised when it must
// be: what raise_references() says, where it `tracks` them.
template <bool kTracking, typename Wait>
ATT_FN void softmax_frozen(const Context& c, Scores& s, RowState& rows, const Position& at,
                           bool full, float (&top)[2], unsigned& rises, bool& raised,
                           const Wait& wait, bool tracks) {
  const bool masked = spec::kHasMask && !full;
  const auto to_reference = [&](int half, int) { return -rows.reference[half]; };
  const float scale = softmax_scale(c.params) * kLog2E;
  if constexpr (kAddLine) {
    if (masked) mask_scores<kFrozenIsInside>(c, s, at);
    float base[2], step[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const ScoreLine line = score_line(c, at.row + 8 * half, at.key());
      base[half] = line.base * kLog2E - (kTracking ? 0.0f : rows.reference[half]);
      step[half] = line.step * kLog2E;
    }
    const auto on_line = [&](int half, int column) { return base[half] + step[half] * column; };
    if constexpr (kTracking) {
#pragma unroll
      for (int i = 0; i < kPieceKeys / 2; ++i) {
        s[i] = s[i] * scale + on_line(i / 2 % 2, i / 4 * 8 + (i & 1));
      }
      raised = tracks && raise_references(s, rows, top, 1.0f, rises);
      exponentials(s, rows, 1.0f, to_reference, wait);
    } else {
      exponentials(s, rows, scale, on_line, wait);
    }
  } else if constexpr (spec::kHasScore || (spec::kHasMask && !kMaskUnscaled)) {
    apply_score<kFrozenIsInside>(c, s, at, !masked);
    if constexpr (kTracking) raised = tracks && raise_references(s, rows, top, kScoreFactor, rises);
    exponentials(
        s, rows, kScoreFactor,
        [&](int half, int) { return plus_score_offset(-rows.reference[half]); }, wait);
  } else {
    if (masked) mask_scores<kFrozenIsInside>(c, s, at);
    if constexpr (kTracking) raised = tracks && raise_references(s, rows, top, scale, rises);
    exponentials(s, rows, scale, to_reference, wait);
  }
}

// Moves references up where a frozen one has let a sum grow, by a power of two so that nothing is
// rounded: sums, O, and the exponentials that wait for their product. None of them may be in use.
ATT_FN void recentre(RowState& rows, Output& o, Probabilities& p) {
  if (all_lanes(rows.sum[0] < kLargeSum && rows.sum[1] < kLargeSum)) return;
  float shrink[2][2];  // the factor's two parts: it may be smaller than any float
  unsigned packed[2][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = quad_sum(rows.sum[half]);
    // What is infinite or NaN, or nearly so, stays, and total_rows() sees it.
    const bool moves = total >= kLargeSum && total < (kBf16 ? 0x1p126f : 0x1p24f);
    const int rise = moves ? exponent(total) - kRecentredExponent : 0;
    shrink[half][0] = power_of_two(-(rise / 2));
    shrink[half][1] = power_of_two(rise / 2 - rise);
    rows.maximum[half] += static_cast<float>(rise);
    rows.reference[half] += static_cast<float>(rise);
    rows.sum[half] = rows.sum[half] * shrink[half][0] * shrink[half][1];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      packed[half][i] = pack_2<spec::kDType>(shrink[half][i], shrink[half][i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kColumnsV / 2; ++i) {
    o[i] = o[i] * shrink[i / 2 % 2][0] * shrink[i / 2 % 2][1];
  }
#pragma unroll
  for (int step = 0; step < kPvSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      p[step][i] = multiply_2<spec::kDType>(p[step][i], packed[i % 2][0]);
      p[step][i] = multiply_2<spec::kDType>(p[step][i], packed[i % 2][1]);
    }
  }
}

}  // namespace sm90
}  // namespace att
