// Tiles of keys that come and go by slabs of 64 columns, each as soon as no product reads the one
// before it, and their products with Q.
//
// Who brings a slab is who reads it last. The first tile of a pair is read by the first warpgroup
// for Q K^T, and for P V its half of the columns by each. So the first one brings its own half, and
// those that are no values, when its own product with P is done, without asking the other; the
// second one brings the other half. With the second tile it is the other way round, but for the
// last slab if P has taken its place: the first one reads P.
//
// Copies are cp.async, so that keys may lie in pages of any size, or, where tiles lie in a row or
// in a page (kByMap), the tensor unit's, which leaves the warps to their products. A slab's
// complete its barrier. The tensor unit also brings what lies behind a sequence's last keys:
// whoever multiplies that tile by Q puts zeros there.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/fence.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/sequence.h"
#include "templates/tile/page_rows.cuh"
#include "templates/tile/sm90_mla.cuh"

namespace att {

// The i-th slab of a pair's first or second tile to be brought, which is multiplied i-th, too.
ATT_FN constexpr int slab_at(int which, int i) {
  constexpr int kRest = kSlabs - 2 * kHalfSlabs;
  if (which == 0) return i < kHalfSlabs ? i : i < kHalfSlabs + kRest ? i + kHalfSlabs : i - kRest;
  constexpr int kLast = kPInKeys ? 1 : 0;
  constexpr int kEarly = kHalfSlabs + kRest - kLast;
  return i < kEarly ? i + kHalfSlabs : i < kSlabs - kLast ? i - kEarly : kSlabs - 1;
}
// As many of them come early, brought by the warpgroup that multiplies them by Q.
ATT_FN constexpr int early_slabs(int which) {
  return kSlabs - kHalfSlabs - (which == 1 && kPInKeys ? 1 : 0);
}

// Complete when the slab is there, once a pair.
ATT_FN unsigned barrier_of(unsigned shared, int which, int slab) {
  return shared + kBarrierOffset + (which * kSlabs + slab) * 8;
}

// One thread calls it.
template <bool kByMap>
ATT_FN void init_slab_barriers(unsigned shared) {
#pragma unroll 1
  for (int i = 0; i < 2 * kSlabs; ++i) {
    mbarrier_init(barrier_of(shared, 0, i), kByMap ? 1 : kGroupThreads);
  }
  mbarrier_init_fence();
}

// A warpgroup's copies.
template <bool kByMap>
struct SlabCopies;

// By the tensor unit, each warp some of the slabs.
template <>
struct SlabCopies<true> {
  const ListKernelParams& params;
  const TensorMap* map;
  const Item& item;
  unsigned shared;
  // Where the two tiles of the next pair lie, looked up some time before they are copied: an even
  // lane has the first, an odd one the second.
  PagedKey ahead;

  ATT_MEMBER void look_up(int first_k0, int second_k0) {
    if constexpr (spec::kIsPaged) {
      const int k0 = lane_index() % 2 == 0 ? first_k0 : second_k0;
      ahead =
          PagedSequence{page_table_of(params), item.b, item.h_kv, item.sequence.kv_len}.look_up(k0);
    }
  }

  // Starts the copies of the kFrom-th to kTo-th slab of a tile that begins with key k0. Outside of
  // the cache where there are no keys: they become zeros.
  template <int kWhich, int kFrom, int kTo>
  ATT_MEMBER void load(int k0) const {
    int row = item.sequence.kv_first + k0;
    int slice = k0 < item.sequence.kv_len ? item.sequence.slice : -1;
    if constexpr (spec::kIsPaged) {
      const PagedKey key = checked_key(page_table_of(params), ahead);
      row = shuffle_from(key.row, kWhich);
      slice = shuffle_from(key.page, kWhich);
    }
    if (lane_index() != 0) return;
#pragma unroll 1
    for (int i = kFrom + warp_index() % 4; i < kTo; i += 4) {
      const int slab = slab_at(kWhich, i);
      const unsigned barrier = barrier_of(shared, kWhich, slab);
      mbarrier_arrive_expect(barrier, kSlabBytes);
      tma_load(tile_of(shared, kWhich) + slab * kSlabBytes, map, barrier, slab * 64, row, item.h_kv,
               slice, CacheHint::kEvictFirst);
    }
  }
};

// By cp.async: eight threads bring a row's 128 bytes of a slab, 16 rows at a time.
template <>
struct SlabCopies<false> {
  static constexpr int kPasses = 4;

