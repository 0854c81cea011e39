// Gradients of tensors and sinks from what the kernels left: zeroes before them, gradients of
// sinks, and the last launch, which adds up sums in a fixed order.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/learned_sums.cuh"
#include "templates/work_items.h"

namespace att {

// ---- Before.

// Of the gradients that are asked for, and of sums; the grid shares the work.
ATT_FN void clear_learned_gradients(const BackwardParams& p) {
  [[maybe_unused]] const auto clear = [](float* to, long long count) {
    const long long first = static_cast<long long>(block_index()) * kRowThreads + thread_index();
    const long long step = static_cast<long long>(block_count()) * kRowThreads;
    for (long long i = first; i < count; i += step) to[i] = 0.0f;
  };
  if constexpr (kGradLoads + kSinkGradLoads > 0) {
    for (int slot = 0; slot < kMaxTensors; ++slot) {
      if (p.d_tensors[slot] == nullptr) continue;
      long long count = 1;
      for (int i = 0; i < kMaxTensorDims; ++i) count *= p.tensors[slot].size[i];
      clear(p.d_tensors[slot], count);
    }
  }
  // Keys that no query sees have no sums.
  if constexpr (kLearnedColumns > 0) {
    clear(p.learned_sums, static_cast<long long>(slice_count(p)) * p.heads *
                              learned_units_of_head(p) * kLearnedColumns);
  }
  if constexpr (spec::kHasSink) {
    if (p.d_sink != nullptr && block_index() == 0) {
      for (int i = thread_index(); i < p.batch * p.heads; i += kRowThreads) p.d_sink[i] = 0.0f;
    }
  }
}

// ---- Sinks.

// What queries q0, q0 + step, ... of a head add to the gradient of its sink: -exp(sink - LSE) D
// each.
ATT_FN float sink_gradient(const BackwardParams& p, const Sequence& sequence, const Context& c,
                           int q0, int q1, int step) {
  float sum = 0.0f;
  for (int q = q0; q < q1; q += step) {
    const float lse = p.lse[statistic_offset(p, sequence, c.h) + q];
    // Of a row without live keys only the sink is left, and O is 0 whatever it is.
    const float weight = math_exp2((sink(c) - lse) * kLog2E);
    sum -= !has_weights(lse) ? 0.0f
                             : weight * row_delta(p, first_padded_row(p, sequence, c.b, c.h) + q);
  }
  return sum;
}

template <int kLoad>
ATT_FN void add_to_sink_look_ups(const BackwardParams& p, const Context& c, float gradient) {
  float* const to = p.d_tensors[kSinkGradLoadSlot[kLoad]];
  if (to != nullptr) {
    reduce_add(to + sink_grad_load_offset<kLoad>(c), gradient * sink_grad_load<kLoad>(c));
  }
  if constexpr (kLoad + 1 < kSinkGradLoads) add_to_sink_look_ups<kLoad + 1>(p, c, gradient);
}

// Adds what queries [q0, q1) of a head add to the gradient of its sink; one warp. Where sums have
// an order, the last launch does so.
ATT_FN void add_sink_gradient(const BackwardParams& p, const Sequence& sequence, int b, int h,
                              int q0, int q1) {
  if constexpr (spec::kHasSink && !plan::kOrderedSums) {
    const Context c = item_context(p, sequence, b, h, h / (p.heads / p.kv_heads));
    const long long head = static_cast<long long>(b) * p.heads + h;
    const float sum = warp_sum(sink_gradient(p, sequence, c, q0 + thread_index() % 32, q1, 32));
    if (thread_index() % 32 != 0) return;
    if (p.d_sink != nullptr) reduce_add(p.d_sink + head, sum);
    if constexpr (kSinkGradLoads > 0) add_to_sink_look_ups<0>(p, c, sum);
  }
}

// ---- The last launch.

constexpr int kTotalThreads = 1024;

// Adds up `value` of every thread whose index is the same modulo kWide, in a fixed order. The sum
// is thread's number kWide and below.
template <int kWide>
ATT_FN float sum_of_slices(float value, unsigned shared) {
  const unsigned own = shared + thread_index() * 4;
#pragma unroll 1
  for (int half = kTotalThreads / 2; half >= kWide; half /= 2) {
    store_shared_4(own, __builtin_bit_cast(unsigned, value));
    sync_threads();
    if (thread_index() < half) {
      value += __builtin_bit_cast(float, load_shared_4(own + half * 4));
    }
    sync_threads();
  }
  return value;
}

// Of head number `index` of the batch.
ATT_FN Context context_of_head(const BackwardParams& p, int index) {
  const int b = index / p.heads, h = index - b * p.heads;
  return context_of(p, b, h, h / (p.heads / p.kv_heads));
}

// visit(c, index) for all of them.
template <typename Visit>
ATT_FN void for_each_head(const BackwardParams& p, const Visit& visit) {
  const int group = p.heads / p.kv_heads;
  int index = 0;
#pragma unroll 1
  for (int b = 0; b < p.batch; ++b) {
    const Sequence sequence = sequence_of(p, b);
    int h = 0;
#pragma unroll 1
    for (int h_kv = 0; h_kv < p.kv_heads; ++h_kv) {
#pragma unroll 1
      for (const int end = h + group; h < end; ++h, ++index) {
        visit(context_of(p, sequence, b, h, h_kv), index);
      }
    }
  }
}

// Look-ups of one tensor may share elements whatever their offsets are.
ATT_FN constexpr int look_ups_of(int slot) {
  int count = 0;
  for (int i = 0; i < kGradLoads; ++i) count += kGradLoadSlot[i] == slot;
  for (int i = 0; i < kSinkGradLoads; ++i) count += kSinkGradLoadSlot[i] == slot;
  return count;
}

// The heads that add to the same elements: their first offset is `offset(c)`. Which of them this
// one is, and how many there are; one CTA does the work of all of a tensor that is looked up in
// several ways.
struct Sharers {
  int rank, count;
};
template <int kSlot, typename Offset>
ATT_FN Sharers sharers_of(const BackwardParams& p, int index, const Offset& offset) {
  const long long own = offset(context_of_head(p, index));
  Sharers found{0, 0};
  for_each_head(p, [&](const Context& c, int other) {
    if (offset(c) != own) return;
    found.rank += other < index ? 1 : 0;
    ++found.count;
  });
  if constexpr (look_ups_of(kSlot) > 1) found.count = 1;
  return found;
}

template <int kBins>
ATT_FN constexpr int columns_at_once() {
  int columns = 1;
  while (columns < kBins && columns < kTotalThreads / 4) columns *= 2;
  return columns;
}

// Adds the sums of look-up kLoad of head `index` and of those that share its elements.
template <int kLoad>
ATT_FN void add_up(const BackwardParams& p, int index, unsigned shared) {
  constexpr int kBins = kGradLoadBins[kLoad], kWide = columns_at_once<kBins>();
  constexpr int kSlices = kTotalThreads / kWide;
  float* const tensor = p.d_tensors[kGradLoadSlot[kLoad]];
  if (tensor == nullptr) return;
  const auto offset = [](const Context& c) { return grad_load_base<kLoad>(c); };
  const Sharers sharers = sharers_of<kGradLoadSlot[kLoad]>(p, index, offset);
  if (sharers.rank >= sharers.count) return;
  const long long base = offset(context_of_head(p, index));
  const int slice = thread_index() / kWide;
  for (int first = sharers.rank * kWide; first < kBins; first += sharers.count * kWide) {
    const int column = first + thread_index() % kWide;
    float sum = 0.0f;
    for_each_head(p, [&](const Context& c, int) {
      if (offset(c) != base || column >= kBins) return;
      const float* const from =
          learned_sums(p, sequence_of(c), c.b, c.h, 0) + learned_columns(kLoad) + column;
      const int units = tile_count(c.kv_len, kLearnedKeys);
#pragma unroll 4
      for (int unit = slice; unit < units; unit += kSlices) {
        sum += from[static_cast<long long>(unit) * kLearnedColumns];
      }
    });
    sum = sum_of_slices<kWide>(sum, shared);
    if (slice == 0 && column < kBins) tensor[base + column] += sum;
    sync_threads();
  }
}

// All queries' part of a sink's gradient, of head `index`; thread 0's sum counts.
ATT_FN float whole_sink_gradient(const BackwardParams& p, int index, unsigned shared) {
  const Context c = context_of_head(p, index);
  const float part = sink_gradient(p, sequence_of(c), c, thread_index(), c.q_len, kTotalThreads);
  return sum_of_slices<1>(part, shared);
}

template <int kLoad>
ATT_FN void add_up_sinks(const BackwardParams& p, int index, unsigned shared) {
  float* const tensor = p.d_tensors[kSinkGradLoadSlot[kLoad]];
  if (tensor == nullptr) return;
  const auto offset = [](const Context& c) { return sink_grad_load_offset<kLoad>(c); };
  const Sharers sharers = sharers_of<kSinkGradLoadSlot[kLoad]>(p, index, offset);
  if (sharers.rank > 0) return;
  const long long own = offset(context_of_head(p, index));
  for_each_head(p, [&](const Context& c, int other) {
    if (offset(c) != own) return;
    const float gradient = whole_sink_gradient(p, other, shared);
    if (thread_index() == 0) tensor[own] += gradient * sink_grad_load<kLoad>(c);
  });
  sync_threads();
}

template <int kLoad, bool kAlone>
ATT_FN void add_up_look_ups(const BackwardParams& p, int index, unsigned shared) {
  if constexpr (kLoad < kGradLoads) {
    if constexpr (has_sums(kLoad) && (look_ups_of(kGradLoadSlot[kLoad]) == 1) == kAlone) {
      add_up<kLoad>(p, index, shared);
    }
    add_up_look_ups<kLoad + 1, kAlone>(p, index, shared);
  }
}
template <int kLoad, bool kAlone>
ATT_FN void add_up_sink_look_ups(const BackwardParams& p, int index, unsigned shared) {
  if constexpr (plan::kOrderedSums && kLoad < kSinkGradLoads) {
    if constexpr ((look_ups_of(kSinkGradLoadSlot[kLoad]) == 1) == kAlone) {
      add_up_sinks<kLoad>(p, index, shared);
    }
    add_up_sink_look_ups<kLoad + 1, kAlone>(p, index, shared);
  }
}

// A CTA's: heads block_index(), block_index() + block_count(), ... of the batch.
ATT_FN void add_up_learned(const BackwardParams& p, unsigned shared) {
  const int heads = p.batch * p.heads;
  for (int index = block_index(); index < heads; index += block_count()) {
    if constexpr (spec::kHasSink && plan::kOrderedSums) {
      if (p.d_sink != nullptr) {
        const float gradient = whole_sink_gradient(p, index, shared);
        if (thread_index() == 0) p.d_sink[index] = gradient;
      }
    }
    add_up_look_ups<0, true>(p, index, shared);
    add_up_sink_look_ups<0, true>(p, index, shared);
  }
  if (block_index() != 0) return;
  for (int index = 0; index < heads; ++index) {
    add_up_look_ups<0, false>(p, index, shared);
    add_up_sink_look_ups<0, false>(p, index, shared);
  }
}

}  // namespace att
