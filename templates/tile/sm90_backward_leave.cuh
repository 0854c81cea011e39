// How dK and dV of a consumer warpgroup leave the sm90a backward's main kernel. `c`: the Consumer
// of sm90_backward_consumer.cuh.
#pragma once

#include "templates/ptx/fence.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/ptx/wgmma.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/backward_scores.cuh"
#include "templates/tile/listed_parts.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_listed.cuh"
#include "templates/tile/sm90_backward_packed_rows.cuh"
#include "templates/tile/sm90_backward_parts.cuh"
#include "templates/tile/walk_parts.cuh"

namespace att {
namespace sm90 {

// A part's of a walk, to be added up by others. False where there is a single part.
template <typename Consumer>
ATT_FN bool leaves_part(Consumer& c) {
  return leaves_part(c, own_walk_part(c.p));
}
template <typename Consumer>
ATT_FN bool leaves_part(Consumer& c, const WalkPart& own_part) {
  wgmma_pin(c.d_k);
  wgmma_pin(c.d_v);
  if (own_part.parts == 1) return false;
  int row = c.k0 + c.warpgroup * kKeys, head = c.b * c.p.kv_heads + c.h_kv;
  if constexpr (spec::kIsPacked) {
    row += first_listed_tile(c.own, c.b) * kPartKeys;
    head = c.h_kv;
  }
  leave_part<spec::kHeadDimQk>(c.p, own_part, c.d_k, c.p.d_k_sums, head, row, c.thread);
  leave_part<spec::kHeadDimV>(c.p, own_part, c.d_v, c.p.d_v_sums, head, row, c.thread);
  return true;
}

// A warp's 16 rows of a gradient. Of packed sequences those of another one are not its business.
template <int kHeadDim, typename Consumer>
ATT_FN void leave_rows(Consumer& c, const float (&gradient)[whole_steps(kHeadDim) / 2], float scale,
                       const KeyRows& to, int row, int own_thread, [[maybe_unused]] void* d_tensor,
                       [[maybe_unused]] const Strides& stride) {
  constexpr int kColumns = whole_steps(kHeadDim);
  if constexpr (spec::kIsPacked) {
    const Sequence& own = c.own;
    const int key = c.k0 + c.warpgroup * kKeys + own_thread / 32 * 16;
    if (key + 16 > own.kv_len) {
      char* const out = static_cast<char*>(d_tensor) + 2 * key_offset(own, stride, c.h_kv, key);
      leave_key_rows<kColumns>(gradient, scale, to, row, own_thread);
      sync_warp();
      store_key_rows<kHeadDim>(out, 2 * stride.seq, to, row, own.kv_len - key);
      fence_shared_for_async();
      sync_warp();
      return;
    }
  }
  store_key_rows<kColumns>(gradient, scale, to, row, own_thread);
}

// dV's 64 rows from where V's were, and dK's from where dS was, to global memory, while K and V
// of the next item come. With kLoadsKeysApart dV leaves from a place of its own: V comes sooner.
template <typename Consumer>
ATT_FN void leave(Consumer& c, float keep_scale, const TensorMap* dk_map, const TensorMap* dv_map) {
  // Who learns of it tells that the item has been added to its head's sums, by all lanes.
  if constexpr (kLoadsKeysApart && kStartsQueriesEarly) sync_warp();
  c.warp_arrive(c.shared.k_empty());
  // What has had no register all the while.
  if constexpr (kLoadsKeysApart) c.take(load_listed_item(c.shared.item_slot(c.parity)));
  if constexpr (kCutsWalks) {
    const int part = load_listed_item(c.shared.item_slot(c.parity)).part;
    if (leaves_part(c, walk_part(c.p, queries_of(c.p, c.own), part))) return;
  }
  const int own_thread = kLoadsKeysApart ? opaque(c.thread) : c.thread;
  const int row = own_thread / 32 * 16;
  const int first = c.own.kv_first + c.k0;
  const int slice = kLoadsKeysApart ? c.own.slice : c.b;
  leave_rows<spec::kHeadDimV>(c, c.d_v, keep_scale,
                              {kLoadsKeysApart ? c.shared.leaving() : c.shared.v(), kKvSlabBytes,
                               dv_map, first, c.h_kv, slice},
                              c.warpgroup * kKeys + row, own_thread, c.p.d_v, c.p.d_v_stride);
  // The others have read dS.
  if (c.written > 0)
    mbarrier_wait(c.shared.ds_empty((c.written - 1) & 1), (c.written - 1) >> 1 & 1);
  leave_rows<spec::kHeadDimQk>(c, c.d_k, softmax_scale(c.p),
                               {c.shared.d_s(0) + c.warpgroup * kQSlabBytes, kDsBytes, dk_map,
                                first + c.warpgroup * kKeys, c.h_kv, slice},
                               row, own_thread, c.p.d_k, c.p.d_k_stride);
  if constexpr (!kLoadsKeysApart) {
    if (c.thread % 32 == 0) tma_store_wait_read<1>();
    c.warp_arrive(c.shared.v_empty());
  }
}

// A gradient's 64 rows to where K's or V's were, and from there to global memory.
template <int kColumns, typename Consumer>
ATT_FN void store(Consumer& c, const float (&gradient)[kColumns / 2], float scale, unsigned matrix,
                  const TensorMap* map) {
  store_key_rows<kColumns>(gradient, scale, {matrix, kKvSlabBytes, map, c.k0, c.h_kv, c.b},
                           c.warpgroup * kKeys + c.thread / 32 * 16, c.thread);
}

}  // namespace sm90
}  // namespace att
