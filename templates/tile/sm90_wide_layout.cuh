// What lies where in the shared memory of the sm90a family's backward kernel of wide heads, and its
// tile sizes.
#pragma once

#include "templates/tile/sm90_backward_parts.cuh"
#include "templates/tile/sm90_backward_walk.cuh"
#include "templates/tile/sm90_cta.cuh"

namespace att {
namespace sm90 {

constexpr int kTileQ = plan::kTileQ;        // queries of a stage
constexpr int kTileKv = plan::kTileKv;      // keys of a CTA
constexpr int kScoreBuffers = 2;            // of P, and of dS
constexpr int kDqColumns = kSlabColumns;    // of a part of dQ that is made at a time
constexpr int kDqParts = kQkSlabs;          // of a tile
constexpr int kDqNumbers = kDqColumns / 2;  // of a thread
// The warpgroup of dV makes the first one, that of dK the last, and the one between them goes by
// turns.
static_assert(kDqParts == 3);
static_assert(spec::kHeadDimQk % kSlabColumns == 0 && spec::kHeadDimV % kSlabColumns == 0);
static_assert(kTileKv % 16 == 0 && !plan::kSplitReferences && !plan::kSplitDeltas);

ATT_FN constexpr int slab_bytes(int rows) { return rows * kRowBytes; }
constexpr int kQSlabBytes = slab_bytes(kTileQ);
constexpr int kKvSlabBytes = slab_bytes(kTileKv);
constexpr int kReferenceBytes = kTileQ * kRowReferenceBytes;
constexpr int kDeltaBytes = kTileQ * kRowDeltaBytes;
constexpr int kScoreBytes = slabs(kTileKv) * kQSlabBytes;  // P or dS, [queries, keys]

struct WideMemory {
  static constexpr int kV = kQkSlabs * kKvSlabBytes;
  static constexpr int kQ = kV + kVSlabs * kKvSlabBytes;
  static constexpr int kDo = kQ + kStages * kQkSlabs * kQSlabBytes;
  static constexpr int kP = kDo + kStages * kVSlabs * kQSlabBytes;
  static constexpr int kDs = kP + kScoreBuffers * kScoreBytes;
  static constexpr int kReferences = kDs + kScoreBuffers * kScoreBytes;
  static constexpr int kDeltas = kReferences + kStages * kReferenceBytes;
  static constexpr int kTiles = kDeltas + kStages * kDeltaBytes;
  static constexpr int kBarriers = kTiles + 2 * kStages * 16;
  static constexpr int kBytes = kBarriers + 8 * (4 * kStages + 4 * kScoreBuffers + 1);

  unsigned base;
  ATT_MEMBER unsigned k() const { return base; }
  ATT_MEMBER unsigned v() const { return base + kV; }
  ATT_MEMBER unsigned q(int stage) const { return base + kQ + stage * (kQkSlabs * kQSlabBytes); }
  ATT_MEMBER unsigned d_o(int stage) const { return base + kDo + stage * (kVSlabs * kQSlabBytes); }
  ATT_MEMBER unsigned p(unsigned n) const { return base + kP + (n & 1) * kScoreBytes; }
  ATT_MEMBER unsigned d_s(unsigned n) const { return base + kDs + (n & 1) * kScoreBytes; }
  ATT_MEMBER unsigned references(int stage) const {
    return base + kReferences + stage * kReferenceBytes;
  }
  ATT_MEMBER unsigned deltas(int stage) const { return base + kDeltas + stage * kDeltaBytes; }
  // What is said of a stage's tile, once with Q and once with dO, which come and go by themselves.
  ATT_MEMBER unsigned q_tile(int stage) const { return base + kTiles + stage * 16; }
  ATT_MEMBER unsigned do_tile(int stage) const { return q_tile(kStages + stage); }
  ATT_MEMBER unsigned q_full(int stage) const { return barrier(stage); }
  ATT_MEMBER unsigned q_empty(int stage) const { return barrier(kStages + stage); }
  ATT_MEMBER unsigned do_full(int stage) const { return barrier(2 * kStages + stage); }
  ATT_MEMBER unsigned do_empty(int stage) const { return barrier(3 * kStages + stage); }
  ATT_MEMBER unsigned p_full(unsigned n) const { return barrier(4 * kStages + (n & 1)); }
  ATT_MEMBER unsigned p_empty(unsigned n) const { return barrier(4 * kStages + 2 + (n & 1)); }
  ATT_MEMBER unsigned ds_full(unsigned n) const { return barrier(4 * kStages + 4 + (n & 1)); }
  ATT_MEMBER unsigned ds_empty(unsigned n) const { return barrier(4 * kStages + 6 + (n & 1)); }
  ATT_MEMBER unsigned kv_full() const { return barrier(4 * kStages + 8); }

 private:
  ATT_MEMBER unsigned barrier(int index) const { return base + kBarriers + 8 * index; }
};
static_assert(WideMemory::kBytes <= plan::kSharedBytes, "the host asks for less than is taken");

// Of P, dS and their barriers: the phase of tile n's turn.
ATT_FN unsigned turn_parity(unsigned n) { return n >> 1 & 1; }

}  // namespace sm90
}  // namespace att
