// The walk of a backward item: blocks of its own rows lie in vector lanes, and tile by tile the
// rows of the other sequence go by.
#pragma once

#include "templates/cpu/backward_scores.h"
#include "templates/cpu/learned_gradients.h"
#include "templates/cpu/product.h"
#include "templates/cpu/query_sums.h"
#include "templates/cpu/rows.h"
#include "templates/sequence.h"
#include "templates/work_items.h"

namespace att {

constexpr int kQk = spec::kHeadDimQk;
constexpr int kV = spec::kHeadDimV;
constexpr int kTile = plan::kTile;  // an item's own rows
constexpr int kBlocks = (kTile + kBlockLanes - 1) / kBlockLanes;
// Register blocks: rows walked, and rows of a gradient.
constexpr int kRowsOfScores = plan::kUnroll;
constexpr int kRowsOfQk = rows_of_block(kQk, kRowsOfScores);
constexpr int kRowsOfV = rows_of_block(kV, kRowsOfScores);
static_assert(kStep % kRowsOfScores == 0, "illegal plan");

// A block of the item's own rows, K and V or Q and dO, and their gradients.
struct alignas(64) Block {
  float x[kQk][kBlockLanes];
  float y[kV][kBlockLanes];
  float d_x[kQk][kBlockLanes];                         // without the softmax scale
  float d_y[kV][kBlockLanes];                          // of V, without dropout's scale
  float references[kBlockLanes], deltas[kBlockLanes];  // of queries
  KeyRows keys;                                        // of keys, where dQ is added up
};
struct alignas(64) Scratch {
  ScoreTile p;  // the products, then P
  ScoreTile d;  // dP, then dS
  SlopeTile slopes;
  ProductTile products;
  float x[kStep][kQk];
  float y[kStep][kV];
  Block blocks[kBlocks];
};

// Rows [begin, end) of a sequence.
struct Span {
  int begin, end;
  int size() const { return end - begin; }
};
ATT_INLINE Span tile_at(int index, int length) {
  const int begin = index * kTile;
  return {begin, min_i32(begin + kTile, length)};
}

// Where row `row` of a head lies.
ATT_INLINE const Storage* query_row(const void* base, const Strides& stride, const Context& c,
                                    int row) {
  return static_cast<const Storage*>(base) + query_offset(sequence_of(c), stride, c.h, row);
}
ATT_INLINE const Storage* key_row(const void* base, const Strides& stride, const Context& c,
                                  int row) {
  return static_cast<const Storage*>(base) + key_offset(sequence_of(c), stride, c.h_kv, row);
}

// ---- A tile.

// Statistics: of the rows where lanes are keys, else of the lanes.
struct Tile {
  Box box;
  bool masked;
  Rows x, y;  // Q and dO, or K and V; zeros up to whole register blocks
  const float* references;
  const float* deltas;
  float* query_sums;    // dQ of the rows, where it is added up
  float* learned_sums;  // of the head
};

template <Lanes kOf, int kVectors>
static __attribute__((noinline)) void add_tile(const BackwardParams& p, const Context& c,
                                               const Tile& tile, Block& block, Scratch& scratch) {
  const Box& box = tile.box;
  const int padded = tile_count(box.rows, kRowsOfScores) * kRowsOfScores;
  multiply<kRowsOfScores, kVectors>(tile.x.data, tile.x.stride, &block.x[0][0], kBlockLanes, kQk,
                                    &scratch.p[0][0], kBlockLanes, padded);
  float factor = softmax_scale(c.params);
  if (tile.masked || spec::kHasScore) {
    const auto modify = tile.masked ? modify_tile<kOf, true> : modify_tile<kOf, false>;
    modify(c, box, kVectors * kLanes, scratch.p, scratch.slopes, scratch.products);
    factor = 1.0f;
  }
  probabilities<kOf, kVectors>(tile.references, factor, box.rows, scratch.p);
  if (spec::kHasDropout) mark_dropped<kOf>(c, box, scratch.p);
  multiply<kRowsOfScores, kVectors>(tile.y.data, tile.y.stride, &block.y[0][0], kBlockLanes, kV,
                                    &scratch.d[0][0], kBlockLanes, padded);
  score_gradients<kOf, kVectors>(tile.deltas, keep_scale(c.params), box.rows, scratch.p, scratch.d);
  if (kOf == Lanes::kKeys) {
    add_learned(p, c, box, LearnedTile{scratch.products, scratch.d}, tile.learned_sums);
  }
  if (!kScoreGradIsOne) multiply_by_slopes<kVectors>(scratch.slopes, box.rows, scratch.d);
  if (kOf == Lanes::kKeys) {
    add_transposed<kRowsOfV, kVectors>(tile.y.data, tile.y.stride, &scratch.p[0][0], kBlockLanes,
                                       box.rows, &block.d_y[0][0], kBlockLanes, kV);
  }
  add_transposed<kRowsOfQk, kVectors>(tile.x.data, tile.x.stride, &scratch.d[0][0], kBlockLanes,
                                      box.rows, &block.d_x[0][0], kBlockLanes, kQk);
  if (kOf == Lanes::kKeys && plan::kWholeHeads) {
    add_query_sums(scratch.d, block.keys, box, sum_stride(p), tile.query_sums);
  }
}

// Of half the vectors, and half of these, while the tile's lanes need no more.
template <Lanes kOf, int kVectors>
ATT_INLINE void add_narrow_tile(const BackwardParams& p, const Context& c, const Tile& tile,
                                Block& block, Scratch& scratch) {
  if constexpr (kVectors > 1) {
    if (tile.box.lanes <= kVectors / 2 * kLanes) {
      return add_narrow_tile<kOf, kVectors / 2>(p, c, tile, block, scratch);
    }
  }
  add_tile<kOf, kVectors>(p, c, tile, block, scratch);
}

// ---- The walk of one query head.

// Rows of the other sequence that some of the item's own may meet.
template <Lanes kOf>
ATT_INLINE Span walked_rows(const Context& c, Span own) {
  // Of a packed sequence without queries or keys no look-up is proven.
  const bool is_empty = spec::kIsPacked && (c.q_len == 0 || c.kv_len == 0);
  if (!spec::kHasMask || is_empty) return {0, kOf == Lanes::kKeys ? c.q_len : c.kv_len};
  if (kOf == Lanes::kKeys) {
    const QBounds bounds = q_bounds(c, own.begin, own.end);
    return {bounds.begin, bounds.end};
  }
  const KvBounds bounds = kv_bounds(c, own.begin, own.end);
  return {bounds.begin, bounds.end};
}

template <Lanes kOf>
ATT_INLINE TileClass class_of(const Context& c, const Box& box) {
  if (!spec::kHasMask) return TileClass::kFull;
  const int row1 = box.row0 + box.rows, lane1 = box.lane0 + box.lanes;
  return kOf == Lanes::kKeys ? classify_tile(c, box.row0, row1, box.lane0, lane1)
                             : classify_tile(c, box.lane0, lane1, box.row0, row1);
}

// dO of rows without live keys, which may be anything, becomes zero.
ATT_INLINE Rows output_gradient_rows(const Storage* from, long stride, const float* references,
                                     int count, int padded, float (&copy)[kStep][kV]) {
  bool any_dead = false;
  for (int row = 0; row < count; ++row) any_dead |= references[row] == kInfinity;
  if (!any_dead) return fp32_rows(from, stride, count, padded, copy);
  const Rows rows = copy_rows<kV>(from, stride, count, padded, copy);
  for (int row = 0; row < count; ++row) {
    if (references[row] != kInfinity) continue;
    for (int i = 0; i < kV; ++i) copy[row][i] = 0.0f;
  }
  return rows;
}

template <Lanes kOf>
ATT_INLINE void load_walked(const BackwardParams& p, const Context& c, int row0, int rows,
                            float* query_sums, Scratch& scratch, Tile& tile) {
  const int padded = tile_count(rows, kRowsOfScores) * kRowsOfScores;
  if (kOf == Lanes::kKeys) {
    const long long first = statistic_offset(p, sequence_of(c), c.h) + row0;
    tile.references = p.row_references + first;
    tile.deltas = p.row_deltas + first;
    tile.query_sums = query_sums + row0 * sum_stride(p);
    tile.x =
        fp32_rows(query_row(p.q, p.q_stride, c, row0), p.q_stride.seq, rows, padded, scratch.x);
    tile.y = output_gradient_rows(query_row(p.d_o, p.d_o_stride, c, row0), p.d_o_stride.seq,
                                  tile.references, rows, padded, scratch.y);
  } else {
    tile.x = fp32_rows(key_row(p.k, p.k_stride, c, row0), p.k_stride.seq, rows, padded, scratch.x);
    tile.y = fp32_rows(key_row(p.v, p.v_stride, c, row0), p.v_stride.seq, rows, padded, scratch.y);
  }
}

// Sums of the head: `query_sums` of its first row's dQ.
template <Lanes kOf>
ATT_INLINE void walk_head(const BackwardParams& p, const Context& c, Span own, float* query_sums,
                          float* learned, Scratch& scratch) {
  const Span walked = walked_rows<kOf>(c, own);
  for (int row0 = walked.begin / kStep * kStep; row0 < walked.end; row0 += kStep) {
    Tile tile;
    tile.learned_sums = learned;
    bool is_loaded = false;
    for (int i = 0; i * kBlockLanes < own.size(); ++i) {
      const int lane0 = own.begin + i * kBlockLanes;
      tile.box = {row0, min_i32(kStep, walked.end - row0), lane0,
                  min_i32(kBlockLanes, own.end - lane0)};
      const TileClass tile_class = class_of<kOf>(c, tile.box);
      if (tile_class == TileClass::kSkip) continue;
      tile.masked = tile_class == TileClass::kPartial;
      if (!is_loaded) load_walked<kOf>(p, c, row0, tile.box.rows, query_sums, scratch, tile);
      is_loaded = true;
      Block& block = scratch.blocks[i];
      if (kOf == Lanes::kQueries) {
        tile.references = block.references;
        tile.deltas = block.deltas;
      }
      add_narrow_tile<kOf, kColumns>(p, c, tile, block, scratch);
    }
  }
}

}  // namespace att
