// What lies where in the shared memory of the sm90a family's forward kernel, and its tile sizes.
#pragma once

#include "templates/sequence.h"
#include "templates/tile/sm90_cta.cuh"

namespace att {
namespace sm90 {

constexpr bool kBf16 = spec::kDType == DType::bf16;
constexpr int kRows = 64;               // query rows of a warpgroup
constexpr int kTileKv = plan::kTileKv;  // keys of a stage
// A tile's scores are computed in one piece or two; the higher keys are piece 1.
constexpr int kPieces = plan::kScoreBuffers;
constexpr int kPieceKeys = kTileKv / kPieces;
// Whether the first products of the next work item run under the end of this one: it takes two Qs.
constexpr bool kQAhead = plan::kQInRegisters;
constexpr int kCluster = plan::kCluster;
// A work item is dealt to the warpgroups of its CTAs: 64 queries each of a head, or with
// kHeadsAbreast a head, two or four each, of one K/V head, all with the same queries.
constexpr int kSlices = kCluster * kWarpgroups;
constexpr int kAllSlices = (1 << kSlices) - 1;  // a bit each
constexpr bool kHeadsAbreast = plan::kItemHeads > 1;
constexpr int kItemQueries = kSlices * kRows / plan::kItemHeads;
constexpr int kHeadRows = kHeadsAbreast ? kItemQueries : kRows;  // of a head in a warpgroup
constexpr int kHeadsOfSlice = kRows / kHeadRows;
static_assert(kHeadRows % 16 == 0 && kRows % kHeadRows == 0, "a warp has rows of one head");

constexpr int kQkSteps = kColumnsQk / 16;  // of wgmma's k
constexpr int kPvSteps = kPieceKeys / 16;
static_assert(spec::kHeadDimQk % 8 == 0 && spec::kHeadDimV % 8 == 0 && kPieceKeys % 16 == 0);

constexpr int kQSlabBytes = kRows * kRowBytes;     // of one warpgroup's Q or O
constexpr int kKvSlabBytes = kTileKv * kRowBytes;  // of one stage's K or V
constexpr int kQBytes = kQkSlabs * kQSlabBytes;
constexpr int kOBytes = kVSlabs * kQSlabBytes;
constexpr int kKBytes = kQkSlabs * kKvSlabBytes;
constexpr int kVBytes = kVSlabs * kKvSlabBytes;

// Work items in flight between scheduler and consumers; a power of two.
constexpr int kItemSlots = 4;

// O is staged for TMA, so many slabs at a time, in a buffer of its own, or where Q was: with
// kStagesInQ the next Q waits for the store. Without TMA it is stored from registers.
constexpr bool kStagesInQ = plan::kStagesInQ;
constexpr int kStagedSlabs = kStagesInQ ? kVSlabs : plan::kOutputSlabs;
static_assert(!kStagesInQ || (kQAhead && kOBytes <= kQBytes));
static_assert(!plan::kTmaStore || kStagedSlabs > 0);
constexpr int kQOffset = 0;
constexpr int kOOffset = kStagesInQ ? kQOffset : kWarpgroups * kQBytes;
constexpr int kOBufferBytes = plan::kOutputSlabs * kQSlabBytes;  // of one warpgroup
constexpr int kOStride = kStagesInQ ? kQBytes : kOBufferBytes;   // from warpgroup to warpgroup
// P of a warpgroup's piece, where the PV product reads it from shared memory.
constexpr int kPBytes = plan::kPInShared ? slabs(kPieceKeys) * kQSlabBytes : 0;
constexpr int kPOffset = kWarpgroups * (kQBytes + kOBufferBytes);
constexpr int kKOffset = kPOffset + kWarpgroups * kPBytes;
constexpr int kVOffset = kKOffset + kStages * kKBytes;
constexpr int kBarrierOffset = kVOffset + kStages * kVBytes;

// 8-byte barriers, then the item slots, then 8 bytes a stage.
constexpr int kBarriers =
    (spec::kIsPacked ? 5 : 4) * kStages + 2 * kWarpgroups + 2 * kItemSlots + 1;
constexpr int kItemOffset = (kBarrierOffset + 8 * kBarriers + 15) / 16 * 16;
constexpr int kItemSlotBytes = 64;
constexpr int kTileOffset = kItemOffset + kItemSlotBytes * kItemSlots;
constexpr int kSharedBytes = kTileOffset + 8 * kStages;
static_assert(kSharedBytes <= plan::kSharedBytes, "the host asks for less than the layout takes");

// Byte addresses of it all.
struct SharedMemory {
  unsigned base;
  ATT_MEMBER unsigned q(int warpgroup) const { return base + kQOffset + warpgroup * kQBytes; }
  ATT_MEMBER unsigned o(int warpgroup) const { return base + kOOffset + warpgroup * kOStride; }
  ATT_MEMBER unsigned p(int warpgroup) const { return base + kPOffset + warpgroup * kPBytes; }
  ATT_MEMBER unsigned k(int stage) const { return base + kKOffset + stage * kKBytes; }
  ATT_MEMBER unsigned v(int stage) const { return base + kVOffset + stage * kVBytes; }
  ATT_MEMBER unsigned k_full(int stage) const { return barrier(stage); }
  ATT_MEMBER unsigned v_full(int stage) const { return barrier(kStages + stage); }
  ATT_MEMBER unsigned k_empty(int stage) const { return barrier(2 * kStages + stage); }
  ATT_MEMBER unsigned v_empty(int stage) const { return barrier(3 * kStages + stage); }
  ATT_MEMBER unsigned q_full(int warpgroup) const { return barrier(4 * kStages + warpgroup); }
  ATT_MEMBER unsigned q_empty(int warpgroup) const {
    return barrier(4 * kStages + kWarpgroups + warpgroup);
  }
  ATT_MEMBER unsigned item_full(int slot) const {
    return barrier(4 * kStages + 2 * kWarpgroups + slot);
  }
  ATT_MEMBER unsigned item_empty(int slot) const {
    return barrier(4 * kStages + 2 * kWarpgroups + kItemSlots + slot);
  }
  ATT_MEMBER unsigned item_wanted() const {
    return barrier(4 * kStages + 2 * kWarpgroups + 2 * kItemSlots);
  }
  // Of packed sequences: V with rows of the next sequence has come.
  ATT_MEMBER unsigned v_raw(int stage) const {
    return barrier(4 * kStages + 2 * kWarpgroups + 2 * kItemSlots + 1 + stage);
  }
  ATT_MEMBER unsigned item(int slot) const { return base + kItemOffset + kItemSlotBytes * slot; }
  ATT_MEMBER unsigned tile(int stage) const { return base + kTileOffset + 8 * stage; }

 private:
  ATT_MEMBER unsigned barrier(int index) const { return base + kBarrierOffset + 8 * index; }
};

// Named barriers: a warpgroup's own, and, with kPingPong, the one at which it waits for its turn;
// one of all warpgroups; one of the scheduler and what takes a sample.
ATT_FN int warpgroup_barrier(int warpgroup) { return 1 + warpgroup; }
ATT_FN int turn_barrier(int warpgroup) { return 1 + kWarpgroups + warpgroup; }
constexpr int kConsumersBarrier = 1 + 2 * kWarpgroups;
constexpr int kSampleBarrier = 2 + 2 * kWarpgroups;

// Where a lane's row of stmatrix_x4 goes for its warp's 16 rows of a warpgroup's matrix, columns
// 16 * step to 16 * step + 15: an A operand's fragment.
ATT_FN unsigned fragment_address(unsigned matrix, int step) {
  const int lane = thread_index() % 32;
  const int row = thread_index() % kWarpgroupThreads / 32 * 16 + lane % 16;
  return swizzled(matrix + step / 4 * kQSlabBytes, row, step % 4 * 2 + lane / 16);
}

}  // namespace sm90
}  // namespace att
