// Attention backward on mma.sync: the sm80 family, in two kernels and seven products, or in five.
//
// The forward kernel's split-Q scheme twice. In the keys' kernel a warp owns 16 keys and walks the
// queries that see them: S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q. In the queries'
// kernel it owns 16 queries and walks their keys: S = Q K^T, dP = dO V^T, dQ += dS K. P and dS
// never leave registers, and nothing is added up across CTAs: every gradient is written once, by
// one warp, in a fixed order of sums, so the pass is deterministic. The price is that S and dP are
// computed twice.
//
// In the keys' kernel kSharers warps may share 32 keys (sm80_shared_keys.cuh; sm80_role_keys.cuh),
// or a warp has as many alone (sm80_wide_keys.cuh). With kAddsQueries it also makes dS K, of all of
// its keys, which it adds up in global memory in whatever order CTAs come to it; the queries'
// kernel then brings the sums to rows.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/kernels/learned_totals.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/backward_scores.cuh"
#include "templates/tile/dead_rows.cuh"
#include "templates/tile/elements.cuh"
#include "templates/tile/learned_gradients.cuh"
#include "templates/tile/load.cuh"
#include "templates/tile/operands.cuh"
#include "templates/tile/products.cuh"
#include "templates/tile/query_walk.cuh"
#include "templates/tile/sm80_own_keys.cuh"
#include "templates/tile/sm80_role_keys.cuh"
#include "templates/tile/sm80_shared_keys.cuh"
#include "templates/tile/sm80_wide_keys.cuh"
#include "templates/tile/tile_walk.cuh"
#include "templates/work_items.h"

