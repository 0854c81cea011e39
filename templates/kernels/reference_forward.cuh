// The definition of attention on a GPU, as plainly as it can be written: no tiles, no matrix
// instructions, one warp a row. What the CPU oracle is for small problems this is for rows of a
// large one. The scaled product, mask, score and sink are the generated functions that kernels use.
//
// Rows are numbered (b * heads + h) * q_len + q_idx. The host names those it wants where other
// kernels have their scheduler's counter: their count, then their numbers; null for all. O [rows,
// v] and LSE [rows] are written in that order, both in fp32.
//
// att_reference_exact sums in fp64; att_reference_plain sums in fp32 and rounds P and O to the
// dtype, as the plain same-dtype computation does.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/math.cuh"
#include "templates/tile/dropout.cuh"

namespace att {

constexpr int kReferenceWarps = 4;
constexpr int kReferenceSlices = (spec::kHeadDimV + 31) / 32;  // of O, a column each for a lane

ATT_FN float read_element(const void* base, long long at) {
  if constexpr (spec::kDType == DType::f32) return static_cast<const float*>(base)[at];
  const unsigned bits = static_cast<const unsigned short*>(base)[at];
  if constexpr (spec::kDType == DType::bf16) return __builtin_bit_cast(float, bits << 16);
  float value;
  asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(value) : "r"(bits));
  return value;
}

ATT_FN float round_element(float x) {
  if constexpr (spec::kDType == DType::f32) return x;
  const unsigned short bits = static_cast<unsigned short>(pack_2<spec::kDType>(x, 0.0f));
  return read_element(&bits, 0);
}

ATT_FN double shuffle_xor(double x, int distance) {
  double y;
  asm volatile(
      "{.reg .b32 lo, hi; mov.b64 {lo, hi}, %1; shfl.sync.bfly.b32 lo, lo, %2, 31, -1;"
      "shfl.sync.bfly.b32 hi, hi, %2, 31, -1; mov.b64 %0, {lo, hi};}"
      : "=d"(y)
      : "d"(x), "r"(distance));
  return y;
}
ATT_FN double shuffle_from(double x, int lane) {
  double y;
  asm volatile(
      "{.reg .b32 lo, hi; mov.b64 {lo, hi}, %1; shfl.sync.idx.b32 lo, lo, %2, 31, -1;"
      "shfl.sync.idx.b32 hi, hi, %2, 31, -1; mov.b64 %0, {lo, hi};}"
      : "=d"(y)
      : "d"(x), "r"(lane));
  return y;
}

// e^x to fp64's precision for x <= 0; 0 below -700. 2^n e^r with |r| <= ln 2 / 2, Taylor to r^13.
ATT_FN double exp_exact(double x) {
  if (x != x) return x;
  if (x < -700) return 0;
  const int n = static_cast<int>(x * 1.4426950408889634 - 0.5);
  const double r = x - n * 0.6931471805599453;
  double sum = 1;
#pragma unroll
  for (int i = 13; i > 0; --i) sum = 1 + sum * r / i;
  return sum * __builtin_bit_cast(double, static_cast<long long>(n + 1023) << 52);
}

// ln x for x >= 1: two Newton steps on e^y = x from the hardware's lg2.
ATT_FN double log_exact(double x) {
  double y = math_log2(static_cast<float>(x)) * 0.6931471805599453;
  for (int step = 0; step < 2; ++step) y += x * exp_exact(-y) - 1;
  return y;
}

ATT_FN bool is_dropped(const Context& c, int q_idx, int kv_idx) {
  unsigned words[4];
  dropout_words(c, q_idx / 16, q_idx % 8, kv_idx / 32, kv_idx % 8 / 2, words);
  const int byte = q_idx % 16 / 8 * 8 + kv_idx % 32 / 8 * 2 + kv_idx % 2;
  return (words[byte / 4] >> (8 * (byte % 4)) & 255u) < dropout_drop_below(c);
}

// One row. Sum is what products are summed in.
template <typename Sum, bool kRound>
struct ReferenceRow {
  const Context& c;
  const int q_idx;

