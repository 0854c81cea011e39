// What forward kernels on a CPU core do with a tile of keys: S^T = K Q^T, the softmax' step, O^T +=
// V^T P^T. They differ in how an item's keys are dealt out and merged.
#pragma once

#include "templates/cpu/cache_rows.h"
#include "templates/cpu/dropout.h"
#include "templates/cpu/product.h"
#include "templates/cpu/rows.h"
#include "templates/cpu/vector.h"
#include "templates/items.h"
#include "templates/kernels/head.cuh"

namespace att {

constexpr int kQk = spec::kHeadDimQk;
constexpr int kV = spec::kHeadDimV;
constexpr int kTileKv = plan::kTileKv;
// Register block of the two products: rows of K, rows of V^T, and the vectors of queries beside
// them.
constexpr int kKeyRows = plan::kUnroll;
constexpr int kValueRows = rows_of_block(kV, kKeyRows);
constexpr int kColumns = plan::kColumns;
constexpr int kBlockRows = kColumns * kLanes;  // query rows that go through the loop together
constexpr int kBlocks = (plan::kTileQ + kBlockRows - 1) / kBlockRows;
static_assert(kTileKv % kKeyRows == 0 && kV % kValueRows == 0 && kTileKv % 32 == 0, "illegal plan");

// Scores stay as the products left them until they feed exp2: scaling Q beforehand would round
// every element of it. The row's maximum is subtracted before they are multiplied by log2(e): of
// scores of 1e10 a rounding of the product would be more than exp2 has room for, and the largest
// score itself would not come out as 1.
struct Scale {
  float query;  // on Q: a sign, so that the exponent's factor is positive and a maximum stays one
  float score;  // on the product, before the score function
  float
      exponent;  // on what the softmax sees: log2(e), and the scale where no score function has it
  float correction;  // relative, for what rounding took from `exponent`
  double natural;    // on what the softmax sees, for LSE
};

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kInfinity = __builtin_inff();

ATT_INLINE Scale scale_of(const ForwardParams& p) {
  const float scale = spec::kScaleAtLaunch ? p.softmax_scale : spec::kSoftmaxScale;
  // A zero factor in the exponent would make NaN of a dead key's -inf.
  const bool in_exponent = !spec::kHasScore && scale != 0.0f;
  const double exact = 1.4426950408889634 * (in_exponent ? __builtin_fabs(scale) : 1.0);
  Scale made;
  made.query = spec::kHasScore || scale > 0.0f ? 1.0f : scale < 0.0f ? -1.0f : 0.0f;
  made.score = spec::kHasScore ? scale : 1.0f;
  made.exponent = static_cast<float>(exact);
  made.correction = static_cast<float>(exact / made.exponent - 1.0);
  made.natural = in_exponent ? __builtin_fabs(scale) : 1.0;
  return made;
}

// State of one block of query rows.
struct alignas(64) Block {
  float q[kQk][kBlockRows];   // scaled
  float o[kV][kBlockRows];    // not yet divided by the sum
  float maximum[kBlockRows];  // of the scores; -inf before the first live key
  float sum[kBlockRows];
  int q_idx[kBlockRows];
  int h[kBlockRows];
};
struct alignas(64) Scratch {
  float p[kTileKv][kBlockRows];
  float k[kTileKv][kQk];
  float v[kTileKv][kV];
  Block blocks[kBlocks];
};

ATT_INLINE void load_queries(const ForwardParams& p, const Item& item, int row0, Block& block) {
  const float scale = scale_of(p).query;
  const int rows = item.rows();
  const Sequence& sequence = item.sequence;
  for (int r = 0; r < kBlockRows; ++r) {
    // Rows past the end repeat the last one, so that look-ups stay inside; their results are
    // dropped.
    const int row = row0 + r < rows ? row0 + r : rows - 1;
    const int q = item.q0 + row % item.queries();
    const int h = item.h0 + row / item.queries();
    block.q_idx[r] = q;
    block.h[r] = h;
    block.maximum[r] = -kInfinity;
    block.sum[r] = 0.0f;
    const Storage* from =
        static_cast<const Storage*>(p.q) + query_offset(sequence, p.q_stride, h, q);
    for (int i = 0; i < kQk; ++i) block.q[i][r] = to_float(from[i]) * scale;
  }
  for (int i = 0; i < kV; ++i) {
    for (int r = 0; r < kBlockRows; ++r) block.o[i][r] = 0.0f;
  }
}

// S^T of one tile into scratch.p; returns each row's maximum.
template <int kVectors>
ATT_INLINE void score_tile(const Block& block, Rows k, int keys, float (&s)[kTileKv][kBlockRows],
                           Vec (&maximum)[kVectors]) {
  for (int column = 0; column < kVectors; ++column) maximum[column] = broadcast(-kInfinity);
  for (int key = 0; key < keys; key += kKeyRows) {
    Vec c[kKeyRows][kVectors] = {};
    multiply_add<kKeyRows, kVectors>(k.data + key * k.stride, k.stride, 1, &block.q[0][0],
                                     kBlockRows, kQk, c);
#pragma clang loop unroll(full)
    for (int row = 0; row < kKeyRows; ++row) {
#pragma clang loop unroll(full)
      for (int column = 0; column < kVectors; ++column) {
        store(&s[key + row][column * kLanes], c[row][column]);
        maximum[column] = max_skip_nan(c[row][column], maximum[column]);
      }
    }
  }
}

// Applies score function and mask to S^T. `kOneHead`: every row is of head item.h0, which lets the
// compiler hoist what depends on the head only.
template <bool kMasked, bool kOneHead>
static __attribute__((noinline)) void modify_tile(const ForwardParams& p, const Item& item,
                                                  const Block& block, int width, int k0, int keys,
                                                  float (&s)[kTileKv][kBlockRows]) {
  const int h0 = item.h0;
  const float scale = scale_of(p).score;
  const int kv_len = item.sequence.kv_len;
  for (int key = 0; key < keys; ++key) {
    const int kv_idx = k0 + key;
    float* __restrict row = s[key];
    // Rows are written once each, and nothing that the functions read is written here.
#pragma clang loop vectorize(assume_safety) interleave_count(1)
    for (int r = 0; r < width; ++r) {
      const Context c = context_of(p, item, kOneHead ? h0 : block.h[r]);
      const int q_idx = block.q_idx[r];
      float value = row[r];
      if (spec::kHasScore) value = score(c, value * scale, q_idx, kv_idx);
      if (kMasked) {
        const bool live = kv_idx < kv_len && (!spec::kHasMask || mask(c, q_idx, kv_idx));
        value = live ? value : -kInfinity;
      }
      row[r] = value;
    }
  }
}

template <int kVectors>
ATT_INLINE void row_maximum(int keys, const float (&s)[kTileKv][kBlockRows],
                            Vec (&maximum)[kVectors]) {
  for (int column = 0; column < kVectors; ++column) maximum[column] = broadcast(-kInfinity);
  for (int key = 0; key < keys; ++key) {
#pragma clang loop unroll(full)
    for (int column = 0; column < kVectors; ++column) {
      maximum[column] = max_skip_nan(load(&s[key][column * kLanes]), maximum[column]);
    }
  }
}

// One step of the online softmax: S^T becomes P^T, the running maximum and sum move on; returns
// what the accumulated O has to be multiplied by.
template <int kVectors>
ATT_INLINE void softmax_tile(Block& block, const Scale& scale, int keys,
                             float (&s)[kTileKv][kBlockRows], const Vec (&tile_maximum)[kVectors],
                             Vec (&rescale)[kVectors]) {
  Vec base[kVectors];
  Vec sum[kVectors];
#pragma clang loop unroll(full)
  for (int column = 0; column < kVectors; ++column) {
    const Vec old = load(&block.maximum[column * kLanes]);
    const Vec maximum = max_skip_nan(tile_maximum[column], old);
    store(&block.maximum[column * kLanes], maximum);
    // A row without a live key so far: any finite base gives it zeros.
    base[column] = maximum == -kInfinity ? broadcast(0.0f) : maximum;
    rescale[column] = exp2_nonpositive((old - base[column]) * scale.exponent, scale.correction);
    sum[column] = load(&block.sum[column * kLanes]) * rescale[column];
  }
  for (int key = 0; key < keys; ++key) {
#pragma clang loop unroll(full)
    for (int column = 0; column < kVectors; ++column) {
      float* at = &s[key][column * kLanes];
      const Vec value =
          exp2_nonpositive((load(at) - base[column]) * scale.exponent, scale.correction);
      sum[column] += value;
      store(at, value);
    }
  }
#pragma clang loop unroll(full)
  for (int column = 0; column < kVectors; ++column) store(&block.sum[column * kLanes], sum[column]);
}

// Zeroes the dropped elements of p[key][row] for the keys [k0, k0 + keys) and the item's rows
// [row0, row1). The kept ones are scaled at the end, through O.
static __attribute__((noinline)) void drop(const ForwardParams& p, const Item& item, int k0,
                                           int keys, int row0, int row1,
                                           float (&tile)[kTileKv][kBlockRows]) {
  const int queries = item.queries();
  for (int head = row0 / queries; head * queries < row1; ++head) {
    // Rows of this head in the tile, as queries.
    const int from = row0 > head * queries ? row0 - head * queries : 0;
    const int to = row1 - head * queries < queries ? row1 - head * queries : queries;
    drop_elements<Dropped::kZero, 1, kBlockRows>(p, item.b, item.h0 + head,
                                                 &tile[0][head * queries + from - row0],
                                                 item.q0 + from, item.q0 + to, k0, k0 + keys);
  }
}

template <int kVectors>
ATT_INLINE void accumulate_tile(Block& block, Rows v, int keys,
                                const float (&p)[kTileKv][kBlockRows],
                                const Vec (&rescale)[kVectors]) {
  for (int i = 0; i < kV; i += kValueRows) {
    Vec c[kValueRows][kVectors];
#pragma clang loop unroll(full)
    for (int row = 0; row < kValueRows; ++row) {
#pragma clang loop unroll(full)
      for (int column = 0; column < kVectors; ++column) {
        c[row][column] = load(&block.o[i + row][column * kLanes]) * rescale[column];
      }
    }
    multiply_add<kValueRows, kVectors>(v.data + i, 1, v.stride, &p[0][0], kBlockRows, keys, c);
    store_block(c, &block.o[i][0], kBlockRows);
  }
}

// One tile of keys [k0, k0 + keys) for the block's first kVectors vectors of rows, of which those
// from row0 on are the item's. `padded`: keys rounded up to the register block.
template <int kVectors>
static __attribute__((noinline)) void attend(const ForwardParams& p, const Item& item, Block& block,
                                             Scratch& scratch, Rows k, Rows v, int row0, int k0,
                                             int keys, int padded, bool masked) {
  Vec maximum[kVectors];
  Vec rescale[kVectors];
  score_tile<kVectors>(block, k, padded, scratch.p, maximum);
  if (masked || spec::kHasScore) {
    const int width = kVectors * kLanes;
    const bool one_head = item.h1 - item.h0 == 1;
    if (masked && one_head) {
      modify_tile<true, true>(p, item, block, width, k0, keys, scratch.p);
    } else if (masked) {
      modify_tile<true, false>(p, item, block, width, k0, keys, scratch.p);
    } else if (one_head) {
      modify_tile<false, true>(p, item, block, width, k0, keys, scratch.p);
    } else {
      modify_tile<false, false>(p, item, block, width, k0, keys, scratch.p);
    }
  }
  // The fused maximum saw unmodified scores, or the zero rows of a padded tile.
  if (masked || spec::kHasScore || padded != keys) {
    row_maximum<kVectors>(keys, scratch.p, maximum);
  }
  softmax_tile<kVectors>(block, scale_of(p), keys, scratch.p, maximum, rescale);
  if (spec::kHasDropout) {
    const int row1 = item.rows() < row0 + kBlockRows ? item.rows() : row0 + kBlockRows;
    drop(p, item, k0, keys, row0, row1, scratch.p);
  }
  accumulate_tile<kVectors>(block, v, keys, scratch.p, rescale);
}

// Calls attend<vectors>, 1 <= vectors <= kVectors.
template <int kVectors>
ATT_INLINE void attend_dynamic(int vectors, const ForwardParams& p, const Item& item, Block& block,
                               Scratch& scratch, Rows k, Rows v, int row0, int k0, int keys,
                               int padded, bool masked) {
  if constexpr (kVectors > 1) {
    if (vectors < kVectors) {
      return attend_dynamic<kVectors - 1>(vectors, p, item, block, scratch, k, v, row0, k0, keys,
                                          padded, masked);
    }
  }
  attend<kVectors>(p, item, block, scratch, k, v, row0, k0, keys, padded, masked);
}

ATT_INLINE void store_block(const ForwardParams& p, const Item& item, int row0,
                            const Block& block) {
  const float keep_scale = !spec::kHasDropout       ? 1.0f
                           : spec::kDropoutAtLaunch ? p.dropout_keep_scale
                                                    : spec::kDropoutKeepScale;
  const int rows = item.rows() - row0 < kBlockRows ? item.rows() - row0 : kBlockRows;
  const Sequence& sequence = item.sequence;
  for (int r = 0; r < rows; ++r) {
    const int q = block.q_idx[r];
    const int h = block.h[r];
    double maximum = block.maximum[r] * scale_of(p).natural;
    float sum = block.sum[r];
    float factor = 1.0f;
    if (spec::kHasSink) {
      const double logit = sink(context_of(p, item, h));
      const double joint = logit > maximum ? logit : maximum;
      const double base = joint == -kInfinity ? 0.0 : joint;
      factor = __builtin_exp2f(static_cast<float>((maximum - base) * kLog2E));
      sum = sum * factor + __builtin_exp2f(static_cast<float>((logit - base) * kLog2E));
      maximum = joint;
    }
    // Exactly 1 in the common case, so that the division is the only rounding.
    const float numerator = factor * keep_scale;
    Storage* to = static_cast<Storage*>(p.o) + query_offset(sequence, p.o_stride, h, q);
    for (int i = 0; i < kV; ++i) {
      from_float(sum == 0.0f ? 0.0f : block.o[i][r] * numerator / sum, to[i]);
    }
    if (p.lse != nullptr) {
      const double lse = maximum + __builtin_log2f(sum) * double{kLn2};
      p.lse[lse_offset(p, sequence, h, q)] = sum == 0.0f ? -kInfinity : static_cast<float>(lse);
    }
  }
}

}  // namespace att
