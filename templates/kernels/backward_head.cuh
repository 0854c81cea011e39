// An example of what the head of a backward kernel has beside head.cuh: how the score changes with
// the product and with what is learned. Here of `30 * tanh(score / 30) + bias[h, max(0, min(31,
// kv_idx - q_idx + 16))]` with bias [heads, 32] and of `sink: sinks[h]`, to show every part. The
// generator writes it behind the head's functions, and this file falls away.
#pragma once

#include "templates/kernels/head.cuh"

namespace att {

// Whether the score' that score() gives always grows as s does (no score, an additive bias): there
// is nothing to multiply dS by.
constexpr bool kScoreGradIsOne = false;

// d score' / d s, at the s that score() takes: the product in natural units, scaled.
template <typename Query, typename Key>
ATT_FN float score_grad(const Context& c, float s, Query q_idx, Key kv_idx) {
  const float t0 = math_tanh(s * 0.033333335f);
  return 1.0f - t0 * t0;
}

struct ScoreAndGradient {
  float score, gradient;
};
// score() and score_grad(), what they have in common once.
template <typename Query, typename Key>
ATT_FN ScoreAndGradient score_with_grad(const Context& c, float s, Query q_idx, Key kv_idx) {
  const float t0 = math_tanh(s * 0.033333335f);
  return {30.0f * t0, 1.0f - t0 * t0};
}
// score_core(), of the s that it takes, and score_grad(): the gradient is of score' by the scaled
// product here, too.
template <typename Query, typename Key>
ATT_FN ScoreAndGradient score_core_with_grad(const Context& c, float s, Query q_idx, Key kv_idx) {
  const float t0 = math_divide(1.0f, 1.0f + math_exp2(s * -0.00850069f));
  return {t0, t0 * (1.0f - t0) * 4.0f};
}
// With kScoreIsLogistic, score_core() of s being t, score_grad() is t * (1 - t) times it; 0: it
// cannot be told so. (Not with the example's bias.)
constexpr float kLogisticSlope = 0.0f;

// Different look-ups of tensors that learn; 0: nothing below is of use. An element's gradient is
// the sum over all live (q, k) that look it up of P (dP - D) * score_grad_load(), before the
// softmax scale. Of each look-up, by constants: the tensor; whether score_grad_load() is always 1;
// how its element varies, IsDistance: with q_idx - kv_idx only; and how many elements of
// consecutive offsets one (b, h) has for it: 1 when it does not vary, 0 when that depends on a
// length; IsExclusive: no two pairs of whatever heads share an element.
constexpr int kGradLoads = 1;
constexpr int kGradLoadSlot[] = {1};
constexpr bool kGradLoadIsOne[] = {true};
constexpr bool kGradLoadVariesByQuery[] = {true};
constexpr bool kGradLoadVariesByKey[] = {true};
constexpr bool kGradLoadIsDistance[] = {true};
constexpr int kGradLoadBins[] = {32};
constexpr bool kGradLoadIsExclusive[] = {false};

// Offset of look-up kLoad's element in its tensor. Any q_idx, kv_idx >= 0: it stays inside.
template <int kLoad, typename Query, typename Key>
ATT_FN long long grad_load_offset(const Context& c, Query q_idx, Key kv_idx) {
  if constexpr (kLoad == 0) {
    return static_cast<long long>(c.h) * 32 +
           static_cast<int>(max_i32(0, min_i32(31, (kv_idx - q_idx) + 16)));
  } else {
    return 0;
  }
}
// Of the first of its kGradLoadBins elements.
template <int kLoad>
ATT_FN long long grad_load_base(const Context& c) {
  if constexpr (kLoad == 0) {
    return static_cast<long long>(c.h) * 32 + static_cast<int>(0);
  } else {
    return 0;
  }
}
// d score' / d that element.
template <int kLoad, typename Query, typename Key>
ATT_FN float score_grad_load(const Context& c, float s, Query q_idx, Key kv_idx) {
  if constexpr (kLoad == 0) {
    return 1.0f;
  } else {
    return 0;
  }
}

// The same of the sink: look-ups, and d sink / d element. An element's gradient is the sum over the
// rows of -exp(sink - LSE) * D * sink_grad_load().
constexpr int kSinkGradLoads = 1;
constexpr int kSinkGradLoadSlot[] = {2};
template <int kLoad>
ATT_FN long long sink_grad_load_offset(const Context& c) {
  if constexpr (kLoad == 0) {
    return static_cast<long long>(c.h);
  } else {
    return 0;
  }
}
template <int kLoad>
ATT_FN float sink_grad_load(const Context& c) {
  if constexpr (kLoad == 0) {
    return 1.0f;
  } else {
    return 0;
  }
}

}  // namespace att