  // Score of a key, -inf when it is dead.
  ATT_MEMBER double score_of(int kv_idx) const {
    const ForwardParams& p = c.params;
    if (kv_idx >= c.kv_len || (spec::kHasMask && !mask(c, q_idx, kv_idx))) return -infinity();
    const long long q = c.b * p.q_stride.batch + c.h * p.q_stride.head + q_idx * p.q_stride.seq;
    const long long k = c.b * p.k_stride.batch + c.h_kv * p.k_stride.head + kv_idx * p.k_stride.seq;
    Sum product = 0;
    for (int d = 0; d < spec::kHeadDimQk; ++d) {
      product += static_cast<Sum>(read_element(p.q, q + d)) * read_element(p.k, k + d);
    }
    product *= spec::kScaleAtLaunch ? p.softmax_scale : spec::kSoftmaxScale;
    if constexpr (spec::kHasScore) return score(c, static_cast<float>(product), q_idx, kv_idx);
    return product;
  }

  // `slot`: where the row stands in the outputs.
  ATT_MEMBER void run(int lane, long long slot) const {
    const ForwardParams& p = c.params;
    double maximum = -infinity();
    bool any = false;
    for (int k = lane; k < c.kv_len; k += 32) {
      const double s = score_of(k);
      any = any || s != -infinity();  // a NaN counts
      if (s > maximum) maximum = s;
    }
    if constexpr (spec::kHasSink) {
      const double s = sink(c);
      any = any || s != -infinity();
      if (s > maximum) maximum = s;
    }
    double some = any ? 1 : 0;
    for (int distance = 16; distance > 0; distance /= 2) {
      const double other = shuffle_xor(maximum, distance);
      if (other > maximum) maximum = other;
      some += shuffle_xor(some, distance);
    }

    double total = 0;
    for (int k = lane; some > 0 && k < c.kv_len; k += 32) {
      const double s = score_of(k);
      if (s != -infinity()) total += exp_exact(s - maximum);
    }
    for (int distance = 16; distance > 0; distance /= 2) total += shuffle_xor(total, distance);
    if constexpr (spec::kHasSink) total += exp_exact(sink(c) - maximum);

    Sum o[kReferenceSlices] = {};
    for (int k0 = 0; some > 0 && k0 < c.kv_len; k0 += 32) {
      const double s = score_of(k0 + lane);
      const bool live = s != -infinity();
      double weight = live ? exp_exact(s - maximum) / total : -1;
      if (kRound && live) weight = round_element(static_cast<float>(weight));
      if (spec::kHasDropout && live && is_dropped(c, q_idx, k0 + lane)) weight = 0;
      for (int j = 0; j < 32; ++j) {
        const double w = shuffle_from(weight, j);
        if (w < 0) continue;  // dead: its V must not count
        const long long v =
            c.b * p.v_stride.batch + c.h_kv * p.v_stride.head + (k0 + j) * p.v_stride.seq;
        for (int i = 0; i < kReferenceSlices; ++i) {
          const int d = 32 * i + lane;
          if (d < spec::kHeadDimV) o[i] += static_cast<Sum>(w) * read_element(p.v, v + d);
        }
      }
    }
    const float keep_scale = spec::kHasDropout ? dropout_keep_scale(c) : 1.0f;
    auto* out = static_cast<float*>(p.o) + slot * spec::kHeadDimV;
    for (int i = 0; i < kReferenceSlices; ++i) {
      const int d = 32 * i + lane;
      const auto value = static_cast<float>(o[i] * keep_scale);
      if (d < spec::kHeadDimV) out[d] = kRound ? round_element(value) : value;
    }
    if (lane == 0) {
      p.lse[slot] = some > 0 ? static_cast<float>(maximum + log_exact(total)) : -infinity();
    }
  }
};

template <typename Sum, bool kRound>
ATT_FN void reference_forward(const ForwardParams& params) {
  const int slot = block_index() * kReferenceWarps + thread_index() / 32;
  const int* rows = params.scheduler_counter;
  if (slot >= (rows != nullptr ? rows[0] : params.batch * params.heads * params.q_len)) return;
  const int row = rows != nullptr ? rows[1 + slot] : slot;
  const int head = row / params.q_len;
  const int h = head % params.heads;
  const Context c{params,       head / params.heads, h, h / (params.heads / params.kv_heads),
                  params.q_len, params.kv_len};
  ReferenceRow<Sum, kRound>{c, row % params.q_len}.run(thread_index() % 32, slot);
}

}  // namespace att

ATT_KERNEL att_reference_exact(ATT_GRID_CONSTANT att::ForwardParams params) {
  att::reference_forward<double, false>(params);
}
ATT_KERNEL att_reference_plain(ATT_GRID_CONSTANT att::ForwardParams params) {
  att::reference_forward<float, true>(params);
}
