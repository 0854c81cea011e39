// An example of what the generator puts in front of a kernel: the facts of one spec and plan, and
// its functions. `causal and doc[b, q_idx] == doc[b, kv_idx]`, softcap 30, bf16, d 128. The
// generator replaces this file by the real head, so every template compiles as it stands and
// nothing else changes between specs.
#pragma once

#include "templates/params.h"
#include "templates/ptx/platform.cuh"
#include "templates/tile/head_support.cuh"
#include "templates/tile/ranges.cuh"

namespace att {

enum class DType { f16, bf16, f32, f8_e4m3 };

namespace spec {
constexpr DType kDType = DType::bf16;    // of Q and O
constexpr DType kKvDType = DType::bf16;  // of K and V as they are stored
constexpr int kResidues = 1;             // that a sequence of the caller's is taken apart into
constexpr int kHeadDimQk = 128;
constexpr int kHeadDimV = 128;
constexpr bool kHasMask = true;   // false: mask, classify_tile and kv_bounds are trivial
constexpr bool kHasScore = true;  // false: score() is the identity and must not be called
constexpr bool kHasSink = false;  // false: sink() must not be called
constexpr bool kHasDropout = false;
constexpr bool kScaleAtLaunch = false;
constexpr float kSoftmaxScale = 0.08838834764831845f;
constexpr bool kDropoutAtLaunch = false;
constexpr unsigned kDropoutDropBelow = 0;  // of 256
constexpr float kDropoutKeepScale = 1.0f;
constexpr bool kDropoutSeedOnDevice = false;  // the launch names where seed and offset lie
constexpr bool kIsPacked = false;  // sequences of different lengths, one behind the other
constexpr bool kIsPaged = false;   // packed queries, keys in pages of a cache
constexpr bool kIsStrict = false;  // exponentials that decide a row are exact
}  // namespace spec

// The (batch, head) a work item belongs to. kv_head = h / (heads / kv_heads). q_first, kv_first: of
// packed sequences, the rows before its own.
struct Context {
  const ForwardParams& params;
  int b, h, h_kv, q_len, kv_len, q_first, kv_first;
};

// What mask() makes of a query alone, and what it reads of tensors by the key alone: a kernel that
// takes a tile's elements together asks once a row and once a column. Key is int or what stands for
// one (templates/tile/columns.cuh).
struct MaskRow {
  int q_idx;
  int v0;
  int v1;
};
ATT_FN MaskRow mask_row(const Context& c, int q_idx) {
  const int t0 = load_i32(c.params.tensors[0], static_cast<long long>(c.b) * c.params.kv_len +
                                                   clamp_tail(q_idx, c.params.kv_len));
  return {q_idx, q_idx + (c.kv_len - c.q_len), t0};
}
struct MaskColumn {
  int v0;
};
template <typename Key>
ATT_FN MaskColumn mask_column(const Context& c, Key kv_idx) {
  const int t0 = load_i32(c.params.tensors[0], static_cast<long long>(c.b) * c.params.kv_len,
                          clamp_tail(kv_idx, c.params.kv_len));
  return {t0};
}
template <typename Key>
ATT_FN bool mask_at(const Context& c, const MaskRow& row, const MaskColumn& column, Key kv_idx) {
  return (kv_idx <= row.v0) & (row.v1 == column.v0);
}

// True when the key is live. Any q_idx, kv_idx >= 0: look-ups stay inside their tensors, so a
// kernel may ask beyond the lengths and combine the answer without a branch: (k < kv_len) & mask(c,
// q, k).
template <typename Key>
ATT_FN bool mask(const Context& c, int q_idx, Key kv_idx) {
  return mask_at(c, mask_row(c, q_idx), mask_column(c, kv_idx), kv_idx);
}

// Natural-unit score of one element from its scaled product. Query and Key are int or what stands
// for one (templates/tile/columns.cuh).
template <typename Query, typename Key>
ATT_FN float score(const Context& c, float s, Query q_idx, Key kv_idx) {
  return 30.0f * math_tanh(s * 0.033333335f);
}

// The score is kScoreMultiplier * score_core() + kScoreOffset, the multiplier > 0; equal but for
// rounding. s is the product without the softmax scale where that is constant, so that a score's
// constants and the kernel's own become one.
constexpr float kScoreMultiplier = 60.0f;
constexpr float kScoreOffset = -30.0f;
template <typename Query, typename Key>
ATT_FN float score_core(const Context& c, float s, Query q_idx, Key kv_idx) {
  return math_divide(1.0f, 1.0f + math_exp2(s * -0.00850069f));
}

// Whether score_core() of s is 1 / (1 + exp2(step * s + shift)), as a softcap's is.
constexpr bool kScoreIsLogistic = true;
constexpr float kLogisticStep = -0.00850069f;
constexpr float kLogisticShift = 0.0f;

// Whether the score depends on kv_idx itself; and whether it is s plus a line in kv_idx (as ALiBi's
// is), so that score(c, s, q, k + i) is s + base + step * i of score_line(c, q, k), rounding aside.
constexpr bool kScoreVariesByKey = false;
constexpr bool kScoreIsLine = false;
ATT_FN ScoreLine score_line(const Context& c, int q_idx, int kv_idx) { return {0.0f, 0.0f}; }

ATT_FN float sink(const Context& c) { return 0.0f; }

// Class of the box [q0, q1) x [k0, k1), neither side empty. Sound; cheap enough for one thread a
// tile.
ATT_FN TileClass classify_tile(const Context& c, int q0, int q1, int k0, int k1) {
  const int q_first = q0, q_last = q1 - 1, kv_first = k0, kv_last = k1 - 1;
  const IntRange v0 = tensor_range<int, true>(c.params.tensors[0], {{c.b, c.b}, {q_first, q_last}});
  const IntRange v1 =
      tensor_range<int, true>(c.params.tensors[0], {{c.b, c.b}, {kv_first, kv_last}});
  const bool every =
      kv_last <= (c.kv_len - c.q_len) + q_first && (v0.lo == v1.hi && v0.hi == v1.lo);
  const bool any = kv_first <= (c.kv_len - c.q_len) + q_last && (v0.lo <= v1.hi && v1.lo <= v0.hi);
  return !any ? TileClass::kSkip : every ? TileClass::kFull : TileClass::kPartial;
}

// Keys outside [begin, end) are dead for every query of [q0, q1). Within [0, kv_len]; begin >= end:
// none is live.
ATT_FN KvBounds kv_bounds(const Context& c, int q0, int q1) {
  return {0, min_i32(max_i32((q1 - 1) + (c.kv_len - c.q_len) + 1, 0), c.kv_len)};
}

// Queries outside [begin, end) are dead for every key of [k0, k1). Within [0, q_len].
ATT_FN QBounds q_bounds(const Context& c, int k0, int k1) {
  return {min_i32(max_i32(k0 - (c.kv_len - c.q_len), 0), c.q_len), c.q_len};
}

// Where runs_are_told(), which is the same for all of an item, mask() is mask_by_runs()
// (generator/expr/runs.hpp).
constexpr bool kHasRuns = false;
ATT_FN bool runs_are_told(const Context& c) { return false; }
ATT_FN bool mask_by_runs(const Context& c, int q_idx, int kv_idx) { return false; }

// Whether every row's live keys are one range (as of `causal` alone), and which of its ends can
// differ from 0 and kv_len. With kRowIsRange, mask(c, q, k) is begin <= k && k < end of
// row_bounds(c, q) for every k >= 0, those beyond kv_len included: a partial tile then costs a
// compare an element and end. With kRowMayBeRange it is so where runs_are_told().
constexpr bool kRowIsRange = false;
constexpr bool kRowMayBeRange = false;
constexpr bool kRowHasBegin = false;
constexpr bool kRowHasEnd = false;
ATT_FN KvBounds row_bounds(const Context& c, int q_idx) { return {0, c.kv_len}; }

namespace plan {  // one constant a member of the family's plan struct
constexpr int kTileQ = 128;
constexpr int kTileKv = 64;
constexpr int kStages = 2;
constexpr int kWarps = 4;
constexpr bool kQInRegisters = false;
constexpr bool kFrozenMax = true;
constexpr int kChunk = 32;
constexpr int kUnroll = 1;
constexpr int kSharedBytes = 98304;
constexpr int kMinCtas = 2;  // resident CTAs that the register budget must allow
}  // namespace plan

}  // namespace att

#define ATT_KERNEL_NAME att_sm80_fwd_bf16_d128_q128k64s2_00000000

#include "templates/tile/block_ranges.cuh"

namespace att {

// Makes pair number `pair` of the tensors whose ranges classify tiles, one tensor after the other.
ATT_FN bool make_range_pair(const ForwardParams& p, long long pair) {
  return make_pair_of<int, 2>(p.tensors[0], pair);
}

}  // namespace att

#include "templates/kernels/block_ranges.cuh"
