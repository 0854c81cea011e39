// Where key tiles are few the walk of one, over the query tiles of all heads that share its keys,
// is cut into parts: a CTA takes one, and leaves its dK and dV in fp32. CTAs beside the next
// launch's add up what the parts of a key tile have left, always in the same order.
//
// Parts are equal where heads are counted as if the keys saw all of their queries; of a head that
// a part shares with the next one each takes as much of what its keys do see. Of packed sequences
// each has as many as its own queries make; templates/tile/listed_parts.cuh.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/backward_scores.cuh"
#include "templates/work_items.h"

namespace att {

constexpr bool kCutsWalks = plan::kPartKeys > 0;
constexpr int kPartKeys = kCutsWalks ? plan::kPartKeys : 1;

struct CutWalks {
  int key_tiles;  // of all heads; of packed sequences as many as their list has room for
  int walk;       // query tiles that each of them visits
  int parts;      // of each of them
};
// Of a sequence of so many queries.
ATT_FN CutWalks cut_walks(const BackwardParams& p, int queries) {
  int key_tiles;
  if constexpr (spec::kIsPacked) {
    key_tiles = sequence_item_count(p.kv_len, p.batch, kPartKeys) * opaque(p.kv_heads);
  } else {
    key_tiles = tile_count(p.kv_len, kPartKeys) * p.batch * opaque(p.kv_heads);
  }
  const int walk = p.heads / opaque(p.kv_heads) * tile_count(queries, plan::kTileQ);
  return {key_tiles, walk, walk_parts(key_tiles, walk, spec::kHasMask)};
}
// Of packed sequences, as if all queries were one's, which has the most parts.
ATT_FN CutWalks cut_walks(const BackwardParams& p) { return cut_walks(p, p.q_len); }

// CTAs that run together take the same part, and so share Q and dO in L2 where they share heads.
ATT_FN int own_key_tile(const BackwardParams& p) {
  if constexpr (!kCutsWalks) return block_index();
  return block_index() % cut_walks(p).key_tiles;
}

// What a CTA walks.
struct WalkPart {
  int part, parts;
  int first_head, end_head;    // of the group
  int first_tile, last_tiles;  // of the first head those from there on, of the last one so many,
  int tiles;                   // where the keys see so many

  // Of a head's tiles [first, last), which the keys see, those of the part.
  template <typename Tiles>
  ATT_MEMBER Tiles cut(int head, const Tiles& all) const {
    const int count = all.last - all.first;
    return {head == first_head ? all.first + share(count, first_tile) : all.first,
            head == end_head - 1 ? all.first + share(count, last_tiles) : all.last};
  }

 private:
  // Products of more would not fit: then of heads whose keys see fewer the first ones are taken.
  ATT_MEMBER int share(int count, int of_tiles) const {
    if (tiles > 0xffff) return min_i32(count, of_tiles);
    return static_cast<int>(static_cast<unsigned>(count) * of_tiles / tiles);
  }
};
// Asked for again and again: what is divided is opaque, else it would be kept in registers that
// loaders and consumers need.
ATT_FN WalkPart walk_part(const BackwardParams& p, int queries, int part) {
  const CutWalks cut = cut_walks(p, queries);
  int tiles = opaque(tile_count(queries, plan::kTileQ));
  if constexpr (spec::kIsPacked) tiles = max_i32(tiles, 1);  // a sequence may have no queries
  const auto bound = [&](unsigned i) {
    return static_cast<int>(static_cast<unsigned>(cut.walk) * i / cut.parts);
  };
  const int begin = bound(part), end = bound(part + 1);
  const int first_head = begin / tiles, last_head = (end - 1) / tiles;
  return {part,
          cut.parts,
          first_head,
          last_head + 1,
          begin - first_head * tiles,
          end - last_head * tiles,
          tiles};
}

// Of a CTA that has a single one.
ATT_FN WalkPart own_walk_part(const BackwardParams& p) {
  return walk_part(p, p.q_len, opaque(block_index()) / cut_walks(p).key_tiles);
}

// ---- What parts leave: rows of kHeadDim numbers.

// Of a part, the rows of a K/V head; `head`: b * kv_heads + h_kv, of packed sequences h_kv.
template <int kHeadDim>
ATT_FN float* part_rows(const BackwardParams& p, float* sums, int part, int head) {
  if constexpr (spec::kIsPacked) {
    const int rows = sequence_item_count(p.kv_len, p.batch, kPartKeys) * kPartKeys;
    return sums + static_cast<long long>(part * p.kv_heads + head) * rows * kHeadDim;
  }
  const int rows = tile_count(p.kv_len, kPartKeys) * kPartKeys;
  return sums + static_cast<long long>(part * p.batch * p.kv_heads + head) * rows * kHeadDim;
}

// A warpgroup's 64 rows of a gradient, in wgmma's order of accumulators. `thread`: of the
// warpgroup.
template <int kHeadDim, int kNumbers>
ATT_FN void store_part(const float (&gradient)[kNumbers], float* to, int thread) {
  float* const own = to + (thread / 32 * 16 + thread % 32 / 4) * kHeadDim + thread % 4 * 2;
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      store_global_8(own + half * 8 * kHeadDim + n * 8,
                     __builtin_bit_cast(unsigned, gradient[4 * n + 2 * half]),
                     __builtin_bit_cast(unsigned, gradient[4 * n + 2 * half + 1]));
    }
  }
}

