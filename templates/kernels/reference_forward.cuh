// The definition of attention on a GPU, as plainly as it can be written: no tiles, no matrix
// instructions, one warp a row. What the CPU oracle is for small problems this is for rows of a
// large one. Mask, score and sink are the generated functions that kernels use.
//
// Rows are numbered (b * heads + h) * q_len + q_idx. The host names those it wants where other
// kernels have their scheduler's counter: their count, then their numbers.
//
// att_reference_exact writes what it expects in that order: pairs of a value and the largest error
// that it may have, both fp32, of O [rows, v] to `o` and of LSE [rows] to `lse`.
// att_reference_judge holds `o` and `lse`, as a kernel left them, against such pairs, which it
// finds at `q` and `k`, and writes the worst error of each row, relative to what is allowed, to the
// fp32 at `v`.
//
// The host gives the error model (runtime/reference/tolerance.hpp) as constants in namespace
// `tolerance`; docs/verification.md derives the formulas.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/sequence.h"
#include "templates/tile/reference_math.h"
#include "templates/tile/reference_warp.cuh"

namespace att {

constexpr int kReferenceSlices = (spec::kHeadDimV + 31) / 32;  // of O, a column each for a lane

// ln x for x >= 1: two Newton steps on e^y = x from the hardware's lg2.
ATT_FN double log_exact(double x) {
  double y = math_log2(static_cast<float>(x)) * 0.6931471805599453;
  for (int step = 0; step < 2; ++step) y += x * exp_exact(-y) - 1;
  return y;
}

constexpr float kSumRounding = tolerance::kMeanRounding * tolerance::kFp32Unit;

struct InexactScore {
  double value;  // -inf of a dead key
  float error;   // no kernel's score is farther off
};

// Sum of e^(s - maximum) over some scores.
struct Exponentials {
  double maximum = -infinity();
  double total = 0;

  ATT_MEMBER void add(double other_maximum, double other_total) {
    const double joint = other_maximum > maximum ? other_maximum : maximum;
    if (joint == -infinity()) {  // none but NaNs
      total += other_total;
      return;
    }
    total = scaled(total, maximum, joint) + scaled(other_total, other_maximum, joint);
    maximum = joint;
  }

 private:
  static ATT_MEMBER double scaled(double total, double from, double to) {
    return total == 0 ? 0 : total * exp_exact(from - to);  // inf - inf is NaN, as it should be
  }
};

struct ReferenceRow {
  const Context& c;
  const int q_idx;

  ATT_MEMBER InexactScore score_of(int kv_idx) const {
    const ForwardParams& p = c.params;
    if (kv_idx >= c.kv_len || (spec::kHasMask && !mask(c, q_idx, kv_idx))) return {-infinity(), 0};
    const Sequence sequence = sequence_of(p, c.b);
    const long long q = query_offset(sequence, p.q_stride, c.h, q_idx);
    const long long k = key_offset(sequence, p.k_stride, c.h_kv, kv_idx);
    double product = 0;
    float squares = 0;
    for (int d = 0; d < spec::kHeadDimQk; d += 8) {
      const Words left = read_8(p.q, q + d), right = read_8(p.k, k + d);
      double exact = 0;
      float sum = 0;  // of eight, which costs two-byte types nothing that a kernel's sum keeps
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float a = operand(element(left, i)), b = operand(element(right, i));
        if constexpr (spec::kDType == DType::f32) exact += static_cast<double>(a) * b;
        const float term = a * b;
        sum += term;
        squares += term * term;
      }
      product += spec::kDType == DType::f32 ? exact : static_cast<double>(sum);
    }
    const float scale = spec::kScaleAtLaunch ? p.softmax_scale : spec::kSoftmaxScale;
    const auto size = static_cast<float>(product);
    float deviation = kSumRounding * math_abs(scale) *
                      math_sqrt(spec::kHeadDimQk * (squares * 0.5f + size * size / 3.0f));
    if constexpr (tolerance::kProductUnit > 0) {
      const float of_products =
          tolerance::kMeanRounding * tolerance::kProductUnit * scale * math_sqrt(squares);
      deviation = math_sqrt(deviation * deviation + of_products * of_products);
    }
    const float reach = tolerance::kDeviations * deviation;
    product *= scale;
    if constexpr (spec::kHasScore) {
      const auto x = static_cast<float>(product);
      const float s = score(c, x, q_idx, kv_idx);
      const float low = math_abs(s - score(c, x - reach, q_idx, kv_idx));
      const float high = math_abs(score(c, x + reach, q_idx, kv_idx) - s);
      const float noise = tolerance::kScoreNoise * (1.0f + math_abs(s) + math_abs(x));
      return {s, math_max(low, high) + noise};
    }
    return {product, reach};
  }

