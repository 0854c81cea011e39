// The sm90a family's ordered backward kernels where a warpgroup has registers for both dK and dV of
// its keys: row statistics, then dK and dV by key tiles as sm90_backward.cuh makes them, but for
// dQ, then dQ by query tiles as sm90_ordered_backward.cuh does. Seven products, and every sum has
// one order.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/kernels/learned_totals.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/sm90_backward_keys.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_ordered_queries_cta.cuh"
#include "templates/tile/sm90_ordered_queries_layout.cuh"
#include "templates/tile/walk_parts.cuh"

ATT_KERNEL __launch_bounds__(att::kRowThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _rows)(ATT_GRID_CONSTANT att::BackwardParams p) {
  att::let_next_launch_start();
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
  make_key_gradients<false>(p, &q_map, &k_map, &v_map, &do_map, &dk_map, &dv_map, shared);
}

ATT_KERNEL __launch_bounds__(att::sm90::kQueryThreads, 1)
    ATT_JOIN(ATT_KERNEL_NAME, _queries)(ATT_GRID_CONSTANT att::BackwardParams p,
                                        ATT_GRID_CONSTANT att::TensorMap q_map,
                                        ATT_GRID_CONSTANT att::TensorMap k_map,
                                        ATT_GRID_CONSTANT att::TensorMap v_map,
                                        ATT_GRID_CONSTANT att::TensorMap do_map) {
  using namespace att::sm90;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const QueriesMemory shared{att::shared_address(shared_memory)};
  make_query_gradients(p, &q_map, &k_map, &v_map, &do_map, shared);
}
