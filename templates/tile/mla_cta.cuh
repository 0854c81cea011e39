// What the warps of a CTA do with a tile of keys whose first columns are the values: they share out
// its keys for Q K^T, then the columns of O for P V, both from the same tile in shared memory.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/ldmatrix.cuh"
#include "templates/ptx/mma.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/item_rows.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/products.cuh"
#include "templates/tile/quad.cuh"
#include "templates/tile/scores.cuh"
#include "templates/tile/smem_layout.cuh"
#include "templates/tile/softmax.cuh"

namespace att {

constexpr int kDimQk = spec::kHeadDimQk;
constexpr int kDimV = spec::kHeadDimV;
constexpr int kKeys = plan::kStepKeys;
constexpr int kStageBytes = kKeys * kDimQk * 2;
constexpr int kRingBytes = plan::kStages * kStageBytes;

// For Q K^T a warp has 16 of the rows and so many keys of a tile; for P V all rows, and so many
// tiles of 8 columns.
constexpr int kKeyWarps = plan::kWarps / kBlocks;
constexpr int kWarpKeys = kKeys / kKeyWarps;
constexpr int kKeyTiles = kWarpKeys / 8;
constexpr int kColumnTiles = kDimV / 8 / plan::kWarps;
static_assert(kDimQk % 64 == 0 && kDimV % (16 * plan::kWarps) == 0 && kDimV <= kDimQk);
static_assert(kKeyWarps * kBlocks == plan::kWarps && (kKeyTiles == 1 || kKeyTiles == 2));

// Shared memory: the ring; P of a tile; of each row the warps' maxima, in the end their sums. Q is
// brought by way of the stage that is filled last; the results take the place of the ring.
constexpr int kPOffset = kRingBytes;
constexpr int kMaximaOffset = kPOffset + kRows * kKeys * 2;
constexpr int kPartStride = kDimV + 4;  // floats; rows fall into different banks
constexpr int kMostParts = plan::kPieces;
using ItemWeights = Weights<kMostParts, kRows>;
constexpr int kWeightsOffset = kRows * (kPartStride + 2) * 4;
static_assert(kRows <= kKeys, "Q fits into a stage");
static_assert(kWeightsOffset + static_cast<int>(sizeof(ItemWeights)) <= kRingBytes);
static_assert(kMaximaOffset + kRows * kKeyWarps * 4 <= plan::kSharedBytes);

// Of one warp.
struct MlaWarp {
  const ForwardParams& p;
  const Item& item;
  unsigned q[kDimQk / 16][4];
  float o[kBlocks][kColumnTiles][4];
  float reference[kBlocks][2];
  float sum[2];  // of this lane's keys, of the rows whose scores it has

