// The definition of the backward pass, as plainly as it can be written, and what each element of a
// gradient may be off by: the arithmetic of runtime/reference/backward_part.hpp for a device. Every
// row is a warp's (on a CPU a core's): what a warp is stands before this text.
//
// P is made from the LSE that came in, D from the O that came in: what a backward kernel makes of
// them is judged, whatever made them. `tolerance` has the error model's constants.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/reference_params.h"
#include "templates/sequence.h"
#include "templates/tile/dropout.cuh"
#include "templates/tile/reference_math.h"

namespace att {

ATT_FN double square(double x) { return x * x; }

// Columns of a row that a lane has: d = lane, lane + kReferenceLanes, ...
ATT_FN constexpr int reference_slices(int width) {
  return (width + kReferenceLanes - 1) / kReferenceLanes;
}
constexpr int kQkSlices = reference_slices(spec::kHeadDimQk);
constexpr int kVSlices = reference_slices(spec::kHeadDimV);
// A lane's columns stay in registers; a core's are too many for it.
constexpr int kQkUnroll = kReferenceLanes == 1 ? 1 : kQkSlices;
constexpr int kVUnroll = kReferenceLanes == 1 ? 1 : kVSlices;

struct ReferenceDot {
  double sum, squares;  // of the terms
};
template <int kCount>
ATT_FN ReferenceDot reference_dot(const void* a, long long a_at, const void* b, long long b_at) {
  ReferenceDot dot = {0, 0};
  for (int d = 0; d < kCount; d += 8) {
    const Words left = read_8(a, a_at + d), right = read_8(b, b_at + d);
    double exact = 0;
    float sum = 0, squares = 0;  // of eight, which costs two-byte types nothing that matters
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float x = operand(element(left, i)), y = operand(element(right, i));
      if constexpr (spec::kDType == DType::f32) exact += static_cast<double>(x) * y;
      const float term = x * y;
      sum += term;
      squares += term * term;
    }
    dot.sum += spec::kDType == DType::f32 ? exact : static_cast<double>(sum);
    dot.squares += squares;
  }
  return dot;
}
// What fp32 additions make of it.
ATT_FN double variance_of(const ReferenceDot& dot, int count) {
  return square(tolerance::kFp32Rounding) * count * (dot.squares / 2 + square(dot.sum) / 3);
}
// Of the rounding of P or dS to the dtype.
ATT_FN double rounding_variance(double value) {
  if (tolerance::kPUnit == 0) return 0;
  const double size = value < 0 ? -value : value;
  const double least = size < tolerance::kSmallest ? size : tolerance::kSmallest;
  const double of_size = tolerance::kPUnit * size;
  return square(tolerance::kRmsOfRounding * (of_size > least ? of_size : least));
}
// Of an fp32 function's value f, whose argument may be off: the functions of its ends beside it. An
// end that is infinite, times a probability of nothing, is nothing.
ATT_FN double function_variance(float f, float low, float high, float size) {
  constexpr float kLargest = 1e30f;
  const float spread = math_max(math_abs(f - low), math_abs(high - f));
  const double error = (spread < kLargest ? spread : kLargest) + tolerance::kScoreNoise * size;
  return square(error / tolerance::kDeviations);
}

ATT_FN double reference_softmax_scale(const ForwardParams& p) {
  return spec::kScaleAtLaunch ? p.softmax_scale : spec::kSoftmaxScale;
}
ATT_FN double reference_keep_scale(const Context& c) {
  if constexpr (spec::kHasDropout) return dropout_keep_scale(c);
  return 1;
}

// What a query has beside its rows.
struct ReferenceQuery {
  double lse, lse_variance;  // -inf: it has no live key
  double delta, delta_variance;
};
ATT_FN double lse_variance(double lse) {
  const double size = lse < 0 ? -lse : lse;
  return square((2 * tolerance::kLseUnit * size + tolerance::kLseSmallest) /
                tolerance::kDeviations);
}
ATT_FN ReferenceQuery query_of(const GradientReferenceParams& p, long long row) {
  const double lse = p.launch.lse[row];
  return {lse, lse_variance(lse), p.deltas[2 * row], p.deltas[2 * row + 1]};
}

