// Gradients of what the score looks up: sums over the elements that look a number up.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_rows.cuh"

namespace att {

ATT_FN void reduce_add(float* to, float value) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

ATT_FN float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += shuffle_xor(value, distance);
  return value;
}

// A thread's part. What one (b, h) has one number of is summed in a register, and added to memory
// once a head and warp; anything else element by element.
struct LearnedGradients {
  const BackwardParams& p;
  float totals[kGradLoads > 0 ? kGradLoads : 1] = {};
  int h = -1;  // whose totals these are

  const bool learns;

  ATT_MEMBER explicit LearnedGradients(const BackwardParams& p, bool learns = true)
      : p(p), learns(learns) {}

  // Before the elements of a tile. The whole warp calls it.
  ATT_MEMBER void begin_tile(const Context& c) {
    if constexpr (kGradLoads > 0) {
      if (h >= 0 && h != c.h) flush(c);
      h = c.h;
    }
  }
  // After the last tile, if there was one; c.h does not matter.
  ATT_MEMBER void flush(const Context& c) {
    if constexpr (kGradLoads > 0) {
      if (h < 0 || !learns) return;
      flush_from<0>(context_of(c.params, sequence_of(c), c.b, h, c.h_kv));
    }
  }

  // Of an element: the scaled product, and the gradient of what the score makes of it. Where the
  // score is the product plus something, the latter does not depend on the former.
  ATT_MEMBER void add(const Context& c, int q, int k, float s, float d_score) {
    if constexpr (kGradLoads > 0) {
      if (learns) add_from<0>(c, q, k, s, d_score);
    }
  }

 private:
  template <int kLoad>
  ATT_MEMBER void add_from(const Context& c, int q, int k, float s, float d_score) {
    const float value =
        kGradLoadIsOne[kLoad] ? d_score : d_score * score_grad_load<kLoad>(c, s, q, k);
    if constexpr (kGradLoadBins[kLoad] == 1) {
      totals[kLoad] += d_score == 0.0f ? 0.0f : value;
    } else if (d_score != 0.0f && p.d_tensors[kGradLoadSlot[kLoad]] != nullptr) {
      reduce_add(p.d_tensors[kGradLoadSlot[kLoad]] + grad_load_offset<kLoad>(c, q, k), value);
    }
    if constexpr (kLoad + 1 < kGradLoads) add_from<kLoad + 1>(c, q, k, s, d_score);
  }
  template <int kLoad>
  ATT_MEMBER void flush_from(const Context& c) {
    if constexpr (kGradLoadBins[kLoad] == 1) {
      const float sum = warp_sum(totals[kLoad]);
      float* const to = p.d_tensors[kGradLoadSlot[kLoad]];
      if (to != nullptr && thread_index() % 32 == 0) {
        reduce_add(to + grad_load_base<kLoad>(c), sum);
      }
      totals[kLoad] = 0.0f;
    }
    if constexpr (kLoad + 1 < kGradLoads) flush_from<kLoad + 1>(c);
  }
};

// ---- Zeroes and sinks, by the kernels before and after.

// Of the gradients that are asked for; the grid shares the work.
ATT_FN void clear_learned_gradients(const BackwardParams& p) {
  if constexpr (kGradLoads + kSinkGradLoads > 0) {
    const long long first = static_cast<long long>(block_index()) * kRowThreads + thread_index();
    const long long step = static_cast<long long>(block_count()) * kRowThreads;
    for (int slot = 0; slot < kMaxTensors; ++slot) {
      if (p.d_tensors[slot] == nullptr) continue;
      long long count = 1;
      for (int i = 0; i < kMaxTensorDims; ++i) count *= p.tensors[slot].size[i];
      for (long long i = first; i < count; i += step) p.d_tensors[slot][i] = 0.0f;
    }
  }
  if constexpr (spec::kHasSink) {
    if (p.d_sink != nullptr && block_index() == 0) {
      for (int i = thread_index(); i < p.batch * p.heads; i += kRowThreads) p.d_sink[i] = 0.0f;
    }
  }
}

template <int kLoad>
ATT_FN void add_to_sink_look_ups(const BackwardParams& p, const Context& c, float gradient) {
  float* const to = p.d_tensors[kSinkGradLoadSlot[kLoad]];
  if (to != nullptr) {
    reduce_add(to + sink_grad_load_offset<kLoad>(c), gradient * sink_grad_load<kLoad>(c));
  }
  if constexpr (kLoad + 1 < kSinkGradLoads) add_to_sink_look_ups<kLoad + 1>(p, c, gradient);
}

// What queries [q0, q1) of a head add to the gradient of its sink: -exp(sink - LSE) D each. One
// warp.
ATT_FN void add_sink_gradient(const BackwardParams& p, const Sequence& sequence, int b, int h,
                              int q0, int q1) {
  if constexpr (spec::kHasSink) {
    const Context c = item_context(p, sequence, b, h, h / (p.heads / p.kv_heads));
    const long long head = static_cast<long long>(b) * p.heads + h;
    float sum = 0.0f;
    for (int q = q0 + thread_index() % 32; q < q1; q += 32) {
      const float lse = p.lse[statistic_offset(p, sequence, h) + q];
      // Of a row without live keys only the sink is left, and O is 0 whatever it is.
      const float weight = math_exp2((sink(c) - lse) * kLog2E);
      sum -= lse == -infinity() ? 0.0f
                                : weight * row_delta(p, first_padded_row(p, sequence, b, h) + q);
    }
    sum = warp_sum(sum);
    if (thread_index() % 32 != 0) return;
    if (p.d_sink != nullptr) reduce_add(p.d_sink + head, sum);
    if constexpr (kSinkGradLoads > 0) add_to_sink_look_ups<0>(p, c, sum);
  }
}

}  // namespace att