  ATT_MEMBER MlaWarp(const ForwardParams& params, const Item& of) : p(params), item(of) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[m][n][e] = 0.0f;
      }
      reference[m][0] = reference[m][1] = -infinity();
    }
    sum[0] = sum[1] = 0.0f;
  }

  // Which rows, and which keys of a tile, the warp has the scores of.
  static ATT_MEMBER int first_row() { return warp_index() / kKeyWarps * 16; }
  static ATT_MEMBER int key_warp() { return warp_index() % kKeyWarps; }

  ATT_MEMBER void keep_queries(unsigned shared) {
    using Layout = RowLayout<kDimQk>;
    const int lane = lane_index();
    const unsigned address = shared + Layout::offset(first_row() + down_row(lane), down_unit(lane));
#pragma unroll
    for (int k = 0; k < kDimQk / 16; ++k) ldmatrix_x4(q[k], Layout::step(address, 2 * k));
  }

  // Scores of the warp's rows and keys, dead ones -inf, and their maxima to shared memory.
  ATT_MEMBER void multiply(float (&s)[kKeyTiles][4], unsigned tile, unsigned maxima, int k0,
                           bool partial) const {
    using Layout = RowLayout<kDimQk>;
    const int lane = lane_index();
    float odd[kKeyTiles][4];  // products that follow one another add to two sums
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = odd[n][e] = 0.0f;
    }
    const unsigned keys =
        tile + Layout::offset(key_warp() * kWarpKeys, 0);  // a multiple of 8 rows: no permutation
    if constexpr (kKeyTiles == 1) {
      const unsigned address = keys + Layout::offset(lane % 8, lane / 8);
#pragma unroll
      for (int k = 0; k < kDimQk / 16; k += 2) {
        unsigned b[4];  // 8 keys by 32 columns
        ldmatrix_x4(b, Layout::step(address, 2 * k));
        mma_m16n8k16<spec::kDType>(s[0], q[k], b[0], b[1]);
        mma_m16n8k16<spec::kDType>(odd[0], q[k + 1], b[2], b[3]);
      }
    } else {
      const unsigned address = keys + Layout::offset(across_row(lane), across_unit(lane));
#pragma unroll
      for (int k = 0; k < kDimQk / 16; k += 2) {
        unsigned b[4];
        ldmatrix_x4(b, Layout::step(address, 2 * k));
        mma_m16n8k16<spec::kDType>(s[0], q[k], b[0], b[1]);
        mma_m16n8k16<spec::kDType>(s[kKeyTiles - 1], q[k], b[2], b[3]);
        ldmatrix_x4(b, Layout::step(address, 2 * k + 2));
        mma_m16n8k16<spec::kDType>(odd[0], q[k + 1], b[0], b[1]);
        mma_m16n8k16<spec::kDType>(odd[kKeyTiles - 1], q[k + 1], b[2], b[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] += odd[n][e];
    }
    if (!kFoldScale || partial) finish_scores(s, k0 + key_warp() * kWarpKeys, partial);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float maximum = math_max(s[0][2 * half], s[0][2 * half + 1]);
      if constexpr (kKeyTiles == 2) {
        maximum =
            math_max(maximum, math_max(s[kKeyTiles - 1][2 * half], s[kKeyTiles - 1][2 * half + 1]));
      }
      maximum = quad_max(maximum);
      if (lane % 4 == 0) {
        const int row = first_row() + lane / 4 + 8 * half;
        store_shared_4(maxima + 4 * (row * kKeyWarps + key_warp()),
                       __builtin_bit_cast(unsigned, maximum));
      }
    }
  }

  // Raises the references of all rows to the tile's maxima, which all warps have written, and
  // writes P of the warp's own rows and keys.
  ATT_MEMBER void weigh_keys(float (&s)[kKeyTiles][4], unsigned maxima, unsigned weights) {
    const int lane = lane_index();
    float shrink[kBlocks][2];
    bool same = true;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned row = maxima + 4 * kKeyWarps * (16 * m + lane / 4 + 8 * half);
        float maximum = -infinity();
#pragma unroll
        for (int i = 0; i < kKeyWarps; i += 2) {
          float a, b;
          load_shared_8(row + 4 * i, a, b);
          maximum = math_max(maximum, math_max(a, b));
        }
        const float raised = math_max(reference[m][half], maximum * kScoreFactor);
        same = same && raised == reference[m][half];
        shrink[m][half] = math_exp2(as_log2(reference[m][half] - finite(raised)));
        reference[m][half] = raised;
      }
    }
    const int block = first_row() / 16;
    using Layout = RowLayout<kKeys>;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float own = reference[0][half], less = shrink[0][half];
      if constexpr (kBlocks == 2) {
        own = block == 0 ? own : reference[kBlocks - 1][half];
        less = block == 0 ? less : shrink[kBlocks - 1][half];
      }
      const float shift = -finite(own);
      sum[half] *= less;
      const int row = first_row() + lane / 4 + 8 * half;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        const float a = exponential(s[n][2 * half], shift);
        const float b = exponential(s[n][2 * half + 1], shift);
        sum[half] += a + b;
        store_shared_4(weights + Layout::offset(row, key_warp() * kKeyTiles + n) + lane % 4 * 4,
                       pack_2<spec::kDType>(a, b));
      }
    }
    if (all_lanes(same)) return;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[m][n][e] *= shrink[m][e / 2];
      }
    }
  }

  // O += P V of the warp's columns.
  ATT_MEMBER void add_values(unsigned tile, unsigned weights) {
    using Weights = RowLayout<kKeys>;
    using Values = RowLayout<kDimQk>;
    const int lane = lane_index();
    const int first_unit = warp_index() * kColumnTiles;
    const unsigned p_address = weights + Weights::offset(down_row(lane), down_unit(lane));
    const unsigned v_row = tile + down_row(lane) * Values::kRowBytes;
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      unsigned a[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        ldmatrix_x4(a[m], Weights::step(p_address, 2 * k) + 16 * m * Weights::kRowBytes);
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles; n += 2) {
        const int unit = first_unit + n + down_unit(lane);
        unsigned b[4];
        ldmatrix_x4_trans(b, v_row + 16 * k * Values::kRowBytes + ((unit ^ (lane % 8)) << 4));
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          mma_m16n8k16<spec::kDType>(o[m][n], a[m], b[0], b[1]);
          mma_m16n8k16<spec::kDType>(o[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // The lanes' sums of the warp's rows.
  ATT_MEMBER void store_sums(float* sums) const {
    const int lane = lane_index();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float all = quad_sum(sum[half]);
      if (lane % 4 == 0) {
        sums[(first_row() + lane / 4 + 8 * half) * kKeyWarps + key_warp()] = all;
      }
    }
  }

  // O, references and sums as the only part, after store_sums() of all warps.
  ATT_MEMBER void store(const Parts<kRows, kPartStride>& part, const float* sums) const {
    const int lane = lane_index();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * m + lane / 4 + 8 * half;
        float* const to = part.output(0, row) + warp_index() * kColumnTiles * 8 + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          to[8 * n] = o[m][n][2 * half];
          to[8 * n + 1] = o[m][n][2 * half + 1];
        }
        if (warp_index() == 0 && lane % 4 == 0) {
          float all = 0.0f;
#pragma unroll
          for (int i = 0; i < kKeyWarps; ++i) all += sums[row * kKeyWarps + i];
          part.statistic(0, row)[0] = reference[m][half];
          part.statistic(0, row)[1] = all;
        }
      }
    }
  }

 private:
  // What the spec makes of the products of the warp's rows with the keys from first_key on. Rows
  // behind the item's last one act as it.
  ATT_MEMBER void finish_scores(float (&s)[kKeyTiles][4], int first_key, bool partial) const {
    const int lane = lane_index();
    const int key = first_key + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min_i32(first_row() + lane / 4 + 8 * half, item.rows() - 1);
      const int q_idx = item.q0 + row % item.queries();
      const Context c = context_of(p, item, item.h0 + row / item.queries());
      if constexpr (!kFoldScale) {
        const float scale = spec::kScaleAtLaunch ? p.softmax_scale : spec::kSoftmaxScale;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[n][2 * half + e];
            x = modified_score(c, x, scale, q_idx, key + 8 * n + e);
          }
        }
      }
      if (!partial) continue;
      const RowMask mask = row_mask(c, q_idx, key);
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[n][2 * half + e];
          x = is_live(c, mask, 8 * n + e) ? x : -infinity();
        }
      }
    }
  }
};

}  // namespace att
