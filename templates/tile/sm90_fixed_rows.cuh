// A consumer thread's two rows of a batch-invariant spec in the sm90a kernel: a chain's softmax,
// and how chains and pieces are folded (templates/tile/fixed_order.cuh).
#pragma once

#include "templates/ptx/convert.cuh"
#include "templates/ptx/ldmatrix.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/mma.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/fixed_order.cuh"
#include "templates/tile/products.cuh"
#include "templates/tile/quad.cuh"
#include "templates/tile/row_mask.cuh"
#include "templates/tile/scores.cuh"
#include "templates/tile/sm90_layout.cuh"

namespace att {
namespace sm90 {

using Scores = float[kTileKv / 2];
using Probabilities = unsigned[kPvSteps][4];
using Output = float[spec::kHeadDimV / 2];

// Of a thread's rows; index half.
struct Statistics {
  float reference[2], sum[2];
  ATT_MEMBER void clear() {
    reference[0] = reference[1] = -infinity();
    sum[0] = sum[1] = 0.0f;
  }
};

// Products to scores, where they are not left as they are, and dead elements to -inf. Rows behind
// the last query act as it.
ATT_FN void finish_scores(const Context& c, Scores& s, int row, int k0, bool full) {
  const int first_key = k0 + thread_index() % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int q = min_i32(row + 8 * half, c.q_len - 1);
    if constexpr (!kFoldScale) {
      const float scale = spec::kScaleAtLaunch ? c.params.softmax_scale : spec::kSoftmaxScale;
#pragma unroll
      for (int n = 0; n < kTileKv / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * n + 2 * half + e];
          x = fixed_score(c, x, scale, q, first_key + 8 * n + e);
        }
      }
    }
    if (full) continue;
    if (spec::kIsPacked && c.kv_len == 0) {  // look-ups are proven for one key at least
#pragma unroll
      for (int i = 0; i < kTileKv / 2; ++i) s[i] = -infinity();
      return;
    }
    const RowMask mask = row_mask(c, q, first_key);
#pragma unroll
    for (int n = 0; n < kTileKv / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[4 * n + 2 * half + e];
        x = is_live(c, mask, 8 * n + e) ? x : -infinity();
      }
    }
  }
}

// The largest of the thread's scores of `kSteps` steps from step kFirst on.
template <int kFirst, int kSteps>
ATT_FN float top_of(const Scores& s, int half) {
  float maximum = -infinity();
#pragma unroll
  for (int i = 8 * kFirst; i < 8 * (kFirst + kSteps); i += 4) {
    maximum = math_max(maximum, math_max(s[i + 2 * half], s[i + 2 * half + 1]));
  }
  return rounded_product(maximum, kScoreFactor);
}

// Exponentials of a step, added to the sums, and as an operand.
ATT_FN void exponentiate_step(Scores& s, int step, Statistics& rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float shift = -finite(rows.reference[half]);
#pragma unroll
    for (int i = 8 * step + 2 * half; i < 8 * step + 8; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        s[i + e] = fixed_exponential(s[i + e], shift);
        rows.sum[half] += s[i + e];
      }
    }
  }
}
ATT_FN void pack_step(const Scores& s, int step, unsigned (&p)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    p[i] = pack_2<spec::kDType>(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
  }
}

ATT_FN void scale_rows(Output& o, const float (&by)[2]) {
#pragma unroll
  for (int i = 0; i < spec::kHeadDimV / 2; ++i) o[i] = rounded_product(o[i], by[i / 2 % 2]);
}

