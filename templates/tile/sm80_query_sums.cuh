// dQ of the sm80 family's five products: the CTA of a tile of keys has what these add to it, and
// adds that up in global memory.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/ldmatrix.cuh"
#include "templates/ptx/mma.cuh"
#include "templates/ptx/reduce.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/learned_sums.cuh"
#include "templates/tile/products.cuh"
#include "templates/tile/sm80_backward_tiles.cuh"
#include "templates/tile/smem_layout.cuh"

namespace att {

// Sums lie as accumulators do, so that what a warp adds at a time is lines: of 16 queries and 16
// columns the blocks of 8 columns, and of these the elements of each lane together where a thread
// adds four at a time, else the lanes of each element.
constexpr int kSumsOfBlock = 16 * 16;
ATT_FN long long sums_offset(long long row, int chunk) {
  return row * kDimQk + chunk * kSumsOfBlock;  // `row` is a multiple of 16
}
// From a lane's of a block of 8 columns to the next lane's, and from an element of it to the next.
constexpr int kLaneStride = kReducesFour ? 4 : 1, kElementStride = kReducesFour ? 1 : 32;

// Of a plan whose queries' kernel makes dQ anew.
template <bool kAdds, DType kType>
struct QuerySums {
  ATT_MEMBER QuerySums(unsigned, unsigned) {}
  template <typename Factor>
  ATT_MEMBER void put(const Factor&, int) const {}
  ATT_MEMBER void add(float*, long long) const {}
};

template <DType kType>
struct QuerySums<true, kType> {
  using Scores = RowLayout<kStep>;  // dS^T: a row is a key
  using Keys = RowLayout<kDimQk>;
  static constexpr int kRowBlocks = kStep / 16;
  static constexpr int kBlocks = kRowBlocks < 2 ? 1 : 2;  // of 16 queries, that a warp makes,
  static constexpr int kGroups = plan::kWarps * kBlocks / kRowBlocks;  // and one group of columns
  static constexpr int kChunks = kDimQk / 16;
  static constexpr int kOwnChunks = (kChunks + kGroups - 1) / kGroups;

  unsigned scores, keys;

  // Shared addresses of dS^T and of the CTA's keys.
  ATT_MEMBER QuerySums(unsigned scores_tile, unsigned keys_tile)
      : scores(scores_tile), keys(keys_tile) {}

  // 16 keys of dS^T, from the CTA's `first_key` on. The CTA waits for all of them before add(), and
  // after it before the next.
  template <typename Factor>
  ATT_MEMBER void put(const Factor& factor, int first_key) const {
    const int lane = lane_index();
#pragma unroll
    for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = first_key + lane / 4 + 8 * half;
        store_shared_4(scores + Scores::offset(key, n) + lane % 4 * 4,
                       factor.words[n / 2][n % 2 * 2 + half]);
      }
    }
  }

  // The warp's part of dS K, to the sums of the head's rows from `row` on.
  ATT_MEMBER void add(float* sums, long long row) const {
    const int lane = lane_index();
    const int first_block = warp_index() / kGroups * kBlocks, group = warp_index() % kGroups;
    const unsigned of_scores =
        Scores::step(scores + Scores::offset(across_row(lane), across_unit(lane)), 2 * first_block);
    const unsigned of_keys =
        Keys::step(keys + Keys::offset(down_row(lane), down_unit(lane)), 2 * group);
    float sum[kBlocks][kOwnChunks][2][4] = {};
#pragma unroll(plan::kSharers > 1 ? 4 : 2)
    for (int j = 0; j < kRows / 16; ++j) {
      unsigned a[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        ldmatrix_x4_trans(a[m], Scores::step(of_scores, 2 * m) + j * 16 * Scores::kRowBytes);
      }
#pragma unroll
      for (int i = 0; i < kOwnChunks; ++i) {
        if (kChunks % kGroups != 0 && group + i * kGroups >= kChunks) break;
        unsigned b[4];
        ldmatrix_x4_trans(b, Keys::step(of_keys, 2 * i * kGroups) + j * 16 * Keys::kRowBytes);
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          mma_m16n8k16<kType>(sum[m][i][0], a[m], b[0], b[1]);
          mma_m16n8k16<kType>(sum[m][i][1], a[m], b[2], b[3]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < kOwnChunks; ++i) {
        const int chunk = group + i * kGroups;
        if (kChunks % kGroups != 0 && chunk >= kChunks) break;
        float* const to =
            sums + sums_offset(row + 16 * (first_block + m), chunk) + kLaneStride * lane;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float(&add)[4] = sum[m][i][half];
          if constexpr (kReducesFour) {
            reduce_add_4(to + 128 * half, add[0], add[1], add[2], add[3]);
          } else {
#pragma unroll
            for (int e = 0; e < 4; ++e) reduce_add(to + 128 * half + kElementStride * e, add[e]);
          }
        }
      }
    }
  }
};

// A warp's 16 rows of dQ, which are complete.
ATT_FN void load_sums(float (&d_q)[kDimQk / 8][4], const float* sums, long long row) {
  const float* const from = sums + sums_offset(row, 0) + kLaneStride * lane_index();
#pragma unroll
  for (int n = 0; n < kDimQk / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) d_q[n][e] = from[n * 128 + kElementStride * e];
  }
}

}  // namespace att