namespace att {

// ---- dK and dV.

// `Keys`: what becomes of the CTA's keys and a stage.
template <typename Keys>
ATT_FN void make_gradients_of(const BackwardParams& p, const Sequence& own, int b, int h_kv, int k0,
                              unsigned shared) {
  const int group = p.heads / p.kv_heads;
  const int k1 = min_i32(k0 + kRows, keys_of(p, own));
  load_tile<kRows, spec::kHeadDimQk>(shared, key_source(p.k, p.k_stride, own, h_kv), k0,
                                     keys_of(p, own));
  load_tile<kRows, spec::kHeadDimV>(shared + kOtherRowsOffset,
                                    key_source(p.v, p.v_stride, own, h_kv), k0, keys_of(p, own));

  const auto context = [&](int h) { return item_context(p, own, b, h, h_kv); };
  const auto stage_at = [&](int stage) { return shared + kStageOffset + stage * kStageBytes; };
  GroupWalk<kStep> walk(context(h_kv * group), k0, k1, group, kRows);
  const auto load = [&](const GroupTile& tile, int stage) {
    constexpr int kLoaders = plan::kHasRoles ? kThreads / 2 : kThreads;
    if (tile.index >= 0 && (kLoaders == kThreads || thread_index() < kLoaders)) {
      const int q0 = tile.index * kStep;
      const unsigned to = stage_at(stage);
      load_tile<kStep, spec::kHeadDimQk, kLoaders>(to, query_source(p.q, p.q_stride, own, tile.h),
                                                   q0, queries_of(p, own));
      load_tile<kStep, spec::kHeadDimV, kLoaders>(to + kOtherStepOffset,
                                                  query_source(p.d_o, p.d_o_stride, own, tile.h),
                                                  q0, queries_of(p, own));
      const long long row = first_padded_row(p, own, b, tile.h) + q0;
      const int lane = thread_index();
      if (lane < kStep / 2) {
        const float* from = lane < kStep / 4 ? p.row_references : p.row_deltas;
        cp_async_16(to + kStatisticsOffset + lane * 16, from + row + lane % (kStep / 4) * 4);
      }
    }
    cp_async_commit();
  };

  Keys keys(p, k0, shared);
  GroupTile pending[plan::kStages - 1];
#pragma unroll
  for (int i = 0; i < plan::kStages - 1; ++i) {
    pending[i] = walk.next(context);
    load(pending[i], i);
  }
  int stage = 0;
  while (pending[0].index >= 0) {
    const GroupTile tile = pending[0];
#pragma unroll
    for (int i = 0; i + 2 < plan::kStages; ++i) pending[i] = pending[i + 1];
    cp_async_wait<plan::kStages - 2>();
    sync_threads();  // this tile has come for all, and all have left the stage filled next
    pending[plan::kStages - 2] = walk.next(context);
    load(pending[plan::kStages - 2], stage == 0 ? plan::kStages - 1 : stage - 1);
    const unsigned at = stage_at(stage);
    clear_dead_rows<kStep, spec::kHeadDimV, kThreads>(at + kOtherStepOffset,
                                                      at + kStatisticsOffset);
    const int query = tile.index * kStep;
    keys.add(context(tile.h), query, tile.full, at, p.d_q_sums,
             first_padded_row(p, own, b, tile.h) + query);
    stage = stage + 1 == plan::kStages ? 0 : stage + 1;
  }
  keys.end(context(0));
  cp_async_wait<0>();
  sync_threads();
  keys.store(p, own, h_kv, k0, dropout_scale(context(0)), shared);
}

template <int kPart>
ATT_FN void make_key_gradients(const BackwardParams& p, const Sequence& own, int b, int h_kv,
                               int k0, unsigned shared) {
  if constexpr (plan::kHasRoles) {
    make_gradients_of<RoleKeys<spec::kDType>>(p, own, b, h_kv, k0, shared);
  } else if constexpr (plan::kSharers > 1) {
    make_gradients_of<SharedKeys<spec::kDType>>(p, own, b, h_kv, k0, shared);
  } else if constexpr (plan::kWarpKeys == 32) {
    make_gradients_of<WideKeys<spec::kDType>>(p, own, b, h_kv, k0, shared);
  } else {
    make_gradients_of<OwnKeys<kPart>>(p, own, b, h_kv, k0, shared);
  }
}

// The same of all batches, or of all heads, one after the other, by the item that is the first of
// them: a thread has the same pairs of each, and adds to what they share in this order.
ATT_FN void make_looped_gradients(const BackwardParams& p, int part, int b, int h_kv, int k0,
                                  unsigned shared) {
  if ((plan::kLoopsBatches && b > 0) || (plan::kLoopsHeads && h_kv > 0)) return;
  const int end_b = plan::kLoopsBatches ? p.batch : b + 1;
  const int end_h = plan::kLoopsHeads ? p.kv_heads : h_kv + 1;
#pragma unroll 1
  for (int each_b = b; each_b < end_b; ++each_b) {
#pragma unroll 1
    for (int h = h_kv; h < end_h; ++h) {
      if (part == 0) {
        make_key_gradients<0>(p, sequence_of(p, each_b), each_b, h, k0, shared);
      } else if constexpr (plan::kColumnParts > 1) {
        make_key_gradients<1>(p, sequence_of(p, each_b), each_b, h, k0, shared);
      }
      sync_threads();  // gradients have left the memory that the next one's tiles come to
    }
  }
}

// ---- dQ.

ATT_FN void convert_query_sums(const BackwardParams& p, const Sequence& own, int b, int h, int q0,
                               unsigned shared) {
#pragma unroll 1
  for (int first = warp_index() * 16; first < kRows; first += plan::kWarps * 16) {
    const int row = q0 + first;
    float d_q[kDimQk / 8][4];
    load_sums(d_q, p.d_q_sums, first_padded_row(p, own, b, h) + row);
    store_gradient<spec::kHeadDimQk, kDimQk>(
        d_q, softmax_scale(p), {p.d_q, p.d_q_stride, own.slice, own.q_first, h}, 0, row,
        queries_of(p, own), shared + warp_index() * 16 * Rows<kDimQk>::kRowBytes);
  }
}

ATT_FN void make_query_gradient(const BackwardParams& p, const Sequence& own, int b, int h, int q0,
                                unsigned shared) {
  const int h_kv = h / (p.heads / p.kv_heads);
  const int q1 = min_i32(q0 + kRows, queries_of(p, own));
  const Context c = item_context(p, own, b, h, h_kv);
  const long long first = first_padded_row(p, own, b, h);
  load_tile<kRows, spec::kHeadDimQk>(shared, query_source(p.q, p.q_stride, own, h), q0,
                                     queries_of(p, own));
  load_live_rows<kRows, spec::kHeadDimV, kThreads>(
      shared + kOtherRowsOffset, query_source(p.d_o, p.d_o_stride, own, h).row(q0),
      p.d_o_stride.seq * Element::kBytes, queries_of(p, own) - q0, p.row_references + first + q0);
  const auto stage_at = [&](int stage) { return shared + kStageOffset + stage * kStageBytes; };
  const auto load = [&](int tile, int stage) {
    if (tile >= 0) {
      const int k0 = tile / 2 * kStep;
      load_tile<kStep, spec::kHeadDimQk>(stage_at(stage), key_source(p.k, p.k_stride, own, h_kv),
                                         k0, keys_of(p, own));
      load_tile<kStep, spec::kHeadDimV>(stage_at(stage) + kOtherStepOffset,
                                        key_source(p.v, p.v_stride, own, h_kv), k0,
                                        keys_of(p, own));
    }
    cp_async_commit();
  };
  const WarpRows<kDimQk> queries(shared, warp_index() * 16);
  const WarpRows<kDimV> outputs(shared + kOtherRowsOffset, warp_index() * 16);
  const int lane = lane_index();
  const int row = q0 + warp_index() * 16;
  RowElements elements(c, row + lane / 4, p.row_references + first, p.row_deltas + first);
  float d_q[kDimQk / 8][4];
  clear(d_q);
  TileWalk<kStep> walk(c, q0, q1);
  int pending[plan::kStages - 1];
#pragma unroll
  for (int i = 0; i < plan::kStages - 1; ++i) {
    pending[i] = walk.next(c, q0, q1);
    load(pending[i], i);
  }
  int stage = 0;
  while (pending[0] != walk.kEnd) {
    const int tile = pending[0];
#pragma unroll
    for (int i = 0; i + 2 < plan::kStages; ++i) pending[i] = pending[i + 1];
    cp_async_wait<plan::kStages - 2>();
    sync_threads();
    pending[plan::kStages - 2] = walk.next(c, q0, q1);
    load(pending[plan::kStages - 2], stage == 0 ? plan::kStages - 1 : stage - 1);

    const unsigned at = stage_at(stage);
    float s[1][kStep / 8][4], d[1][kStep / 8][4];
    queries.multiply(s, at);
    elements.template probabilities<kStep>(c, s[0], tile / 2 * kStep + lane % 4 * 2, tile % 2 != 0);
    outputs.multiply(d, at + kOtherStepOffset);
    elements.template gradients<kStep>(c, s[0], d[0], tile / 2 * kStep);
    Operand::Factor<kStep> factor;
#pragma unroll
    for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        factor.set(n, half, d[0][n][2 * half], d[0][n][2 * half + 1]);
      }
    }
    Operand::add_rows<kDimQk, 0, kDimQk>(d_q, factor, at);
    stage = stage + 1 == plan::kStages ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  sync_threads();
  store_gradient<spec::kHeadDimQk, kDimQk>(
      d_q, softmax_scale(p), {p.d_q, p.d_q_stride, own.slice, own.q_first, h}, 0, row,
      queries_of(p, own), shared + warp_index() * 16 * Rows<kDimQk>::kRowBytes);
}