// A tile in which a row's reference is raised behind the first step: step by step, its product with
// V by mma.sync, of the warp alone. mma.sync and wgmma add up 16 products at once in the same way.
// `v`: the tile.
ATT_FN void visit_by_steps(Scores& s, Statistics& rows, Output& o, unsigned v) {
  const int lane = thread_index() % 32;
#pragma unroll
  for (int step = 0; step < kPvSteps; ++step) {
    float rescale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float maximum = -infinity();
#pragma unroll
      for (int i = 8 * step; i < 8 * step + 8; i += 4) {
        maximum = math_max(maximum, math_max(s[i + 2 * half], s[i + 2 * half + 1]));
      }
      rescale[half] = raise_row(rows.reference[half], rows.sum[half],
                                quad_max(rounded_product(maximum, kScoreFactor)));
    }
    scale_rows(o, rescale);
    exponentiate_step(s, step, rows);
    unsigned p[4];
    pack_step(s, step, p);
#pragma unroll
    for (int j = 0; j < spec::kHeadDimV / 16; ++j) {
      unsigned b[4];
      ldmatrix_x4_trans(b, swizzled(v + j / 4 * kKvSlabBytes, 16 * step + down_row(lane),
                                    j % 4 * 2 + down_unit(lane)));
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float* const to = o + 8 * j + 4 * n;
        float d[4] = {to[0], to[1], to[2], to[3]};
        mma_m16n8k16<spec::kDType>(d, p, b[2 * n], b[2 * n + 1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i] = d[i];
      }
    }
  }
}

// ---- Folding.

// Folds `its` into `o`. A row of it that has met no key changes nothing.
ATT_FN void fold_rows(Output& o, Statistics& rows, const Output& its, const Statistics& of_its) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (of_its.sum[half] == 0.0f) continue;
    const FoldFactors by = fold_statistics(rows.reference[half], rows.sum[half],
                                           of_its.reference[half], of_its.sum[half]);
#pragma unroll
    for (int i = 2 * half; i < spec::kHeadDimV / 2; i += 4) {
      o[i] = folded(o[i], its[i], by);
      o[i + 1] = folded(o[i + 1], its[i + 1], by);
    }
  }
}

// What an item's pieces have come to, in shared memory: as many floats as a thread has of O, those
// of a warp's lanes side by side.
constexpr int kFoldedOffset = (kSharedBytes + 127) / 128 * 128;
constexpr int kFoldedBytes = kRows * spec::kHeadDimV * 4;  // of a warpgroup
static_assert(kFoldedOffset + kWarpgroups * kFoldedBytes <= plan::kSharedBytes);

struct FoldedPieces {
  unsigned base;  // of the thread
  Statistics rows;
  bool has_any;

  ATT_MEMBER FoldedPieces(const SharedMemory& shared, int warpgroup) {
    base = shared.base + kFoldedOffset + warpgroup * kFoldedBytes +
           thread_index() % kWarpgroupThreads * 16;
  }
  ATT_MEMBER void clear() {
    rows.clear();
    has_any = false;
  }

  // The next piece's, and then it is what `piece` has, too. What comes first is kept as it is: to
  // fold it into nothing comes to the same.
  ATT_MEMBER void fold(Output& piece, Statistics& of_piece) {
    if (has_any) {
      FoldFactors by[2] = {};
      bool changes[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        changes[half] = of_piece.sum[half] != 0.0f;
        if (changes[half]) {
          by[half] = fold_statistics(rows.reference[half], rows.sum[half], of_piece.reference[half],
                                     of_piece.sum[half]);
        }
      }
#pragma unroll
      for (int i = 0; i < spec::kHeadDimV / 2; i += 4) {
        float before[4];
        load(i, before);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          piece[i + j] = changes[j / 2] ? folded(before[j], piece[i + j], by[j / 2]) : before[j];
        }
      }
      of_piece = rows;
    }
    rows = of_piece;
  }
  ATT_MEMBER void keep(const Output& piece) {
#pragma unroll
    for (int i = 0; i < spec::kHeadDimV / 2; i += 4) {
      const float four[4] = {piece[i], piece[i + 1], piece[i + 2], piece[i + 3]};
      store_shared_floats(base + i / 4 * (kWarpgroupThreads * 16), four);
    }
    has_any = true;
  }

 private:
  // Not before what was stored last.
  ATT_MEMBER void load(int i, float (&four)[4]) const {
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(four[0]), "=f"(four[1]), "=f"(four[2]), "=f"(four[3])
                 : "r"(base + i / 4 * (kWarpgroupThreads * 16))
                 : "memory");
  }
};

}  // namespace sm90
}  // namespace att
