// What lies where in the shared memory of the sm90a family's ordered keys' kernel, and its tile
// sizes.
#pragma once

#include "templates/tile/sm90_backward_parts.cuh"
#include "templates/tile/sm90_backward_walk.cuh"
#include "templates/tile/sm90_ordered_listed.cuh"
#include "templates/tile/sm90_ordered_queries_layout.cuh"

namespace att {
namespace sm90 {

static_assert(kWarpgroups == 2 && spec::kHeadDimQk % 8 == 0 && spec::kHeadDimV % 8 == 0);

constexpr int kTileQ = plan::kTileQ;  // queries of a stage
constexpr int kReferenceBytes = kTileQ * kRowReferenceBytes;
constexpr int kDeltaBytes = kTileQ * kRowDeltaBytes;
constexpr int kTileInfoBytes = 16;

struct KeysMemory {
  static constexpr int kV = qk_bytes(kKeys);
  static constexpr int kQ = kV + v_bytes(kKeys);
  static constexpr int kDo = kQ + kStages * qk_bytes(kTileQ);
  // Slopes, fp32: [kTileQ / 8, threads, 4].
  static constexpr int kSlopes = kDo + kStages * v_bytes(kTileQ);
  static constexpr int kReferences = kSlopes + kKeys * kTileQ * 4;
  static constexpr int kDeltas = kReferences + kStages * kReferenceBytes;
  static constexpr int kHalves = kDeltas + kStages * kDeltaBytes;
  static constexpr int kTiles = kHalves + 128;
  static constexpr int kBarriers = kTiles + 2 * kStages * kTileInfoBytes;
  static constexpr int kListed = kBarriers + 8 * (4 * kStages + 3 + (spec::kIsPacked ? 1 : 0));
  static constexpr int kBytes = kListed + (spec::kIsPacked ? kListedTileBytes : 0);

  unsigned base;
  ATT_MEMBER unsigned k() const { return base; }
  ATT_MEMBER unsigned v() const { return base + kV; }
  ATT_MEMBER unsigned q(int stage) const { return base + kQ + stage * qk_bytes(kTileQ); }
  ATT_MEMBER unsigned d_o(int stage) const { return base + kDo + stage * v_bytes(kTileQ); }
  ATT_MEMBER unsigned slopes() const { return base + kSlopes; }
  ATT_MEMBER unsigned references(int stage) const {
    return base + kReferences + stage * kReferenceBytes;
  }
  ATT_MEMBER unsigned deltas(int stage) const { return base + kDeltas + stage * kDeltaBytes; }
  // store_halves()'.
  ATT_MEMBER unsigned halves() const { return base + kHalves; }
  // What is said of a stage's tile, once with Q and once with dO, which come and go by themselves.
  ATT_MEMBER unsigned q_tile(int stage) const { return base + kTiles + stage * kTileInfoBytes; }
  ATT_MEMBER unsigned do_tile(int stage) const { return q_tile(kStages + stage); }
  ATT_MEMBER unsigned q_full(int stage) const { return barrier(stage); }
  ATT_MEMBER unsigned q_empty(int stage) const { return barrier(kStages + stage); }
  ATT_MEMBER unsigned do_full(int stage) const { return barrier(2 * kStages + stage); }
  ATT_MEMBER unsigned do_empty(int stage) const { return barrier(3 * kStages + stage); }
  ATT_MEMBER unsigned kv_full() const { return barrier(4 * kStages); }
  ATT_MEMBER unsigned slopes_full() const { return barrier(4 * kStages + 1); }
  ATT_MEMBER unsigned slopes_empty() const { return barrier(4 * kStages + 2); }
  // Rows of Q and dO have come, some of which are another packed sequence's.
  ATT_MEMBER unsigned raw() const { return barrier(4 * kStages + 3); }
  // Of packed sequences what the CTA has.
  ATT_MEMBER unsigned listed() const { return base + kListed; }

 private:
  ATT_MEMBER unsigned barrier(int index) const { return base + kBarriers + 8 * index; }
};
static_assert(KeysMemory::kBytes <= plan::kSharedBytes, "the host asks for less than is taken");

}  // namespace sm90
}  // namespace att