// ---- Work items.

// Under a mask items are uneven: the longest of so many keys' heads come before the others, and
// CTAs end together. Of all heads at once neither these nor their sums would stay in L2. Causal, 32
// heads of 8192 on 132 processors, by counting tiles: a head at a time takes 6 % longer than if all
// ended together, two 0.7 %.
constexpr int kKeysOfGroup = 16384;
ATT_FN HeadTile<int> key_tile(const BackwardParams& p, int index) {
  const int tiles = tile_count(p.kv_len, kRows), heads = p.batch * p.kv_heads;
  const int held = spec::kHasMask ? min_i32(heads, max_i32(1, kKeysOfGroup / p.kv_len)) : 1;
  return tile_by_group(index, tiles, head_groups(heads, GroupSizes<int>{held, held}), false);
}

// Of a list of packed sequences' tiles, each for `heads` heads.
struct ListedTile {
  Sequence own;  // empty: there is nothing to do
  int b, h, first;
};
ATT_FN ListedTile listed_tile(const BackwardParams& p, const SequenceItem* list, int index,
                              int heads) {
  const SequenceItem listed = list[index / heads];
  if (listed.sequence < 0) return {};
  return {sequence_of(p, listed.sequence), listed.sequence, index % heads, listed.tile * kRows};
}

}  // namespace att