// What a query and a key add to gradients.
struct PairGradient {
  bool live;
  float product, reach;            // scaled, as score() takes it; a kernel's is within `reach`
  double probability;              // undropped
  double weight, weight_variance;  // of dO in dV; 0 of a dropped element
  bool kept;
  double score, score_variance;       // gradient of the score that the softmax takes, but for D's
  double product_gradient, variance;  // of the raw product
  double of_delta;                    // what that changes by with -D
};

ATT_FN PairGradient pair_gradient(const Context& c, const BackwardParams& p,
                                  const ReferenceQuery& query, int q_idx, int kv_idx) {
  PairGradient pair = {};
  if (query.lse == -infinity() || kv_idx >= c.kv_len || q_idx >= c.q_len) return pair;
  if (spec::kHasMask && !mask(c, q_idx, kv_idx)) return pair;
  const Sequence sequence = sequence_of(p, c.b);
  const double scale = reference_softmax_scale(p);
  const ReferenceDot product =
      reference_dot<spec::kHeadDimQk>(p.q, query_offset(sequence, p.q_stride, c.h, q_idx), p.k,
                                      key_offset(sequence, p.k_stride, c.h_kv, kv_idx));
  const double scaled = scale * product.sum;
  const double scaled_variance = square(scale) * variance_of(product, spec::kHeadDimQk);
  double score_value = scaled, of_score = scaled_variance, slope = 1, slope_variance = 0;
  pair.product = static_cast<float>(scaled);
  if constexpr (spec::kHasScore) {
    const float x = pair.product;
    const auto reach = static_cast<float>(tolerance::kDeviations * sqrt_exact(scaled_variance));
    pair.reach = reach;
    const float s = score(c, x, q_idx, kv_idx);
    if (s == -infinity()) return pair;
    of_score =
        function_variance(s, score(c, x - reach, q_idx, kv_idx), score(c, x + reach, q_idx, kv_idx),
                          1.0f + math_abs(s) + math_abs(x));
    score_value = s;
    if constexpr (!kScoreGradIsOne) {
      const float f = score_grad(c, x, q_idx, kv_idx);
      slope = f;
      slope_variance =
          function_variance(f, score_grad(c, x - reach, q_idx, kv_idx),
                            score_grad(c, x + reach, q_idx, kv_idx), 1.0f + math_abs(f));
    }
    slope_variance += square(tolerance::kFunctionRounding * (1 + (slope < 0 ? -slope : slope)));
  }
  of_score += square(tolerance::kFunctionRounding * score_value);
  const double lse_size = query.lse < 0 ? -query.lse : query.lse;
  const double score_size = score_value < 0 ? -score_value : score_value;
  // Relative, of the probability.
  const double deviation = of_score + query.lse_variance +
                           square(tolerance::kFp32Rounding * (4 + 3 * score_size + lse_size));

  pair.live = true;
  pair.probability = exp_exact(score_value - query.lse);
  pair.kept = !(spec::kHasDropout && is_dropped(c, q_idx, kv_idx));
  double d_p = 0, d_p_variance = 0;
  if (pair.kept) {
    const double keep = reference_keep_scale(c);
    const ReferenceDot dot =
        reference_dot<spec::kHeadDimV>(p.d_o, query_offset(sequence, p.d_o_stride, c.h, q_idx), p.v,
                                       key_offset(sequence, p.v_stride, c.h_kv, kv_idx));
    d_p = keep * dot.sum;
    d_p_variance = square(keep) * variance_of(dot, spec::kHeadDimV);
    pair.weight = pair.probability * keep;
    // P is rounded, and then scaled for what dropout drops.
    pair.weight_variance =
        square(keep) * rounding_variance(pair.probability) + square(pair.weight) * deviation;
  }
  const double d_s = pair.probability * (d_p - query.delta);
  pair.score = d_s;
  pair.score_variance =
      square(d_s) * deviation +
      square(pair.probability) *
          (d_p_variance + square(tolerance::kFp32Rounding) * (square(d_p) + square(query.delta)));
  pair.product_gradient = d_s * slope * scale;
  pair.variance =
      square(scale) * (rounding_variance(d_s * slope) + pair.score_variance * square(slope) +
                       square(d_s) * slope_variance);
  pair.of_delta = pair.probability * slope * scale;
  return pair;
}

