// What the backward kernels know of each row of queries: made once a launch from O, dO and the LSE.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/sequence.h"
#include "templates/tile/elements.cuh"
#include "templates/tile/magnitude.cuh"
#include "templates/work_items.h"

namespace att {

// Lengths of an item's sequence. Where all have the same they come from the parameters, which take
// no register.
ATT_FN int queries_of(const BackwardParams& p, const Sequence& own) {
  if constexpr (spec::kIsPacked) return own.q_len;
  return p.q_len;
}
ATT_FN int keys_of(const BackwardParams& p, const Sequence& own) {
  if constexpr (spec::kIsPacked) return own.kv_len;
  return p.kv_len;
}
ATT_FN Context item_context(const BackwardParams& p, const Sequence& own, int b, int h, int h_kv) {
  return {p, b, h, h_kv, queries_of(p, own), keys_of(p, own), own.q_first, own.kv_first};
}

// Rows are padded to whole tiles; those past q_len act as rows without live keys. So are those of
// each packed sequence.
constexpr int kRowPadding = plan::kRowPadding;
ATT_FN constexpr int padded_rows(int q_len) { return tile_count(q_len, kRowPadding) * kRowPadding; }

// Where what is known of the rows of sequence b begins, of head number `head` of all slices'.
ATT_FN long long first_row_of_head(const BackwardParams& p, const Sequence& sequence, int b,
                                   long long head) {
  if constexpr (spec::kIsPacked) {
    const int tiles = sequence_item_count(p.q_len, p.batch, kRowPadding);
    return (head * tiles + first_sequence_tile(sequence.q_first, b, kRowPadding)) * kRowPadding;
  }
  return head * padded_rows(p.q_len);
}
// The same of head h of the sequence.
ATT_FN long long first_padded_row(const BackwardParams& p, const Sequence& sequence, int b, int h) {
  return first_row_of_head(p, sequence, b, static_cast<long long>(sequence.slice) * p.heads + h);
}

// A larger LSE is rounded by 1/2 and more, so that a score less it does not tell the score's
// weight. Such a row has no gradient, as one without live keys.
constexpr float kLargestLse = 0x1p23f;
ATT_FN bool has_weights(float lse) {
  if constexpr (kAnyMagnitude) return !(math_abs(lse) > kLargestLse);
  return lse != -infinity();
}

// The reference of a row without live keys: exp2(x - infinity) makes its probabilities 0.
ATT_FN float row_reference(float lse) { return lse == -infinity() ? infinity() : lse * kLog2E; }

// A number that is subtracted from a product by the tensor cores: bf16 parts of the size of the
// last one's rounding, which together are the number to 2^-24. A product with -1/2, twice, whose
// other factor is a row of 8: three parts and zeros.
struct SplitRow {
  unsigned words[4];
};
ATT_FN SplitRow split_row(float x) {
  const unsigned high = pack_2<DType::bf16>(x, 0.0f) & 0xffffu;
  const float rest = x - bf16_low(high);
  const unsigned middle = pack_2<DType::bf16>(rest, 0.0f) & 0xffffu;
  const unsigned low = pack_2<DType::bf16>(rest - bf16_low(middle), 0.0f) & 0xffffu;
  return {{high | middle << 16, low, 0u, 0u}};
}
ATT_FN float joined_row(const unsigned* words) {
  return bf16_low(words[0]) + (bf16_low(words[0] >> 16) + bf16_low(words[1]));
}
// In place of infinity, whose products with 0 would be NaN.
constexpr float kDeadReference = 3e38f;

// Lanes that share a row of O, 8 elements each.
ATT_FN constexpr int lanes_of_row() {
  int lanes = 1;
  while (lanes * 8 < spec::kHeadDimV) lanes *= 2;
  return lanes;
}

// 16 or 32 bytes.
template <int kWords>
ATT_FN void load_words(const char* from, unsigned (&words)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; i += 4) {
    unsigned unit[4];
    load_global_16(from + 4 * i, unit);
#pragma unroll
    for (int j = 0; j < 4; ++j) words[i + j] = unit[j];
  }
}

constexpr int kRowThreads = 256;
constexpr int kRowsAtATime = plan::kRowsAtATime;

// Where dQ's sums of the first heads will be; the others' are those of heads before them. Of packed
// sequences all have their own.
constexpr bool kSumsInTurn = plan::kSumWave > 0;
// Whether the main launch makes the rows of all K/V heads but the first ones.
constexpr bool kMakesRowsAhead = plan::kRowWarps > 0;
ATT_FN SumHeads<int> sum_heads(const BackwardParams& p) {
  return sum_heads(p.batch * p.kv_heads, tile_count(opaque(p.kv_len), plan::kSumTile),
                   plan::kSumWave, plan::kAllHaveSums);
}
ATT_FN int heads_with_rows(const BackwardParams& p) {
  return heads_with_rows(p.batch * p.kv_heads, tile_count(p.kv_len, plan::kSumTile), sum_heads(p),
                         spec::kHasMask, plan::kAllHaveSums);
}
template <int kColumns>
ATT_FN void clear_query_sums(const BackwardParams& p, const Sequence& sequence, int b, int head,
                             int first_query) {
  if constexpr (kSumsInTurn) {
    if (head / (p.heads / p.kv_heads) >= sum_heads(p).slots) return;
  }
  const long long first = first_row_of_head(p, sequence, b, head) + first_query;
  char* const sums = reinterpret_cast<char*>(p.d_q_sums + first * plan::kSumColumns);
  const unsigned zeros[4] = {};
  for (int i = thread_index(); i < kRowsAtATime * kColumns / 4; i += kRowThreads) {
    store_global_16(sums + 16 * i, zeros);
  }
}