  // `slot`: where the row stands in the outputs.
  ATT_MEMBER void run(int lane, long long slot) const {
    const ForwardParams& p = c.params;
    Exponentials sum;
    double live_keys = 0;
    for (int k = lane; k < c.kv_len; k += 32) {
      const double s = score_of(k).value;
      if (s == -infinity()) continue;
      live_keys += 1;
      sum.add(s > -infinity() ? s : -infinity(), s == s ? 1 : s);
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      const double maximum = shuffle_xor(sum.maximum, distance);
      sum.add(maximum, shuffle_xor(sum.total, distance));
    }
    live_keys = warp_sum(live_keys);
    const double largest_score = sum.maximum;
    double sink_score = -infinity();
    if constexpr (spec::kHasSink) {
      sink_score = sink(c);
      if (sink_score != -infinity()) sum.add(sink_score, 1);
    }
    const bool is_dead = sum.total == 0;
    const auto count = static_cast<float>(live_keys);

    // Elements of P that are subnormal err by so much.
    const double largest = is_dead ? 0 : exp_exact(largest_score - sum.maximum) / sum.total;
    const float smallest =
        tolerance::kPSmallest * (kScoreVariesByKey ? 1.0f : static_cast<float>(largest));
    const float of_sums = kSumRounding * math_sqrt(count * 0.5f);
    double score_error = 0, score_variance = 0, lost = 0;
    const auto add_score_error = [&](double probability, double score, float error) {
      error += tolerance::kFp32Unit *
               (3 * math_abs(static_cast<float>(score)) +
                math_abs(static_cast<float>(sum.maximum)) + tolerance::kExponentReach);
      const double deviation = probability * (error / tolerance::kDeviations);
      score_error += probability * error;
      score_variance += deviation * deviation;
      return static_cast<float>(deviation);
    };

    double o[kReferenceSlices] = {};
    float variance[kReferenceSlices] = {};
    for (int k0 = 0; !is_dead && k0 < c.kv_len; k0 += 32) {
      const InexactScore s = score_of(k0 + lane);
      const bool live = s.value != -infinity();
      if (ballot(live) == 0) continue;
      double weight = -1;
      float deviation = 0;
      if (live) {
        weight = exp_exact(s.value - sum.maximum) / sum.total;
        const auto probability = static_cast<float>(weight);
        const float of_score = weight > 0 ? add_score_error(weight, s.value, s.error) : 0.0f;
        const float of_p = tolerance::kMeanRounding * math_max(tolerance::kPUnit * probability,
                                                               math_min(probability, smallest));
        // What is too small beside the sum is not rounded at random but lost, always to one side.
        const float of_loss = probability < tolerance::kNegligible
                                  ? math_min(probability, tolerance::kFp32Unit)
                                  : 0.0f;
        lost += of_loss;
        const float of_sum = math_max(of_loss, of_sums * probability);
        deviation = math_sqrt(of_score * of_score + of_p * of_p + of_sum * of_sum);
        if (spec::kHasDropout && is_dropped(c, q_idx, k0 + lane)) weight = deviation = 0;
      }
      for (int j = 0; j < 32; ++j) {
        const double w = shuffle_from(weight, j);
        const float one_deviation =
            __builtin_bit_cast(float, shuffle_from(__builtin_bit_cast(int, deviation), j));
        if (w < 0) continue;  // dead: its V must not count
        const long long v = key_offset(sequence_of(p, c.b), p.v_stride, c.h_kv, k0 + j);
        for (int i = 0; i < kReferenceSlices; ++i) {
          const int d = 32 * i + lane;
          if (d >= spec::kHeadDimV) continue;
          const float value = operand(read_element(p.v, v + d));
          o[i] += w * value;
          const float one = one_deviation * value;
          variance[i] += one * one;
        }
      }
    }
    score_error = warp_sum(score_error);
    score_variance = warp_sum(score_variance);
    lost = warp_sum(lost);
    if (spec::kHasSink && !is_dead) {
      const double weight = exp_exact(sink_score - sum.maximum) / sum.total;
      if (weight > 0) add_score_error(weight, sink_score, 0);
    }

    const float keep_scale = spec::kHasDropout ? dropout_keep_scale(c) : 1.0f;
    const float common = math_sqrt(static_cast<float>(score_variance) +
                                   kSumRounding * kSumRounding * count * (2.0f / 3.0f));
    auto* out = static_cast<float*>(p.o) + slot * spec::kHeadDimV * 2;
    for (int i = 0; i < kReferenceSlices; ++i) {
      const int d = 32 * i + lane;
      if (d >= spec::kHeadDimV) continue;
      const auto value = static_cast<float>(o[i] * keep_scale);
      const float size = math_abs(value);
      const float spread = keep_scale * math_sqrt(variance[i]);
      const float random =
          tolerance::kDeviations * math_sqrt(spread * spread + size * common * (size * common));
      float limit = (tolerance::kOUnit + static_cast<float>(lost)) * size + tolerance::kOSmallest +
                    math_max(random, tolerance::kPUnit * size);
      if constexpr (tolerance::kPUnit > 0) {
        const float partial = size + spread / (tolerance::kMeanRounding * tolerance::kPUnit);
        limit += tolerance::kTruncation * count * partial;
      }
      out[2 * d] = value;
      out[2 * d + 1] = is_dead ? 0.0f : limit;
    }
    if (lane != 0) return;
    const double lse = is_dead ? -infinity() : sum.maximum + log_exact(sum.total);
    p.lse[2 * slot] = static_cast<float>(lse);
    p.lse[2 * slot + 1] = static_cast<float>(score_error + lost) +
                          tolerance::kDeviations * kSumRounding * math_sqrt(count / 3.0f) +
                          tolerance::kLseUnit * (math_abs(static_cast<float>(lse)) +
                                                 math_abs(static_cast<float>(sum.maximum))) +
                          tolerance::kLseSmallest;
  }
};

