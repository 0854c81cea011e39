// The two warpgroups of a CTA that multiplies 64 rows by pairs of tiles of 64 keys whose first
// columns are the values: what lies where, what they tell each other, and their halves of O.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/fence.cuh"
#include "templates/ptx/named_barrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/wgmma.cuh"
#include "templates/tile/item_rows.cuh"
#include "templates/tile/pieces.cuh"

namespace att {

constexpr int kDimQk = spec::kHeadDimQk;
constexpr int kDimV = spec::kHeadDimV;
constexpr int kKeys = plan::kStepKeys;
constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kGroupColumns = kDimV / 2;
static_assert(kRows == 64 && kKeys == 64 && kThreads == 2 * kGroupThreads && plan::kStages == 2);

// Matrices lie in slabs of 64 columns under the 128-byte swizzle.
constexpr int kSlabBytes = 64 * 128;
constexpr int kSlabs = kDimQk / 64;
constexpr int kHalfSlabs = kGroupColumns / 64;
constexpr int kTileBytes = kSlabs * kSlabBytes;

// Shared memory: Q; two tiles of keys; P of the first one, and of the second one, which takes the
// place of its keys' last columns if these are no values; both warpgroups' references; a barrier a
// slab; a flag; the units of a mask. The results take the place of Q and keys.
constexpr bool kPInKeys = kDimQk > kDimV;
constexpr int kKOffset = kTileBytes;
constexpr int kFirstPOffset = kKOffset + 2 * kTileBytes;
constexpr int kSecondPOffset = kPInKeys ? kFirstPOffset - kSlabBytes : kFirstPOffset + kSlabBytes;
constexpr int kFirstReferenceOffset = kFirstPOffset + (kPInKeys ? 1 : 2) * kSlabBytes;
constexpr int kSecondReferenceOffset = kFirstReferenceOffset + kRows * 4;
constexpr int kBarrierOffset = kSecondReferenceOffset + kRows * 4;
constexpr int kFlagOffset = kBarrierOffset + 2 * kSlabs * 8;
constexpr int kTableOffset = kFlagOffset + 16;
constexpr int kPartStride = kDimV + 4;  // floats; rows fall into different banks
constexpr int kMostParts = plan::kPieces;
using ItemWeights = Weights<kMostParts, kRows>;
constexpr int kWeightsOffset = kRows * (kPartStride + 2) * 4;
static_assert(kWeightsOffset + static_cast<int>(sizeof(ItemWeights)) <= kFirstPOffset);
static_assert(kTableOffset + (spec::kHasMask ? static_cast<int>(sizeof(SmallTable)) : 0) <=
              plan::kSharedBytes);

// Named barriers between the warpgroups: one arrives, the other waits. What was read before one is
// free for whoever waited.
enum Handover : int {
  kFirstReference = 1,   // the first: the rows' references after its tile
  kSecondReference = 2,  // the second: after both
  kFirstP = 3,           // the first: P of its tile, by the references after both
  kSecondP = 4           // the second
};
ATT_FN void hand_over(Handover what) { named_barrier_arrive(what, kThreads); }
ATT_FN void wait_for(Handover what) { named_barrier_sync(what, kThreads); }
ATT_FN void sync_group(int group) { named_barrier_sync(5 + group, kGroupThreads); }

// Row of a warpgroup's accumulators that a lane has; the other one is 8 behind it.
ATT_FN int lane_row() { return thread_index() % kGroupThreads / 32 * 16 + lane_index() / 4; }

// A number for each of a lane's rows, by which the warpgroups tell each other of theirs; the four
// lanes of a row have the same.
ATT_FN void leave_of_rows(unsigned shared, const float (&values)[2]) {
  if (lane_index() % 4 != 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    store_shared_4(shared + 4 * (lane_row() + 8 * half),
                   __builtin_bit_cast(unsigned, values[half]));
  }
}
ATT_FN void take_of_rows(unsigned shared, float (&values)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    values[half] = __builtin_bit_cast(float, load_shared_4(shared + 4 * (lane_row() + 8 * half)));
  }
}

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

// Which tile of a pair.
ATT_FN unsigned tile_of(unsigned shared, int which) {
  return shared + kKOffset + which * kTileBytes;
}

// The first columns of a tile as the values of a warpgroup.
ATT_FN unsigned values_of(unsigned shared, int which, int group) {
  return wgmma_descriptor(tile_of(shared, which) + group * kHalfSlabs * kSlabBytes, kSlabBytes);
}

// Starts the product of P in registers, or in shared memory at `p`, with the warpgroup's columns.
ATT_FN void add_values(HalfOfO& half, const unsigned (&weights)[kKeys / 16][4], unsigned values) {
  plan::multiply_pv<128, 4 * 128>(half.o, weights, values);
  wgmma_commit();
}
ATT_FN void add_values_shared(HalfOfO& half, unsigned p, unsigned values) {
  plan::multiply_pv_shared<128, 4 * 128, 2, kSlabBytes / 16>(
      half.o, wgmma_descriptor(p, kSlabBytes), values);
  wgmma_commit();
}

}  // namespace att
