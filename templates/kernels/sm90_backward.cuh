// The sm90a backward kernels: row statistics, then dK, dV and the sums of dQ, then dQ.
//
// A CTA of the main kernel takes a tile of keys, 64 for each consumer warpgroup, and walks the live
// query tiles of all query heads that share the keys, which a loader warp brings by TMA. A
// warpgroup computes S^T and dP^T of its keys (the keys are wgmma's rows), so that P^T and dS^T
// are register operands of dV += P^T dO and dK += dS^T Q. dQ needs dS of all keys of the tile: the
// warpgroups leave it in shared memory and multiply with K a tile later, when the others' part has
// long come: nobody waits for anybody within a tile. The parts of dQ are added up in global memory
// in fp32, in the order of the accumulators; the last kernel brings them to rows.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/kernels/learned_totals.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/backward_scores.cuh"
#include "templates/tile/learned_gradients.cuh"
#include "templates/tile/sm90_backward_consumer.cuh"
#include "templates/tile/sm90_backward_keys.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/transpose.cuh"
#include "templates/work_items.h"

namespace att {
namespace sm90 {

// ---- dQ from its sums: a warpgroup brings its share of a tile to rows.

ATT_FN void convert_query_gradient(const BackwardParams& p) {
  const int thread = thread_index() % kWarpgroupThreads;
  const int share = thread_index() / kWarpgroupThreads;
  const int tiles = tile_count(p.q_len, kTileQ);
  const int head = block_index() / tiles;
  const int tile = block_index() - head * tiles;
  const int b = head / p.heads;
  const int h = head - b * p.heads;
  if (share == 0 && thread < 32) {
    add_sink_gradient(p, sequence_of(p, b), b, h, tile * kTileQ,
                      min_i32((tile + 1) * kTileQ, p.q_len));
  }
  const float* from = p.d_q_sums + sums_offset(tile_index(p, head, tile), share) + thread * 4;
  const int row = tile * kTileQ + (kDqByRows ? share * 64 : 0) + thread / 32 * 16 + thread % 32 / 4;
  const int column = kDqByRows ? 0 : share * kDqColumns;
  const Strides& stride = p.d_q_stride;
  char* const out = static_cast<char*>(p.d_q) +
                    2 * (b * stride.batch + h * stride.head + row * stride.seq + column);
  const float scale = softmax_scale(p);
  float sums[kDqColumns / 8][4];
#pragma unroll
  for (int j = 0; j < kDqColumns / 8; ++j) {
    unsigned words[4];
    load_global_16(from + j * 512, words);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[j][i] = __builtin_bit_cast(float, words[i]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int first = 0; first < kDqColumns / 8; first += 4) {
      unsigned words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = pack_2<spec::kDType>(sums[first + i][2 * half] * scale,
                                        sums[first + i][2 * half + 1] * scale);
      }
      transpose_quad(words);
      const int block = first + thread % 4;
      if (row + 8 * half < p.q_len && column + 8 * block < spec::kHeadDimQk) {
        store_global_16(out + 2 * (8 * half * stride.seq + 8 * block), words);
      }
    }
  }
}

}  // namespace sm90
}  // namespace att

ATT_KERNEL __launch_bounds__(att::kRowThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _rows)(ATT_GRID_CONSTANT att::BackwardParams p) {
  att::clear_learned_gradients(p);
  att::make_row_statistics(p);
}

ATT_KERNEL __launch_bounds__(att::sm90::kThreads, 1)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT att::BackwardParams p, ATT_GRID_CONSTANT att::TensorMap q_map,
                    ATT_GRID_CONSTANT att::TensorMap k_map, ATT_GRID_CONSTANT att::TensorMap v_map,
                    ATT_GRID_CONSTANT att::TensorMap do_map,
                    ATT_GRID_CONSTANT att::TensorMap dk_map,
                    ATT_GRID_CONSTANT att::TensorMap dv_map) {
  using namespace att::sm90;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const SharedMemory shared{att::shared_address(shared_memory)};
  make_key_gradients<true>(p, &q_map, &k_map, &v_map, &do_map, &dk_map, &dv_map, shared);
}

ATT_KERNEL __launch_bounds__(att::sm90::kConsumerThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _queries)(ATT_GRID_CONSTANT att::BackwardParams p) {
  att::sm90::convert_query_gradient(p);
}
