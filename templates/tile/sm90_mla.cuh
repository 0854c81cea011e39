// The two warpgroups of a CTA that multiplies 64 rows by tiles of 64 keys whose first columns are
// the values: the first one makes P, and each has one half of the columns of O.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/fence.cuh"
#include "templates/ptx/named_barrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/stmatrix.cuh"
#include "templates/ptx/wgmma.cuh"
#include "templates/tile/item_rows.cuh"
#include "templates/tile/key_tiles.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/quad.cuh"
#include "templates/tile/scores.cuh"
#include "templates/tile/softmax.cuh"

namespace att {

constexpr int kDimQk = spec::kHeadDimQk;
constexpr int kDimV = spec::kHeadDimV;
constexpr int kKeys = plan::kStepKeys;
constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kGroupColumns = kDimV / 2;
static_assert(kRows == 64 && kKeys == 64 && kThreads == 2 * kGroupThreads && plan::kStages == 2);

// Shared memory, all of it slabs of 64 columns under the 128-byte swizzle but the last two: Q; two
// tiles of keys; P; by how much rows of O shrink; the units of a mask. The results take the place
// of the first three.
constexpr int kSlabBytes = 64 * 128;
constexpr int kTileBytes = kDimQk / 64 * kSlabBytes;
constexpr int kKOffset = kTileBytes;
constexpr int kPOffset = kKOffset + 2 * kTileBytes;
constexpr int kShrinkOffset = kPOffset + kSlabBytes;
constexpr int kFlagOffset = kShrinkOffset + kRows * 4;
constexpr int kTableOffset = kFlagOffset + 16;
using SmallTable = UnitTableOf<512>;
constexpr int kPartStride = kDimV + 4;  // floats; rows fall into different banks
constexpr int kMostParts = plan::kPieces;
using ItemWeights = Weights<kMostParts, kRows>;
constexpr int kWeightsOffset = kRows * (kPartStride + 2) * 4;
static_assert(kWeightsOffset + static_cast<int>(sizeof(ItemWeights)) <= kPOffset);
static_assert(kTableOffset + (spec::kHasMask ? static_cast<int>(sizeof(SmallTable)) : 0) <=
              plan::kSharedBytes);

// Named barriers between the warpgroups: one arrives, the other waits.
enum Handover : int {
  kPIsThere = 1,     // the first: P of a tile
  kTileIsThere = 2,  // the second: the next tile
  kPIsRead = 3,      // the second: P may be overwritten
  kTileIsRead = 4    // the first: the tile may be overwritten, as far as it is concerned
};
ATT_FN void hand_over(Handover what) { named_barrier_arrive(what, kThreads); }
ATT_FN void wait_for(Handover what) { named_barrier_sync(what, kThreads); }

// Row of a warpgroup's accumulators that a lane has; the other one is 8 behind it.
ATT_FN int lane_row() { return thread_index() % kGroupThreads / 32 * 16 + lane_index() / 4; }

// One warpgroup's half of O.
struct HalfOfO {
  float o[kGroupColumns / 2];

  ATT_MEMBER void clear() {
#pragma unroll
    for (int i = 0; i < kGroupColumns / 2; ++i) o[i] = 0.0f;
  }
  // No product is running.
  ATT_MEMBER void shrink(const float (&by)[2]) {
    if (all_lanes(by[0] == 1.0f && by[1] == 1.0f)) return;
#pragma unroll
    for (int i = 0; i < kGroupColumns / 2; ++i) o[i] *= by[i / 2 % 2];
  }
  ATT_MEMBER void store(const Parts<kRows, kPartStride>& part, int group) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const to =
          part.output(0, lane_row() + 8 * half) + group * kGroupColumns + lane_index() % 4 * 2;
#pragma unroll
      for (int n = 0; n < kGroupColumns / 8; ++n) {
        to[8 * n] = o[4 * n + 2 * half];
        to[8 * n + 1] = o[4 * n + 2 * half + 1];
      }
    }
  }
};

// The first columns of a tile as the values of a warpgroup.
ATT_FN unsigned values_of(unsigned tile, int group) {
  return wgmma_descriptor(tile + group * (kGroupColumns / 64) * kSlabBytes, kSlabBytes);
}

// What the first warpgroup does beside its half of O.
struct RowsOfP {
  const ForwardParams& p;
  const Item& item;
  float s[kKeys / 2];
  unsigned weights[kKeys / 16][4];  // P as A operand
  float reference[2], sum[2], less[2];

  ATT_MEMBER RowsOfP(const ForwardParams& params, const Item& of) : p(params), item(of) {
    reference[0] = reference[1] = -infinity();
    sum[0] = sum[1] = 0.0f;
  }

  // From products to P and by how much O shrinks.
  ATT_MEMBER void weigh_keys(int k0, bool partial) {
    if (!kFoldScale || partial) finish_scores(k0, partial);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float maximum = math_max(s[2 * half], s[2 * half + 1]);
#pragma unroll
      for (int n = 1; n < kKeys / 8; ++n) {
        maximum = math_max(maximum, math_max(s[4 * n + 2 * half], s[4 * n + 2 * half + 1]));
      }
      const float raised = math_max(reference[half], quad_max(maximum) * kScoreFactor);
      less[half] = math_exp2(reference[half] - finite(raised));
      // Where nothing has been summed there is nothing to shrink.
      if (reference[half] == raised) less[half] = 1.0f;
      reference[half] = raised;
      const float shift = -finite(raised);
      sum[half] *= less[half];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * n + 2 * half + e];
          x = math_exp2(x * kScoreFactor + shift);
          sum[half] += x;
        }
      }
    }
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[step][i] = pack_2<spec::kDType>(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
      }
    }
  }

  // For the other warpgroup.
  ATT_MEMBER void store(unsigned shared) const {
    const int lane = lane_index();
    const int row = thread_index() % kGroupThreads / 32 * 16 + lane % 16;
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      stmatrix_x4(shared + kPOffset + SlabRows<kRows>::offset(row, 2 * step + lane / 16),
                  weights[step]);
    }
    if (lane % 4 == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        store_shared_4(shared + kShrinkOffset + 4 * (lane_row() + 8 * half),
                       __builtin_bit_cast(unsigned, less[half]));
      }
    }
    fence_shared_for_async();
  }

  ATT_MEMBER void store_statistics(const Parts<kRows, kPartStride>& part) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float all = quad_sum(sum[half]);
      if (lane_index() % 4 == 0) {
        part.statistic(0, lane_row() + 8 * half)[0] = reference[half];
        part.statistic(0, lane_row() + 8 * half)[1] = all;
      }
    }
  }

 private:
  // What the spec makes of the products with the keys from k0 on. Rows behind the item's last one
  // act as it.
  ATT_MEMBER void finish_scores(int k0, bool partial) {
    const int key = k0 + lane_index() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min_i32(lane_row() + 8 * half, item.rows() - 1);
      const int q_idx = item.q0 + row % item.queries();
      const Context c = context_of(p, item, item.h0 + row / item.queries());
      if constexpr (!kFoldScale) {
        const float scale = spec::kScaleAtLaunch ? p.softmax_scale : spec::kSoftmaxScale;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[4 * n + 2 * half + e];
            x = modified_score(c, x, scale, q_idx, key + 8 * n + e);
          }
        }
      }
      if (!partial) continue;
      const RowMask mask = row_mask(c, q_idx, key);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * n + 2 * half + e];
          x = is_live(c, mask, 8 * n + e) ? x : -infinity();
        }
      }
    }
  }
};

}  // namespace att