// An element of a gradient and what its terms may be off by.
struct ReferenceSum {
  double value, variance, squares;
  ATT_MEMBER void add(double factor, double factor_variance, double element) {
    value += factor * element;
    variance += factor_variance * square(element);
    squares += square(factor) * square(element);
  }
};
// Of `count` terms: the pair of value and limit. `unit` and `smallest`: of its own rounding.
ATT_FN void write_expected(float* to, const ReferenceSum& sum, double count, double unit,
                           double smallest, double truncation) {
  const double size = sum.value < 0 ? -sum.value : sum.value;
  const double of_sum =
      square(tolerance::kFp32Rounding) * count * (sum.squares / 2 + square(size) / 3);
  to[0] = static_cast<float>(sum.value);
  to[1] = static_cast<float>(unit * size + smallest + tolerance::kUnderflow +
                             tolerance::kDeviations * sqrt_exact(sum.variance + of_sum) +
                             truncation * count * sqrt_exact(square(size) + sum.squares));
}
ATT_FN void write_element(float* to, const ReferenceSum& sum, double count) {
  write_expected(to, sum, count, tolerance::kUnit, tolerance::kSmallest, tolerance::kTruncation);
}

// ---- D of every row.

ATT_FN void reference_delta(const GradientReferenceParams& params, long long row, int lane) {
  const BackwardParams& p = params.launch;
  const long long head = row / p.q_len;
  const int q_idx = static_cast<int>(row % p.q_len);
  const Sequence sequence = sequence_of(p, static_cast<int>(head / p.heads));
  const int h = static_cast<int>(head % p.heads);
  const bool is_dead = p.lse[row] == -infinity();
  const long long o = query_offset(sequence, p.o_stride, h, q_idx);
  const long long d_o = query_offset(sequence, p.d_o_stride, h, q_idx);
  double sum = 0, squares = 0;
  for (int d = lane; d < spec::kHeadDimV && !is_dead; d += kReferenceLanes) {
    const double term =
        static_cast<double>(operand(read_element(p.d_o, d_o + d))) * read_element(p.o, o + d);
    sum += term;
    squares += square(term);
  }
  sum = warp_sum(sum);
  squares = warp_sum(squares);
  if (lane != 0) return;
  if (p.d_lse != nullptr && !is_dead) sum -= p.d_lse[row];
  params.deltas[2 * row] = sum;
  params.deltas[2 * row + 1] = square(tolerance::kFp32Rounding) * squares * spec::kHeadDimV;
}

// ---- What is learned.

// `live`: of this lane. Where all live lanes have one element, it is added to once.
ATT_FN void add_learned(double* sums, int lane, bool live, long long offset, double value,
                        double variance) {
  const unsigned lanes = ballot(live);
  if (lanes == 0) return;
  int first = 0;
  while ((lanes >> first & 1u) == 0) ++first;
  const auto common =
      __builtin_bit_cast(long long, shuffle_from(__builtin_bit_cast(double, offset), first));
  if (ballot(live && offset != common) != 0) {
    if (!live) return;
    double* const to = sums + offset * kLearnedSums;
    atomic_add(to, value);
    atomic_add(to + 1, variance);
    atomic_add(to + 2, square(value));
    atomic_add(to + 3, 1);
    return;
  }
  const double terms[kLearnedSums] = {live ? value : 0, live ? variance : 0,
                                      live ? square(value) : 0, live ? 1.0 : 0.0};
  double* const to = sums + common * kLearnedSums;
  for (int i = 0; i < kLearnedSums; ++i) {
    const double sum = warp_sum(terms[i]);
    if (lane == 0) atomic_add(to + i, sum);
  }
}