  const ListKernelParams& params;
  const TensorMap* map;  // not used
  const Item& item;
  unsigned shared;
  // Where rows of the pair that comes next lie, looked up some time before they are copied: lane
  // 16t + i has row i of the 16 that its warp copies of tile t.
  PagedKey ahead;

  ATT_MEMBER PagedSequence pages() const {
    return {page_table_of(params), item.b, item.h_kv, item.sequence.kv_len};
  }

  // Of tiles whose first keys are these.
  ATT_MEMBER void look_up(int first_k0, int second_k0) {
    if constexpr (spec::kIsPaged) {
      const int lane = lane_index();
      const int row = lane % 16 / 4 * 16 + thread_index() % kGroupThreads / 32 * 4 + lane % 4;
      ahead = pages().look_up((lane < 16 ? first_k0 : second_k0) + row);
    }
  }

  // Starts the copies of the kFrom-th to kTo-th slab of a tile that begins with key k0. Keys that
  // the sequence does not have become zeros.
  template <int kWhich, int kFrom, int kTo>
  ATT_MEMBER void load(int k0) const {
    const int row = thread_index() % kGroupThreads / 8;
    const int lane = thread_index() % 8;
    const char* from[kPasses];
    bool exists[kPasses];
    if constexpr (spec::kIsPaged) {
      const long long before =
          bytes_before(checked_key(page_table_of(params), ahead), params.k_stride, item.h_kv);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const long long at = shuffle_long_from(before, 16 * kWhich + 4 * pass + lane_index() / 8);
        exists[pass] = at != kNowhere;
        from[pass] = static_cast<const char*>(params.k) + (exists[pass] ? at : 0) + lane * 16;
      }
    } else {
      const long long stride = params.k_stride.seq * 2;
      const char* const first = static_cast<const char*>(params.k) +
                                2 * key_offset(item.sequence, params.k_stride, item.h_kv, k0) +
                                lane * 16;
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        exists[pass] = row + 16 * pass < item.sequence.kv_len - k0;
        from[pass] = first + (row + 16 * pass) * stride;
      }
    }
    const unsigned to = tile_of(shared, kWhich) + SlabRows<kKeys>::offset(row, lane);
#pragma unroll
    for (int i = kFrom; i < kTo; ++i) {
      const int slab = slab_at(kWhich, i);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        cp_async_16_or_zero(to + slab * kSlabBytes + pass * 16 * 128, from[pass] + slab * 128,
                            exists[pass]);
      }
      cp_async_arrive(barrier_of(shared, kWhich, slab));
    }
  }
};

// The warpgroup that has multiplied a tile by Q calls it: values of keys from the `valid`-th on
// become zeros.
ATT_FN void clear_values(unsigned shared, int which, int valid) {
  const unsigned tile = tile_of(shared, which);
  constexpr int kUnits = kDimV / 8;
#pragma unroll 1
  for (int i = valid * kUnits + thread_index() % kGroupThreads; i < kKeys * kUnits;
       i += kGroupThreads) {
    const int row = i / kUnits, unit = i % kUnits;
    const unsigned zeros[4] = {};
    store_shared_16(tile + unit / 8 * kSlabBytes + row * 128 + unit % 8 * 16, zeros);
  }
  fence_shared_for_async();
  sync_group(which);
}

// S = Q K^T of a pair's first or second tile, slab by slab as these come. `parity`: of the pair's
// number.
template <bool kByMap, int kWhich>
ATT_FN void multiply_keys(float (&s)[kKeys / 2], unsigned shared, unsigned parity) {
  const unsigned q = wgmma_descriptor(shared, kSlabBytes);
  const unsigned k = wgmma_descriptor(tile_of(shared, kWhich), kSlabBytes);
#pragma unroll
  for (int i = 0; i < kSlabs; ++i) {
    const int slab = slab_at(kWhich, i);
    mbarrier_wait(barrier_of(shared, kWhich, slab), parity);
    if constexpr (!kByMap) fence_shared_for_async();  // what was copied is for wgmma to read
    const int at = slab * (kSlabBytes / 16);
    wgmma_fence();
    if (i == 0) {
      plan::multiply_qk<2, 0, 2, 0>(s, q + at, k + at);
    } else {
      plan::add_qk<2, 0, 2, 0>(s, q + at, k + at);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(s);
}

}  // namespace att
