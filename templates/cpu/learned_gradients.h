// Gradients of what the score and the sink look up: sums of dS over the elements that look a number
// up.
//
// Of what one (b, h) has a known number (a slope, a table by distance) each item has sums of its
// own in the workspace, and the last launch adds them up in a fixed order. Anything else is added
// to memory element by element.
#pragma once

#include "templates/cpu/backward_scores.h"
#include "templates/sequence.h"
#include "templates/work_items.h"

namespace att {

constexpr int learned_columns(int loads) {
  int columns = 0;
  for (int i = 0; i < loads; ++i) columns += kGradLoadBins[i];
  return columns;
}
constexpr int kLearnedColumns = learned_columns(kGradLoads);

// Keys of a tile that has sums of its own.
constexpr int kLearningTile = plan::kWholeHeads ? __INT_MAX__ : plan::kTile;

// The sums that tile `tile` of the keys of a sequence has of head h: kLearnedColumns of them.
ATT_INLINE float* learned_sums(const BackwardParams& p, const Sequence& sequence, int b, int h,
                               int tile) {
  const int keys = p.kv_len;
  const int tiles = spec::kIsPacked     ? sequence_item_count(keys, p.batch, kLearningTile)
                    : plan::kWholeHeads ? 1
                                        : tile_count(keys, kLearningTile);
  const int before = spec::kIsPacked ? first_sequence_tile(sequence.kv_first, b, kLearningTile) : 0;
  const long long head = static_cast<long long>(sequence.slice) * p.heads + h;
  return p.learned_sums + (head * tiles + before + tile) * kLearnedColumns;
}

ATT_INLINE void clear_learned_sums(float* sums) {
  for (int i = 0; i < kLearnedColumns; ++i) sums[i] = 0.0f;
}

ATT_INLINE void atomic_add(float* to, float value) {
  typedef unsigned __attribute__((may_alias)) Bits;
  Bits* const at = reinterpret_cast<Bits*>(to);
  unsigned old = __atomic_load_n(at, __ATOMIC_RELAXED);
  unsigned sum = 0;
  do {
    sum = __builtin_bit_cast(unsigned, __builtin_bit_cast(float, old) + value);
  } while (!__atomic_compare_exchange_n(at, &old, sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

// A tile's elements: the gradient of what the score makes of the scaled product, and that product.
struct LearnedTile {
  const ProductTile& s;  // where the score is s plus something, nothing depends on s
  const ScoreTile& d;
  float product(int row, int lane) const { return kKeepsProducts ? s[row][lane] : 0.0f; }
};

// Of an element whose gradient is not 0.
template <int kLoad>
ATT_INLINE float learned_term(const Context& c, int q, int k, float s, float d_score) {
  return kGradLoadIsOne[kLoad] ? d_score : d_score * score_grad_load<kLoad>(c, s, q, k);
}

// One number a head: sums of every lane first.
template <int kLoad>
ATT_INLINE void add_to_slope(const Context& c, const Box& box, const LearnedTile& tile,
                             float* sum) {
  float totals[kBlockLanes] = {};
  for (int row = 0; row < box.rows; ++row) {
#pragma clang loop vectorize(assume_safety) interleave_count(1)
    for (int lane = 0; lane < box.lanes; ++lane) {
      const float d_score = tile.d[row][lane];
      const float term = learned_term<kLoad>(c, box.row0 + row, box.lane0 + lane,
                                             tile.product(row, lane), d_score);
      totals[lane] += d_score == 0.0f ? 0.0f : term;
    }
  }
  for (int lane = 0; lane < box.lanes; ++lane) *sum += totals[lane];
}

// Elements of one distance share a number: the tile's diagonals first.
template <int kLoad>
ATT_INLINE void add_to_distances(const Context& c, const Box& box, const LearnedTile& tile,
                                 float* sums) {
  float diagonals[kStep + kBlockLanes] = {};
  const int last_row = box.rows - 1;
  for (int row = 0; row < box.rows; ++row) {
    float* const diagonal = diagonals + last_row - row;
    for (int lane = 0; lane < box.lanes; ++lane) diagonal[lane] += tile.d[row][lane];
  }
  for (int i = 0; i < last_row + box.lanes; ++i) {
    const int row = max_i32(last_row - i, 0);
    const int q = box.row0 + row, k = box.lane0 + row + i - last_row;
    sums[grad_load_offset<kLoad>(c, q, k) - grad_load_base<kLoad>(c)] += diagonals[i];
  }
}

// Element by element; `to` is element number `first` of the tensor.
template <int kLoad, bool kIsShared>
ATT_INLINE void add_to_elements(const Context& c, const Box& box, const LearnedTile& tile,
                                float* to, long long first) {
  for (int row = 0; row < box.rows; ++row) {
    for (int lane = 0; lane < box.lanes; ++lane) {
      const float d_score = tile.d[row][lane];
      if (d_score == 0.0f) continue;
      const int q = box.row0 + row, k = box.lane0 + lane;
      const float term = learned_term<kLoad>(c, q, k, tile.product(row, lane), d_score);
      float* const at = to + (grad_load_offset<kLoad>(c, q, k) - first);
      if (kIsShared) {
        atomic_add(at, term);
      } else {
        *at += term;
      }
    }
  }
}

template <int kLoad>
static __attribute__((noinline)) void add_look_up(const Context& c, const Box& box,
                                                  const LearnedTile& tile, float* sums,
                                                  float* tensor) {
  if constexpr (kGradLoadBins[kLoad] == 0) {
    add_to_elements<kLoad, true>(c, box, tile, tensor, 0);
  } else if constexpr (kGradLoadBins[kLoad] == 1) {
    add_to_slope<kLoad>(c, box, tile, sums);
  } else if constexpr (kGradLoadIsDistance[kLoad] && kGradLoadIsOne[kLoad]) {
    add_to_distances<kLoad>(c, box, tile, sums);
  } else {
    add_to_elements<kLoad, false>(c, box, tile, sums, grad_load_base<kLoad>(c));
  }
}

// Of a tile whose lanes are keys; `sums` are the item's of this head.
template <int kLoad = 0>
ATT_INLINE void add_learned(const BackwardParams& p, const Context& c, const Box& box,
                            const LearnedTile& tile, float* sums) {
  if constexpr (kLoad < kGradLoads) {
    float* const tensor = p.d_tensors[kGradLoadSlot[kLoad]];
    if (tensor != nullptr) {
      add_look_up<kLoad>(c, box, tile, sums + learned_columns(kLoad), tensor);
    }
    add_learned<kLoad + 1>(p, c, box, tile, sums);
  }
}

// ---- Zeroes before, and the sums of all items after.

// Item `item` of `items` of a launch before those that add.
ATT_INLINE void clear_learned_gradients(const BackwardParams& p, int item, int items) {
  if (kGradLoads + kSinkGradLoads == 0) return;
  for (int slot = 0; slot < kMaxTensors; ++slot) {
    if (p.d_tensors[slot] == nullptr) continue;
    long long count = 1;
    for (int i = 0; i < kMaxTensorDims; ++i) count *= p.tensors[slot].size[i];
    for (long long i = count * item / items; i < count * (item + 1) / items; ++i) {
      p.d_tensors[slot][i] = 0.0f;
    }
  }
}

template <int kLoad = 0>
ATT_INLINE void add_up_learned(const BackwardParams& p, const Context& c, const float* sums) {
  if constexpr (kLoad < kGradLoads) {
    float* const tensor = p.d_tensors[kGradLoadSlot[kLoad]];
    if (kGradLoadBins[kLoad] > 0 && tensor != nullptr) {
      float* const to = tensor + grad_load_base<kLoad>(c);
      const float* const from = sums + learned_columns(kLoad);
      for (int i = 0; i < kGradLoadBins[kLoad]; ++i) to[i] += from[i];
    }
    add_up_learned<kLoad + 1>(p, c, sums);
  }
}

template <int kLoad = 0>
ATT_INLINE void add_to_sink_look_ups(const BackwardParams& p, const Context& c, float gradient) {
  if constexpr (kLoad < kSinkGradLoads) {
    float* const tensor = p.d_tensors[kSinkGradLoadSlot[kLoad]];
    if (tensor != nullptr) {
      tensor[sink_grad_load_offset<kLoad>(c)] += gradient * sink_grad_load<kLoad>(c);
    }
    add_to_sink_look_ups<kLoad + 1>(p, c, gradient);
  }
}

// Every query adds -exp(sink - LSE) D to the gradient of its head's sink. Sums of every eighth.
ATT_INLINE float sink_gradient(const BackwardParams& p, const Context& c) {
  const long long first = statistic_offset(p, sequence_of(c), c.h);
  const float logit = sink(c);
  float sums[8] = {};
  for (int q0 = 0; q0 < c.q_len; q0 += 8) {
    const int count = min_i32(8, c.q_len - q0);
    for (int i = 0; i < count; ++i) {
      const long long row = first + q0 + i;
      sums[i] -= math_exp2((logit - p.row_references[row]) * kLog2E) * p.row_deltas[row];
    }
  }
  float sum = 0.0f;
  for (const float one : sums) sum += one;
  return sum;
}

static void finish_learned_gradients(const BackwardParams& p) {
  const int group = p.heads / p.kv_heads;
  for (int b = 0; b < p.batch; ++b) {
    const Sequence sequence = sequence_of(p, b);
    const int tiles = plan::kWholeHeads ? 1 : tile_count(sequence.kv_len, kLearningTile);
    for (int h = 0; h < p.heads; ++h) {
      const Context c = context_of(p, sequence, b, h, h / group);
      for (int tile = 0; tile < tiles && kLearnedColumns > 0; ++tile) {
        add_up_learned(p, c, learned_sums(p, sequence, b, h, tile));
      }
      if (!spec::kHasSink || (kSinkGradLoads == 0 && p.d_sink == nullptr)) continue;
      const float gradient = sink_gradient(p, c);
      if (p.d_sink != nullptr) p.d_sink[b * p.heads + h] = gradient;
      add_to_sink_look_ups(p, c, gradient);
    }
  }
}

}  // namespace att