ATT_FN double partial_variance(double gradient, double variance, float partial, double off) {
  return square(partial) * (variance + square(tolerance::kFunctionRounding * gradient)) +
         square(gradient) * off;
}

// Of one pair a lane, whose query is asked for.
template <int kLoad>
ATT_FN void add_look_ups(const GradientReferenceParams& params, int lane, const Context& c,
                         const ReferenceQuery& query, const PairGradient& pair, int q_idx,
                         int kv_idx) {
  if constexpr (kLoad < kGradLoads) {
    if (double* const sums = params.tensors[kGradLoadSlot[kLoad]]; sums != nullptr) {
      double value = 0, variance = 0;
      long long offset = 0;
      if (pair.live) {
        offset = grad_load_offset<kLoad>(c, q_idx, kv_idx);
        const float partial = score_grad_load<kLoad>(c, pair.product, q_idx, kv_idx);
        double off = 0;
        if constexpr (!kGradLoadIsOne[kLoad]) {
          off = function_variance(
              partial, score_grad_load<kLoad>(c, pair.product - pair.reach, q_idx, kv_idx),
              score_grad_load<kLoad>(c, pair.product + pair.reach, q_idx, kv_idx),
              1.0f + math_abs(partial));
        }
        value = pair.score * partial;
        variance = partial_variance(pair.score,
                                    pair.score_variance + pair.probability * query.delta_variance,
                                    partial, off);
      }
      add_learned(sums, lane, pair.live, offset, value, variance);
    }
    add_look_ups<kLoad + 1>(params, lane, c, query, pair, q_idx, kv_idx);
  }
}

template <int kLoad>
ATT_FN void add_sink_look_ups(const GradientReferenceParams& params, int lane, const Context& c,
                              bool live, double gradient, double variance) {
  if constexpr (kLoad < kSinkGradLoads) {
    if (double* const sums = params.tensors[kSinkGradLoadSlot[kLoad]]; sums != nullptr) {
      const float partial = sink_grad_load<kLoad>(c);
      const double off =
          partial == 1.0f ? 0
                          : function_variance(partial, partial, partial, 1.0f + math_abs(partial));
      add_learned(sums, lane, live, sink_grad_load_offset<kLoad>(c), gradient * partial,
                  partial_variance(gradient, variance, partial, off));
    }
    add_sink_look_ups<kLoad + 1>(params, lane, c, live, gradient, variance);
  }
}

// The sink of a (batch, head), and the tensors that it looks up.
ATT_FN void reference_sink(const GradientReferenceParams& params, long long head, int lane) {
  if constexpr (spec::kHasSink) {
    const BackwardParams& p = params.launch;
    const int h = static_cast<int>(head % p.heads);
    const Context c =
        context_of(p, static_cast<int>(head / p.heads), h, h / (p.heads / p.kv_heads));
    const double logit = sink(c);
    const double size = logit < 0 ? -logit : logit;
    ReferenceSum sum = {};
    double count = 0;
    for (int q0 = 0; q0 < p.q_len; q0 += kReferenceLanes) {
      const int q_idx = q0 + lane;
      ReferenceQuery query = {-infinity(), 0, 0, 0};
      if (q_idx < p.q_len) query = query_of(params, head * p.q_len + q_idx);
      const bool live = query.lse != -infinity() && logit != -infinity();
      double gradient = 0, variance = 0;
      if (live) {
        const double lse_size = query.lse < 0 ? -query.lse : query.lse;
        const double probability = exp_exact(logit - query.lse);
        const double deviation =
            query.lse_variance + square(tolerance::kFp32Rounding * (4 + 3 * size + lse_size));
        gradient = -probability * query.delta;
        variance = square(probability) *
                   (query.delta_variance +
                    square(query.delta) * (square(tolerance::kFunctionRounding) + deviation));
        sum.value += gradient;
        sum.variance += variance;
        sum.squares += square(gradient);
        count += 1;
      }
      add_sink_look_ups<0>(params, lane, c, live, gradient, variance);
    }
    sum = {warp_sum(sum.value), warp_sum(sum.variance), warp_sum(sum.squares)};
    count = warp_sum(count);
    if (lane == 0)
      write_expected(params.sink + 2 * head, sum, count, tolerance::kLargestFp32Rounding,
                     tolerance::kSmallestFp32, 0);
  }
}