// With kScalesRows P is made larger by what it is multiplied with when not dropped, and D smaller.
ATT_FN float scale_in_rows(const BackwardParams& p) {
  if constexpr (!plan::kScalesRows) return 1.0f;
  return spec::kDropoutAtLaunch ? p.dropout_keep_scale : spec::kDropoutKeepScale;
}

// A row's reference (LSE in log2 units; with kSplitReferences LSE over the softmax scale, split)
// and D = rowsum(dO O) - dLSE (with kSplitDeltas, split). `delta`: rowsum(dO O).
ATT_FN void store_row(const BackwardParams& p, long long row, float lse, float delta,
                      long long lse_row) {
  // O and dO of a row without live keys may be anything.
  const bool has_keys = has_weights(lse);
  if (kAnyMagnitude && !has_keys) lse = -infinity();
  if (p.d_lse != nullptr && has_keys) delta -= p.d_lse[lse_row];
  delta = has_keys ? delta : 0.0f;
  if constexpr (plan::kScalesRows) {
    lse -= math_log(scale_in_rows(p));
    delta *= math_reciprocal(scale_in_rows(p));
  }
  if constexpr (plan::kSplitReferences) {
    const float reference = has_keys ? lse / spec::kSoftmaxScale : kDeadReference;
    store_global_16(p.row_references + 4 * row, split_row(reference).words);
  } else {
    p.row_references[row] = row_reference(lse);
  }
  if constexpr (plan::kSplitDeltas) {
    store_global_16(p.row_deltas + 4 * row, split_row(delta).words);
  } else {
    p.row_deltas[row] = delta;
  }
}

// Whether sums of dQ are wanted of kRowsAtATime queries of a head of a sequence; a family may know
// better.
struct AllHaveSums {
  static constexpr int kColumns = plan::kSumColumns;  // of as many the first numbers are zeroed
  ATT_MEMBER bool operator()(const BackwardParams&, const Sequence&, int, int, int) const {
    return true;
  }
};

// store_row() of rows [first_query, first_query + kRowsAtATime) of a head, and what
// clear_query_sums() says, where has_sums(p, sequence, b, h, first_query).
template <typename HasSums>
ATT_FN void make_row_statistics(const BackwardParams& p, int of_sequence, int head, int first_query,
                                const HasSums& has_sums) {
  constexpr int kLanes = lanes_of_row(), kWords = Element::kWordsOfEight;
  constexpr int kRowsAtOnce = kRowThreads / kLanes;
  constexpr int kSteps = kRowsAtATime / kRowsAtOnce > 0 ? kRowsAtATime / kRowsAtOnce : 1;
  const int unit = thread_index() % kLanes;
  const int first_row = thread_index() / kLanes;  // narrow rows leave some threads without one
  const int b = spec::kIsPacked ? of_sequence : head / p.heads;
  const int h = spec::kIsPacked ? head : head - b * p.heads;
  const Sequence sequence = sequence_of(p, b);
  const auto row_of = [&](const void* tensor, const Strides& stride, int q) {
    return static_cast<const char*>(tensor) +
           Element::kBytes * (query_offset(sequence, stride, h, q) + 8 * unit);
  };
  const long long first_lse = lse_offset(p, head, 0) + sequence.q_first;
  unsigned o[kSteps][kWords], d_o[kSteps][kWords];
  float lse[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int q = first_query + i * kRowsAtOnce + first_row;
    lse[i] = -infinity();
#pragma unroll
    for (int j = 0; j < kWords; ++j) o[i][j] = d_o[i][j] = 0;
    if (first_row < kRowsAtATime && q < queries_of(p, sequence) && 8 * unit < spec::kHeadDimV) {
      lse[i] = p.lse[first_lse + q * spec::kResidues];
      load_words(row_of(p.o, p.o_stride, q), o[i]);
      load_words(row_of(p.d_o, p.d_o_stride, q), d_o[i]);
    }
  }
  if constexpr (plan::kSumColumns > 0) {
    if (has_sums(p, sequence, b, h, first_query)) {
      clear_query_sums<HasSums::kColumns>(p, sequence, b, head, first_query);
    }
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int q = first_query + i * kRowsAtOnce + first_row;
    float delta = 0.0f;
#pragma unroll
    for (int j = 0; j < kWords; ++j) delta = Element::add_products(delta, o[i][j], d_o[i][j]);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      delta += shuffle_xor(delta, distance);
    }
    if (unit != 0 || first_row >= kRowsAtATime) continue;
    store_row(p, first_row_of_head(p, sequence, b, head) + q, lse[i], delta,
              first_lse + q * spec::kResidues);
  }
}