ATT_KERNEL __launch_bounds__(att::kRowThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _rows)(ATT_GRID_CONSTANT att::BackwardKernelParams p) {
  att::clear_learned_gradients(p);
  att::make_row_statistics(p);
}

// A work item: a tile of the keys of a K/V head, or a part of the columns of its gradients. Heads
// follow one another, so that CTAs which run together share Q and dO in L2; within a head the first
// keys, which most queries of a causal mask see, come first.
//
// Of packed sequences an item is taken only if it lies in its sequence: the lengths may have
// changed since it was listed.
ATT_KERNEL __launch_bounds__(att::kThreads, att::plan::kMinCtas)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT att::BackwardKernelParams p) {
  using namespace att;
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const int index = block_index();
  const int part = index % plan::kColumnParts;
  if constexpr (spec::kIsPacked) {
    const SequenceItem* const list = static_cast<const PagedParams&>(p).key_items;
    const auto [own, b, h_kv, k0] = listed_tile(p, list, index / plan::kColumnParts, p.kv_heads);
    if (k0 >= own.kv_len) return;
    const unsigned shared = shared_address(shared_memory);
    if (part == 0) {
      make_key_gradients<0>(p, own, b, h_kv, k0, shared);
    } else if constexpr (plan::kColumnParts > 1) {
      make_key_gradients<1>(p, own, b, h_kv, k0, shared);
    }
  } else {
    const auto [head, tile] = key_tile(p, index / plan::kColumnParts);
    const int k0 = tile * kRows;
    const int b = head / p.kv_heads;
    const int h_kv = head - b * p.kv_heads;
    const unsigned shared = shared_address(shared_memory);
    if constexpr (plan::kLoopsBatches || plan::kLoopsHeads) {
      make_looped_gradients(p, part, b, h_kv, k0, shared);
    } else if (part == 0) {
      make_key_gradients<0>(p, sequence_of(p, b), b, h_kv, k0, shared);
    } else if constexpr (plan::kColumnParts > 1) {
      make_key_gradients<1>(p, sequence_of(p, b), b, h_kv, k0, shared);
    }
  }
}

ATT_KERNEL __launch_bounds__(att::kThreads, att::plan::kMinCtas)
    ATT_JOIN(ATT_KERNEL_NAME, _queries)(ATT_GRID_CONSTANT att::BackwardKernelParams p) {
  using namespace att;
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const auto make = [&](const Sequence& own, int b, int h, int q0) {
    if (warp_index() == 0) {
      add_sink_gradient(p, own, b, h, q0, min_i32(q0 + kRows, queries_of(p, own)));
    }
    if constexpr (plan::kAddsQueries) {
      convert_query_sums(p, own, b, h, q0, shared_address(shared_memory));
    } else {
      make_query_gradient(p, own, b, h, q0, shared_address(shared_memory));
    }
  };
  if constexpr (spec::kIsPacked) {
    const SequenceItem* const list = static_cast<const PackedParams&>(p).sequences.items;
    const auto [own, b, h, q0] = listed_tile(p, list, block_index(), p.heads);
    if (q0 < own.q_len) make(own, b, h, q0);
  } else {
    const auto [head, tile] = tile_by_head(block_index(), tile_count(p.q_len, kRows));
    const int b = head / p.heads;
    make(sequence_of(p, b), b, head - b * p.heads, tile * kRows);
  }
}