// ---- dQ of a row, and dK and dV of one.

ATT_FN void reference_query(const GradientReferenceParams& params, long long slot, int lane) {
  const BackwardParams& p = params.launch;
  const long long row = params.queries[slot];
  const long long head = row / p.q_len;
  const int q_idx = static_cast<int>(row % p.q_len), h = static_cast<int>(head % p.heads);
  const Context c = context_of(p, static_cast<int>(head / p.heads), h, h / (p.heads / p.kv_heads));
  const Sequence sequence = sequence_of(p, c.b);
  const ReferenceQuery query = query_of(params, row);
  ReferenceSum sums[kQkSlices] = {};
  double means[kQkSlices] = {};  // what dQ changes by with -D
  double count = 0;
  for (int k0 = 0; k0 < c.kv_len; k0 += kReferenceLanes) {
    const PairGradient pair = pair_gradient(c, p, query, q_idx, k0 + lane);
    const unsigned live = ballot(pair.live);
    if (live == 0) continue;
    add_look_ups<0>(params, lane, c, query, pair, q_idx, k0 + lane);
    for (int j = 0; j < kReferenceLanes; ++j) {
      if ((live >> j & 1u) == 0) continue;
      const double factor = shuffle_from(pair.product_gradient, j);
      const double variance = shuffle_from(pair.variance, j);
      const double of_delta = shuffle_from(pair.of_delta, j);
      const long long k = key_offset(sequence, p.k_stride, c.h_kv, k0 + j);
      count += 1;
#pragma unroll kQkUnroll
      for (int i = 0; i < kQkSlices; ++i) {
        const int d = kReferenceLanes * i + lane;
        if (d >= spec::kHeadDimQk) continue;
        const double element = operand(read_element(p.k, k + d));
        sums[i].add(factor, variance, element);
        means[i] += of_delta * element;
      }
    }
  }
#pragma unroll kQkUnroll
  for (int i = 0; i < kQkSlices; ++i) {
    const int d = kReferenceLanes * i + lane;
    if (d >= spec::kHeadDimQk) continue;
    // What is off in all of a row alike.
    if (count > 0)
      sums[i].variance +=
          query.delta_variance * square(means[i]) + query.lse_variance * square(sums[i].value);
    write_element(params.d_q + 2 * (slot * spec::kHeadDimQk + d), sums[i], count);
  }
}

