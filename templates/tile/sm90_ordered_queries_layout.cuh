// What lies where in the shared memory of the sm90a family's ordered queries' kernel, and its tile
// sizes.
#pragma once

#include "templates/tile/sm90_cta.cuh"
#include "templates/tile/sm90_ordered_listed.cuh"

namespace att {
namespace sm90 {

constexpr int kQueryWarpgroups = plan::kQueryWarpgroups;  // consumers, 64 queries each
constexpr int kQueryThreads = (kQueryWarpgroups + 1) * kWarpgroupThreads;
constexpr int kRows = 64 * kQueryWarpgroups;  // queries of a CTA
static_assert(plan::kQueryProducerRegisters + kQueryWarpgroups * plan::kQueryConsumerRegisters <=
                  (kQueryWarpgroups + 1) * (65536 / kQueryThreads / 8 * 8),
              "the consumers would wait for registers that the CTA does not have");
constexpr int kStepKeys = plan::kStepKeys;  // keys of a stage

// A 16-bit matrix of `rows` rows, in slabs.
ATT_FN constexpr int slab_bytes(int rows) { return rows * kRowBytes; }
ATT_FN constexpr int qk_bytes(int rows) { return kQkSlabs * slab_bytes(rows); }
ATT_FN constexpr int v_bytes(int rows) { return kVSlabs * slab_bytes(rows); }

// A tile of V is needed for a shorter time than one of K.
struct QueriesMemory {
  static constexpr int kKStages = plan::kStepStages, kVStages = plan::kStepValueStages;
  static constexpr int kDo = qk_bytes(kRows);
  static constexpr int kK = kDo + v_bytes(kRows);
  static constexpr int kV = kK + kKStages * qk_bytes(kStepKeys);
  static constexpr int kTiles = kV + kVStages * v_bytes(kStepKeys);
  static constexpr int kBarriers = kTiles + 8 * kKStages;
  static constexpr int kListed =
      kBarriers + 8 * (2 * kKStages + 2 * kVStages + 1 + (spec::kIsPacked ? 1 : 0));
  static constexpr int kBytes = kListed + (spec::kIsPacked ? kListedTileBytes : 0);

  unsigned base;
  ATT_MEMBER unsigned q() const { return base; }
  ATT_MEMBER unsigned d_o() const { return base + kDo; }
  ATT_MEMBER unsigned k(int stage) const { return base + kK + stage * qk_bytes(kStepKeys); }
  ATT_MEMBER unsigned v(int stage) const { return base + kV + stage * v_bytes(kStepKeys); }
  // TileWalk's number of the tile.
  ATT_MEMBER unsigned tile(int stage) const { return base + kTiles + 8 * stage; }
  ATT_MEMBER unsigned k_full(int stage) const { return barrier(stage); }
  ATT_MEMBER unsigned k_empty(int stage) const { return barrier(kKStages + stage); }
  ATT_MEMBER unsigned v_full(int stage) const { return barrier(2 * kKStages + stage); }
  ATT_MEMBER unsigned v_empty(int stage) const { return barrier(2 * kKStages + kVStages + stage); }
  ATT_MEMBER unsigned rows_full() const { return barrier(2 * kKStages + 2 * kVStages); }
  // Rows of K and V have come, some of which are another packed sequence's.
  ATT_MEMBER unsigned raw() const { return barrier(2 * kKStages + 2 * kVStages + 1); }
  // Of packed sequences what the CTA has.
  ATT_MEMBER unsigned listed() const { return base + kListed; }

 private:
  ATT_MEMBER unsigned barrier(int index) const { return base + kBarriers + 8 * index; }
};
static_assert(QueriesMemory::kBytes <= plan::kQueriesBytes, "the host asks for less than is taken");

}  // namespace sm90
}  // namespace att