// The rows of K/V head `head` from `row` on, of a gradient of the part.
template <int kHeadDim, int kNumbers>
ATT_FN void leave_part(const BackwardParams& p, const WalkPart& part,
                       const float (&gradient)[kNumbers], float* sums, int head, int row,
                       int thread) {
  store_part<kHeadDim>(gradient, part_rows<kHeadDim>(p, sums, part.part, head) + row * kHeadDim,
                       thread);
}

// ---- Their sums.

// kColumnsOfSum of a row, `parts` of which are `step` numbers apart, to `to`.
ATT_FN void add_parts(const float* from, long long step, int parts, float scale, void* to) {
  constexpr int kAtOnce = 4;  // on their way
  float sum[kColumnsOfSum] = {};
#pragma unroll 1
  for (int part = 0; part < parts; part += kAtOnce) {
    float numbers[kAtOnce][2][4] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (part + i < parts) {
        load_global_l2_16(from, numbers[i][0]);
        load_global_l2_16(from + 4, numbers[i][1]);
      }
      from += step;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int n = 0; n < kColumnsOfSum; ++n) sum[n] += numbers[i][n / 4][n % 4];
    }
  }
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = pack_2<spec::kDType>(sum[2 * i] * scale, sum[2 * i + 1] * scale);
  }
  store_global_16(to, words);
}

// Of row `row` of K/V head `head`, as part_rows() has them; `to`: elements before the gradient's.
template <int kHeadDim>
ATT_FN void add_parts_of_row(const BackwardParams& p, float* sums, int parts, int head, int row,
                             int column, float scale, void* gradient, long long to) {
  const float* const from = part_rows<kHeadDim>(p, sums, 0, head) + row * kHeadDim + column;
  const long long step = part_rows<kHeadDim>(p, sums, 1, 0) - sums;
  add_parts(from, step, parts, scale, static_cast<char*>(gradient) + 2 * (to + column));
}

// Of sums that become dV.
ATT_FN float scale_of_values(const BackwardParams& p) {
  return plan::kScalesRows ? 1.0f : dropout_scale(Context{p, 0, 0, 0, 0, 0});
}

// Of both gradients' columns of a row, kColumnsOfSum each: those of dK come first. `key`: of the
// sequence.
constexpr int kKeyUnitsOfSum = spec::kHeadDimQk / kColumnsOfSum;
constexpr int kUnitsOfSum = kKeyUnitsOfSum + spec::kHeadDimV / kColumnsOfSum;
ATT_FN void add_parts_of_unit(const BackwardParams& p, int parts, int head, int row, int unit,
                              const Sequence& own, int h_kv, int key) {
  if (unit < kKeyUnitsOfSum) {
    add_parts_of_row<spec::kHeadDimQk>(p, p.d_k_sums, parts, head, row, unit * kColumnsOfSum,
                                       softmax_scale(p), p.d_k,
                                       key_offset(own, p.d_k_stride, h_kv, key));
  } else {
    add_parts_of_row<spec::kHeadDimV>(p, p.d_v_sums, parts, head, row,
                                      (unit - kKeyUnitsOfSum) * kColumnsOfSum, scale_of_values(p),
                                      p.d_v, key_offset(own, p.d_v_stride, h_kv, key));
  }
}

// CTAs of kThreads that do so, the first ones of a launch or the last.
template <int kThreads>
ATT_FN int sum_ctas(const BackwardParams& p) {
  return ctas_of_sums(cut_walks(p).parts, p.batch * p.kv_heads * p.kv_len,
                      spec::kHeadDimQk + spec::kHeadDimV, kThreads);
}
// One of them, number `cta`.
template <int kThreads>
ATT_FN void add_parts_of_keys(const BackwardParams& p, int cta) {
  const int index = cta * kThreads + thread_index();
  const int row = index / kUnitsOfSum, unit = index - row * kUnitsOfSum;
  const int head = row / p.kv_len, key = row - head * p.kv_len;
  if (head >= p.batch * p.kv_heads) return;
  const int b = head / p.kv_heads, h_kv = head - b * p.kv_heads;
  add_parts_of_unit(p, cut_walks(p).parts, head, key, unit, Sequence{p.q_len, p.kv_len, b, 0, 0},
                    h_kv, key);
}

}  // namespace att
