// The softmax of a warpgroup's tile: from Q K^T to P, for its own half of O in registers and for
// the other's in shared memory.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/stmatrix.cuh"
#include "templates/tile/key_tiles.cuh"
#include "templates/tile/quad.cuh"
#include "templates/tile/scores.cuh"
#include "templates/tile/sm90_mla.cuh"
#include "templates/tile/softmax.cuh"

namespace att {

// By how much a row's scores may be above its reference, in log2 units: only beyond does it rise,
// so that what has been summed need not shrink whenever a tile has a score that is a little higher.
// Exponentials of up to 2^8 lose nothing, in fp16 neither.
constexpr float kSlack = 8.0f;

// Of a lane's two rows, with what both warpgroups have summed.
struct RowTotals {
  float reference[2], sum[2];
};

struct RowsOfP {
  const ForwardParams& p;
  const Item& item;
  float s[kKeys / 2];
  unsigned weights[kKeys / 16][4];  // P as A operand
  float reference[2], sum[2];       // of a lane's two rows; the sum of its own columns

  ATT_MEMBER RowsOfP(const ForwardParams& params, const Item& of) : p(params), item(of) {
    reference[0] = reference[1] = -infinity();
    sum[0] = sum[1] = 0.0f;
  }

  // What the spec makes of the products with the keys from k0 on. Rows behind the item's last one
  // act as it.
  ATT_MEMBER void finish_scores(int k0, bool partial) {
    if (kFoldScale && !partial) return;
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

  // Of each row, in units of kReferenceUnit.
  ATT_MEMBER void find_highest(float (&highest)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float maximum = math_max(s[2 * half], s[2 * half + 1]);
#pragma unroll
      for (int n = 1; n < kKeys / 8; ++n) {
        maximum = math_max(maximum, math_max(s[4 * n + 2 * half], s[4 * n + 2 * half + 1]));
      }
      highest[half] = quad_max(maximum) * kScoreFactor;
    }
  }

  // Where the rows' references shall be after scores up to these: where they are, unless scores are
  // far above.
  ATT_MEMBER static void keep_close(float (&highest)[2], const float (&references)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!(highest[half] > references[half] + from_log2(kSlack))) highest[half] = references[half];
    }
  }

  // Raises the references to these, and says by how much what was summed shrinks.
  ATT_MEMBER void raise(const float (&to)[2], float (&less)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float raised = math_max(reference[half], to[half]);
      less[half] = math_exp2(as_log2(reference[half] - finite(raised)));
      // Where nothing has been summed there is nothing to shrink.
      if (reference[half] == raised) less[half] = 1.0f;
      reference[half] = raised;
      sum[half] *= less[half];
    }
  }

  // Scores to exponentials, which join the sum.
  ATT_MEMBER void weigh_keys() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float shift = -finite(reference[half]);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * n + 2 * half + e];
          x = exponential(x, shift);
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

  // The exponentials times `by` for the other warpgroup. They are rounded anew: a product may still
  // be reading `weights`. A fence is to follow.
  ATT_MEMBER void store(unsigned shared, const float (&by)[2]) const {
    const int lane = lane_index();
    const int row = thread_index() % kGroupThreads / 32 * 16 + lane % 16;
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      unsigned words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 8 * step + 2 * i;
        words[i] = pack_2<spec::kDType>(s[at] * by[i % 2], s[at + 1] * by[i % 2]);
      }
      stmatrix_x4(shared + SlabRows<kRows>::offset(row, 2 * step + lane / 16), words);
    }
  }

  // For the other warpgroup, its sum; and with what the other has left, the item's.
  ATT_MEMBER void leave_sum(unsigned shared) const {
    leave_of_rows(shared, {quad_sum(sum[0]), quad_sum(sum[1])});
  }
  ATT_MEMBER RowTotals totals(unsigned shared) const {
    float others[2];
    take_of_rows(shared, others);
    return {{reference[0], reference[1]},
            {quad_sum(sum[0]) + others[0], quad_sum(sum[1]) + others[1]}};
  }
  ATT_MEMBER void store_statistics(const Parts<kRows, kPartStride>& part, unsigned shared) const {
    float others[2];
    take_of_rows(shared, others);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float all = quad_sum(sum[half]) + others[half];
      if (lane_index() % 4 == 0) {
        part.statistic(0, lane_row() + 8 * half)[0] = reference[half];
        part.statistic(0, lane_row() + 8 * half)[1] = all;
      }
    }
  }
};

}  // namespace att