ATT_FN void reference_key(const GradientReferenceParams& params, long long slot, int lane) {
  const BackwardParams& p = params.launch;
  const long long row = params.keys[slot];
  const long long head = row / p.kv_len;
  const int kv_idx = static_cast<int>(row % p.kv_len);
  const int b = static_cast<int>(head / p.kv_heads), h_kv = static_cast<int>(head % p.kv_heads);
  const int group = p.heads / p.kv_heads;
  const Sequence sequence = sequence_of(p, b);
  ReferenceSum d_k[kQkSlices] = {}, d_v[kVSlices] = {};
  double live_count = 0, kept_count = 0;
  for (int h = h_kv * group; h < (h_kv + 1) * group; ++h) {
    const Context c = context_of(p, sequence, b, h, h_kv);
    const long long first = (static_cast<long long>(b) * p.heads + h) * p.q_len;
    for (int q0 = 0; q0 < c.q_len; q0 += kReferenceLanes) {
      const int q_idx = q0 + lane;
      ReferenceQuery query = {-infinity(), 0, 0, 0};
      if (q_idx < c.q_len) query = query_of(params, first + q_idx);
      const PairGradient pair = pair_gradient(c, p, query, q_idx, kv_idx);
      const unsigned live = ballot(pair.live), kept = ballot(pair.live && pair.kept);
      if (live == 0) continue;
      const double of_key = pair.variance + square(pair.of_delta) * query.delta_variance;
      for (int j = 0; j < kReferenceLanes; ++j) {
        if ((live >> j & 1u) == 0) continue;
        const double factor = shuffle_from(pair.product_gradient, j);
        const double variance = shuffle_from(of_key, j);
        const long long q = query_offset(sequence, p.q_stride, h, q0 + j);
        live_count += 1;
#pragma unroll kQkUnroll
        for (int i = 0; i < kQkSlices; ++i) {
          const int d = kReferenceLanes * i + lane;
          if (d < spec::kHeadDimQk) d_k[i].add(factor, variance, operand(read_element(p.q, q + d)));
        }
        if ((kept >> j & 1u) == 0) continue;
        const double weight = shuffle_from(pair.weight, j);
        const double weight_variance = shuffle_from(pair.weight_variance, j);
        const long long d_o = query_offset(sequence, p.d_o_stride, h, q0 + j);
        kept_count += 1;
#pragma unroll kVUnroll
        for (int i = 0; i < kVSlices; ++i) {
          const int d = kReferenceLanes * i + lane;
          if (d < spec::kHeadDimV)
            d_v[i].add(weight, weight_variance, operand(read_element(p.d_o, d_o + d)));
        }
      }
    }
  }
#pragma unroll kQkUnroll
  for (int i = 0; i < kQkSlices; ++i) {
    const int d = kReferenceLanes * i + lane;
    if (d < spec::kHeadDimQk)
      write_element(params.d_k + 2 * (slot * spec::kHeadDimQk + d), d_k[i], live_count);
  }
#pragma unroll kVUnroll
  for (int i = 0; i < kVSlices; ++i) {
    const int d = kReferenceLanes * i + lane;
    if (d < spec::kHeadDimV)
      write_element(params.d_v + 2 * (slot * spec::kHeadDimV + d), d_v[i], kept_count);
  }
}

// ---- The judge.

template <int kWidth>
ATT_FN float worst_of(const void* gradient, long long at, const float* expected, int lane) {
  float worst = 0;
  for (int d = lane; d < kWidth; d += kReferenceLanes) {
    worst = math_max(worst,
                     excess(read_element(gradient, at + d), expected[2 * d], expected[2 * d + 1]));
  }
  return worst;
}

// Rows of dQ first, then those of dK and dV.
ATT_FN void reference_judge(const GradientReferenceParams& params, long long slot, int lane) {
  const BackwardParams& p = params.launch;
  float worst = 0;
  if (slot < params.query_count) {
    const long long row = params.queries[slot], head = row / p.q_len;
    const Sequence sequence = sequence_of(p, static_cast<int>(head / p.heads));
    const long long at = query_offset(sequence, p.d_q_stride, static_cast<int>(head % p.heads),
                                      static_cast<int>(row % p.q_len));
    worst = worst_of<spec::kHeadDimQk>(p.d_q, at, params.d_q + 2 * slot * spec::kHeadDimQk, lane);
  } else {
    const long long key = slot - params.query_count;
    const long long row = params.keys[key], head = row / p.kv_len;
    const Sequence sequence = sequence_of(p, static_cast<int>(head / p.kv_heads));
    const int h_kv = static_cast<int>(head % p.kv_heads), kv_idx = static_cast<int>(row % p.kv_len);
    worst =
        math_max(worst_of<spec::kHeadDimQk>(p.d_k, key_offset(sequence, p.d_k_stride, h_kv, kv_idx),
                                            params.d_k + 2 * key * spec::kHeadDimQk, lane),
                 worst_of<spec::kHeadDimV>(p.d_v, key_offset(sequence, p.d_v_stride, h_kv, kv_idx),
                                           params.d_v + 2 * key * spec::kHeadDimV, lane));
  }
  worst = warp_max(worst);
  if (lane == 0) params.worst[slot] = worst;
}

}  // namespace att