// What make_row_statistics() left of a row: its reference in log2 units, infinity without live
// keys; and its D.
ATT_FN float stored_reference(const BackwardParams& p, long long row) {
  if constexpr (!plan::kSplitReferences) return p.row_references[row];
  const auto* words = reinterpret_cast<const unsigned*>(p.row_references) + 4 * row;
  const bool is_dead = (words[0] & 0xffffu) == (split_row(kDeadReference).words[0] & 0xffffu);
  return is_dead ? infinity() : joined_row(words) * (spec::kSoftmaxScale * kLog2E);
}
ATT_FN float row_delta(const BackwardParams& p, long long row) {
  if constexpr (!plan::kSplitDeltas) return p.row_deltas[row] * scale_in_rows(p);
  return joined_row(reinterpret_cast<const unsigned*>(p.row_deltas) + 4 * row);
}

// The last of the packed sequences whose rows, each padded to whole tiles of kRows, begin at tile
// `tile` or before. A warp's, whose lanes look at as many sequences at a time, as far apart as
// leaves one of them in the end: a look-up after the other takes longer than what a CTA does with
// the rows.
template <int kRows>
ATT_FN int sequence_of_tile(const int* offsets, int total, int batch, int tile) {
  const auto begins_before = [&](int sequence) {
    const int before = packed_span(offsets, nullptr, sequence, total).first;
    return first_sequence_tile(before, sequence, kRows) <= tile;
  };
  int first = 0, count = batch;
#pragma unroll 1
  while (count > 1) {
    const int step = tile_count(count, 32);
    const int own = lane_index() * step;
    const unsigned before = ballot(own < count && begins_before(first + own));
    // Whatever the offsets are, the first one counts as one that does.
    const int at = highest_bit(before | 1u) * step;
    first += at;
    count = min_i32(step, count - at);
  }
  return first;
}
// Of a tile of kRowPadding queries.
ATT_FN int sequence_of_tile(const BackwardParams& p, int tile) {
  const SequenceList& list = static_cast<const PackedParams&>(p).sequences;
  return sequence_of_tile<kRowPadding>(list.cu_q, p.q_len, p.batch, tile);
}

// A CTA's share of what the main launch counts.
ATT_FN void clear_counters(const BackwardParams& p) {
  const auto clear = [](int* counters, int count) {
    const int step = block_count() * kRowThreads;
    for (int i = block_index() * kRowThreads + thread_index(); i < count; i += step) {
      counters[i] = 0;
    }
  };
  clear(&p.head_counters->sums_added,
        p.batch * p.kv_heads * static_cast<int>(sizeof(HeadCounters) / sizeof(int)));
  if constexpr (plan::kTakesItems) clear(p.scheduler_counter, 1);
  if constexpr (plan::kOrderedSums) {
    clear(p.sum_turns, p.batch * p.heads * tile_count(p.q_len, kRowsAtATime));
  }
}

// A CTA's: kRowPadding rows of a head, all heads' or, where the main launch makes the others',
// those of the first ones.
template <typename HasSums = AllHaveSums>
ATT_FN void make_row_statistics(const BackwardParams& p, const HasSums& has_sums = {}) {
  const int tiles = spec::kIsPacked ? sequence_item_count(p.q_len, p.batch, kRowPadding)
                                    : tile_count(p.q_len, kRowPadding);
  int head = block_index() / tiles;
  int b = 0, tile = block_index() - head * tiles;
  if constexpr (spec::kIsPacked) {
    // Of the first heads, whose items come first, L2 then has the zeroed sums.
    if constexpr (plan::kTakesItems) head = p.heads - 1 - head;
    // Whether or not the CTA has rows.
    if (plan::kTakesItems && block_index() == 0 && thread_index() == 0) *p.scheduler_counter = 0;
    b = sequence_of_tile(p, tile);
    const Sequence sequence = sequence_of(p, b);
    tile -= first_sequence_tile(sequence.q_first, b, kRowPadding);
    // Behind the sequence, or where offsets are no caller's.
    if (tile < 0 || tile >= tile_count(sequence.q_len, kRowPadding)) return;
  }
  const int first_query = tile * kRowPadding;
  if constexpr (plan::kSumColumns > 0 && kSumsInTurn) clear_counters(p);
  if constexpr (plan::kAllHaveSums) head = p.batch * p.heads - 1 - head;
  // Of heads whose rows the main launch makes there are only sums to zero.
  if (kMakesRowsAhead && head >= heads_with_rows(p) * (p.heads / p.kv_heads)) {
#pragma unroll 1
    for (int i = 0; i < kRowPadding; i += kRowsAtATime) {
      clear_query_sums<HasSums::kColumns>(p, {}, 0, head, first_query + i);
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < kRowPadding; i += kRowsAtATime) {
    make_row_statistics(p, b, head, first_query + i, has_sums);
  }
}

}  // namespace att