// Calls f(context, q_idx, slot) for the row of this warp, if it has one.
template <typename F>
ATT_FN void for_reference_row(const ForwardParams& params, const F& f) {
  const long long slot =
      static_cast<long long>(block_index()) * kReferenceWarps + thread_index() / 32;
  const int* rows = params.scheduler_counter;
  if (slot >= rows[0]) return;
  const int row = rows[1 + slot];
  const int head = row / params.q_len;
  const int h = head % params.heads;
  const Context c =
      context_of(params, head / params.heads, h, h / (params.heads / params.kv_heads));
  f(c, row % params.q_len, slot);
}

}  // namespace att

ATT_KERNEL att_reference_exact(ATT_GRID_CONSTANT att::ForwardParams params) {
  att::for_reference_row(params, [](const att::Context& c, int q_idx, long long slot) {
    att::ReferenceRow{c, q_idx}.run(att::thread_index() % 32, slot);
  });
}

ATT_KERNEL att_reference_judge(ATT_GRID_CONSTANT att::ForwardParams params) {
  using namespace att;
  for_reference_row(params, [](const Context& c, int q_idx, long long slot) {
    const ForwardParams& p = c.params;
    const int lane = thread_index() % 32;
    const auto* const o = static_cast<const float*>(p.q) + slot * spec::kHeadDimV * 2;
    const auto* const lse = static_cast<const float*>(p.k) + slot * 2;
    const long long at = query_offset(sequence_of(p, c.b), p.o_stride, c.h, q_idx);
    const long long lse_at = (static_cast<long long>(c.b) * p.heads + c.h) * p.q_len + q_idx;
    float worst = excess(p.lse[lse_at], lse[0], lse[1]);
    for (int d = lane; d < spec::kHeadDimV; d += 32) {
      worst = math_max(worst, excess(read_element(p.o, at + d), o[2 * d], o[2 * d + 1]));
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      worst = math_max(worst, shuffle_xor(worst, distance));
    }
    if (lane == 0) static_cast<float*>(const_cast<void*>(p.v))[slot] = worst;
  });
}
