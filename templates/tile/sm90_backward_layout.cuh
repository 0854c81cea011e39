// What lies where in the shared memory of the sm90a family's backward kernel, and its tile sizes.
#pragma once

#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/dropped_elements.cuh"
#include "templates/tile/sm90_backward_parts.cuh"
#include "templates/tile/sm90_backward_walk.cuh"
#include "templates/tile/sm90_cta.cuh"
#include "templates/tile/walk_parts.cuh"

namespace att {
namespace sm90 {

constexpr int kConsumerThreads = kWarpgroups * kWarpgroupThreads;
constexpr int kTileKv = kWarpgroups * kKeys;  // keys of a work item, kKeys of a warpgroup
constexpr int kTileQ = plan::kTileQ;          // queries of a stage of Q and dO
static_assert(spec::kHeadDimQk % 8 == 0 && spec::kHeadDimV % 8 == 0 && kTileQ % 16 == 0);

constexpr int kKvSlabBytes = kTileKv * kRowBytes;
constexpr int kQSlabBytes = kTileQ * kRowBytes;
constexpr int kKBytes = kQkSlabs * kKvSlabBytes;
constexpr int kVBytes = kVSlabs * kKvSlabBytes;
constexpr int kQBytes = kQkSlabs * kQSlabBytes;
constexpr int kDoBytes = kVSlabs * kQSlabBytes;
// dS as [queries, keys], a slab a warpgroup's keys, for dQ: where another kernel makes it, nowhere.
constexpr int kDsBuffers = plan::kSumColumns > 0 ? 2 : 0;
// Whether CTAs add to dQ's sums in the order of their key tiles.
constexpr bool kTakesTurns = kDsBuffers > 0 && plan::kOrderedSums;
constexpr int kDsBytes = kWarpgroups * kQSlabBytes;
// Whether a CTA takes one tile of keys after the other, or has a single one.
constexpr bool kTakesItems = kDsBuffers > 0 && plan::kTakesItems;
// Whether a warp of its own finds the items and loads their keys, another one their queries; dV
// leaves from a place of its own. All heads have sums then.
constexpr bool kLoadsKeysApart = kTakesItems && (spec::kIsPacked || plan::kAllHaveSums);
// Whether the launch that brings dQ's sums to rows starts when all CTAs of the main one run, and
// takes heads as they are done: processors that have no key tile left do so meanwhile. It waits for
// nobody who is not running.
constexpr bool kStartsQueriesEarly = kDsBuffers > 0 && kSumsInTurn && !kTakesTurns && !kCutsWalks;
// Else dV leaves from where V was, and dK from where dS was, so that K may come meanwhile.
static_assert(!kTakesItems || (kTileQ % kKeys == 0 && kQkSlabs <= kDsBuffers));
// Whether a warpgroup skips an item's first tile of queries where that is dead for its keys: the
// second 64 keys under a causal mask. Beside a score that is a line along the keys ptxas orders the
// loop otherwise then, so that only items off the counter do: ALiBi of 1024 keys takes 2.5 % less
// there, of 8192 keys with a CTA a key tile it took 1.6 % more.
constexpr bool kSkipsDeadFirst = spec::kHasMask && (kTileKv > kTileQ) && kGradLoads == 0 &&
                                 (kTakesItems || !(spec::kHasScore && kScoreIsLine));
constexpr int kReferenceBytes = kTileQ * kRowReferenceBytes;
constexpr int kDeltaBytes = kTileQ * kRowDeltaBytes;

// dQ of a tile, 64 rows: each warpgroup makes its share of the columns, which lies in one slab or
// is made of whole ones. Of 128 rows each makes all columns of half of them.
constexpr int kDqShares = kWarpgroups;
constexpr bool kSharesDqRows = kDsBuffers > 0 && kTileQ == kDqShares * 64;
// Whether dS may be made of P as rounded for dV. Not of fp16, whose small P are no normal numbers.
constexpr bool kMayRound = spec::kIsRelaxed && spec::kDType == DType::bf16;
// Tiles of 64 queries of wide heads may make dQ where S was: sm90_backward_tight_walk.cuh. Not of
// other head dims, where ptxas spills a dozen numbers; beside a masked score that is a line along
// the keys it orders the loop otherwise (ALiBi, causal, 2 to 5 % slower), and in turns it is 1 to 2
// % slower. Off the counter, or where P is kept whole, a warpgroup waits too long for the other
// one's dS under masks that are worked out at length, in most tiles (NATTEN, packed documents), and
// head dim 96 with P whole is level to 3 % slower.
constexpr bool kAddsMaskedLine = spec::kHasScore && spec::kHasMask && kScoreIsLine;
constexpr bool kIsPlain = !spec::kHasScore && plan::kHasShortMask && !spec::kIsPacked &&
                          (kMayRound || (spec::kHeadDimQk == 128 && spec::kHeadDimV == 128));
constexpr bool kMakesDqOfS = spec::kDType == DType::bf16 &&
                             ((kMayRound && !kTakesItems) || kIsPlain) && kDsBuffers > 0 &&
                             kTileQ == 64 && kQkSlabs == 2 && kVSlabs == 2 &&
                             spec::kHeadDimQk % 16 == 0 && spec::kHeadDimV % 16 == 0 &&
                             (plan::kSplitReferences && plan::kSplitDeltas) && kGradLoads == 0 &&
                             (!spec::kHasScore || kScoreGradIsOne) && !kAddsMaskedLine &&
                             !spec::kHasDropout && !kTakesTurns;
constexpr bool kWalksTightly = kSharesDqRows || kMakesDqOfS;
// Where dS may not be made of P as rounded, what rounding took is kept beside it, not P itself.
constexpr bool kKeepsRests = kMakesDqOfS && !kMayRound;
// Off the counter dO is given back as soon as dV is done.
constexpr bool kFreesDoEarly = kMakesDqOfS && kTakesItems;
// dS goes to shared memory behind dK's products, which leave stores more room than dQ's do. Off the
// counter the other warpgroup wants a whole P's dS sooner.
constexpr bool kIssuesDkFirst = kMakesDqOfS && (kMayRound || !kTakesItems);
constexpr int kDqColumns = kQkSlabs * kSlabColumns / (kSharesDqRows ? 1 : kDqShares);
constexpr int kDqRows = kSharesDqRows ? kTileQ / kDqShares : kTileQ;
// Where a share of a tile begins, of whole rows' columns and of all queries.
ATT_FN int first_column_of_share(int share) { return kSharesDqRows ? 0 : share * kDqColumns; }
ATT_FN int first_row_of_share(int tile, int share) {
  return tile * kTileQ + (kSharesDqRows ? share * kDqRows : 0);
}
// Of tiles that are no multiple of 64 queries it is made transposed: columns are wgmma's rows.
constexpr bool kTransposesDq = kTileQ % 64 != 0;
// Then dK is made of what lies in shared memory, too: with dS in registers while S and dP of the
// next tile are made ptxas has too few and serialises the products (C7512).
constexpr bool kDkFromShared = kTransposesDq;
constexpr int kDqNumbers = kDqColumns * kDqRows / kWarpgroupThreads;  // of a thread
static_assert(kDsBuffers == 0 ||
              ((!kTransposesDq || kDqColumns == 64) && kDqColumns % 32 == 0 &&
               (kDqColumns % kSlabColumns == 0 || kSlabColumns % kDqColumns == 0)));

// Calls `use` of those fours of a warp's numbers of a share of dQ that are of columns that a head
// has. Of others, behind those of head dims that are no whole slabs, nobody adds or reads sums.
template <typename Use>
ATT_FN void for_columns_of_head(int share, int warp, const Use& use) {
  constexpr int kFours = kDqNumbers / 4, kDim = spec::kHeadDimQk;
  if constexpr (kDim % kSlabColumns == 0) {
#pragma unroll
    for (int j = 0; j < kFours; ++j) use(j);
  } else if constexpr (kTransposesDq) {
    if (share * kDqColumns + warp * 16 >= kDim) return;
#pragma unroll
    for (int j = 0; j < kFours; ++j) use(j);
  } else if constexpr (kSharesDqRows) {
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) use(j);
  } else {
    static_assert(kDqShares == 2);
    constexpr int kOfFirst = (kDim < kDqColumns ? kDim : kDqColumns) / 8;
    constexpr int kOfLast = kDim < kDqColumns ? 0 : kDim / 8 - kDqColumns / 8;
#pragma unroll
    for (int j = 0; j < kOfLast; ++j) use(j);
    if (share > 0) return;
#pragma unroll
    for (int j = kOfLast; j < kOfFirst; ++j) use(j);
  }
}

// Whether CTAs help a head's last one to bring its dQ to rows. Without a mask their items are long
// enough without, and a pass took 0.5 to 2.5 % longer with it; so did narrow heads' tiles of 64
// queries under a causal mask, which otherwise come off the counter, and 1 to 3 % those of 128. In
// order it was not tried.
constexpr bool kHelpsInPassing = spec::kHasMask && kDsBuffers > 0 && kSumsInTurn && !kTakesItems &&
                                 !kTakesTurns && !kSharesDqRows && kDqColumns == kSlabColumns;

// Warps beside the loader that serve other heads.
constexpr int kHelpers = kDsBuffers == 0 || !kSumsInTurn ? 0
                         : kMakesRowsAhead               ? plan::kRowWarps
                                                         : 1;
// Warps but the consumers' that follow the items: the queries' loader, where it does not find them.
constexpr int kItemReaders = kLoadsKeysApart ? 1 + (kTakesTurns ? 1 : 0) : kHelpers;
// Rows of O and dO that each takes at a time, where they make others' rows.
constexpr int kRowsOfPart = kLoadsKeysApart ? 16 : 32;
constexpr int kStagedRowBytes = 2 * spec::kHeadDimV;
constexpr int kStagedPartBytes = 2 * kRowsOfPart * kStagedRowBytes;
constexpr int kStagedRowsBytes = plan::kRowWarps * kStagedPartBytes;

constexpr int kKOffset = 0;
constexpr int kVOffset = kKOffset + kKBytes;
constexpr int kQOffset = kVOffset + kVBytes;
constexpr int kDoOffset = kQOffset + kStages * kQBytes;
constexpr int kDsOffset = kDoOffset + kStages * kDoBytes;
constexpr int kStagedRowsOffset = kDsOffset + kDsBuffers * kDsBytes;
constexpr int kLeavingOffset = kStagedRowsOffset + kStagedRowsBytes;
constexpr int kReferenceOffset = kLeavingOffset + (kLoadsKeysApart ? kVBytes : 0);
constexpr int kDeltaOffset = kReferenceOffset + kStages * kReferenceBytes;
constexpr int kHalvesOffset = kDeltaOffset + kStages * kDeltaBytes;
constexpr int kTileOffset = kHalvesOffset + 128;  // TileInfo, 16 bytes a stage
constexpr int kBringsOffset = kTileOffset + 16 * kStages;
constexpr int kTurnOffset = kBringsOffset + (kDsBuffers > 0 ? 16 : 0);
// Turns that a CTA has had or will have next and has not passed on. Under a mask, whose query tiles
// come to a CTA soon after the one before, four are 1 to 3 % faster than two, without one 1 %
// slower.
constexpr int kTurns = spec::kHasMask ? 4 : 2;
constexpr int kItemOffset = kTurnOffset + (kTakesTurns ? 8 * kTurns : 0);
constexpr int kItemBytes = 16 + (spec::kIsPacked ? 16 : 0) + (kCutsWalks ? 16 : 0);
constexpr int kBarrierOffset = kItemOffset + (kTakesItems ? 2 * kItemBytes : 0);
constexpr int kRowBarrier = 4 * kStages + 2 * kDsBuffers + (kDsBuffers > 0 ? 4 : 1);
constexpr int kLoadedBarrier = kRowBarrier + plan::kRowWarps;
constexpr int kTurnBarrier = kLoadedBarrier + (kHelpsInPassing || kLoadsKeysApart ? 1 : 0);
constexpr int kRawBarrier = kTurnBarrier + (kTakesTurns ? 3 * kTurns : 0);
constexpr int kItemBarrier = kRawBarrier + (spec::kIsPacked ? 2 : 0);
constexpr int kBarriers = kItemBarrier + (kTakesItems ? 7 : 0);
// What pairs of consumer warps draw for each other: dropped_elements.cuh.
constexpr int kDrawnOffset = kBarrierOffset + 8 * kBarriers;
constexpr int kSharedBytes =
    kDrawnOffset + (plan::kScalesRows ? kConsumerThreads / 32 * kDrawnBytes : 0);
static_assert(kSharedBytes <= plan::kSharedBytes, "the host asks for less than the layout takes");

struct SharedMemory {
  unsigned base;
  ATT_MEMBER unsigned k() const { return base + kKOffset; }
  ATT_MEMBER unsigned v() const { return base + kVOffset; }
  ATT_MEMBER unsigned q(int stage) const { return base + kQOffset + stage * kQBytes; }
  ATT_MEMBER unsigned d_o(int stage) const { return base + kDoOffset + stage * kDoBytes; }
  ATT_MEMBER unsigned d_s(int buffer) const { return base + kDsOffset + buffer * kDsBytes; }
  ATT_MEMBER unsigned staged_rows(int warp) const {
    return base + kStagedRowsOffset + warp * kStagedPartBytes;
  }
  // With kLoadsKeysApart dV on its way out.
  ATT_MEMBER unsigned leaving() const { return base + kLeavingOffset; }
  ATT_MEMBER unsigned references(int stage) const {
    return base + kReferenceOffset + stage * kReferenceBytes;
  }
  ATT_MEMBER unsigned deltas(int stage) const { return base + kDeltaOffset + stage * kDeltaBytes; }
  // store_halves()'.
  ATT_MEMBER unsigned halves() const { return base + kHalvesOffset; }
  ATT_MEMBER unsigned tile(int stage) const { return base + kTileOffset + 16 * stage; }
  // By turns of the tiles.
  ATT_MEMBER unsigned drawn(int pair, int turn) const {
    return base + kDrawnOffset + (2 * pair + turn) * kDrawnBytes;
  }
  // Item n of the CTA and the one before it, and who knows them. V has come; K and V have been
  // read.
  ATT_MEMBER unsigned item_slot(unsigned n) const {
    return base + kItemOffset + kItemBytes * (n & 1);
  }
  ATT_MEMBER unsigned item_full(unsigned n) const { return barrier(kItemBarrier + (n & 1)); }
  ATT_MEMBER unsigned item_empty(unsigned n) const { return barrier(kItemBarrier + 2 + (n & 1)); }
  ATT_MEMBER unsigned v_full() const { return barrier(kItemBarrier + 4); }
  ATT_MEMBER unsigned k_empty() const { return barrier(kItemBarrier + 5); }
  ATT_MEMBER unsigned v_empty() const { return barrier(kItemBarrier + 6); }
  // Whether the CTA brings its head's dQ to rows, told by sums_told; with kHelpsInPassing 1 more
  // than the head whose dQ it brings.
  ATT_MEMBER unsigned brings() const { return base + kBringsOffset; }
  ATT_MEMBER unsigned q_full(int stage) const { return barrier(stage); }
  ATT_MEMBER unsigned do_full(int stage) const { return barrier(kStages + stage); }
  ATT_MEMBER unsigned q_empty(int stage) const { return barrier(2 * kStages + stage); }
  ATT_MEMBER unsigned do_empty(int stage) const { return barrier(3 * kStages + stage); }
  ATT_MEMBER unsigned ds_full(int buffer) const { return barrier(4 * kStages + buffer); }
  ATT_MEMBER unsigned ds_empty(int buffer) const {
    return barrier(4 * kStages + kDsBuffers + buffer);
  }
  // K and V have come, or K alone, where there is v_full.
  ATT_MEMBER unsigned kv_full() const { return barrier(4 * kStages + 2 * kDsBuffers); }
  // The head has its sums of dQ; the CTA has added to them; the consumers are told what to bring
  // to rows.
  ATT_MEMBER unsigned sums_ready() const { return barrier(4 * kStages + 2 * kDsBuffers + 1); }
  ATT_MEMBER unsigned sums_added() const { return barrier(4 * kStages + 2 * kDsBuffers + 2); }
  ATT_MEMBER unsigned sums_told() const { return barrier(4 * kStages + 2 * kDsBuffers + 3); }
  // All queries of the CTA's item are on their way.
  ATT_MEMBER unsigned all_loaded() const { return barrier(kLoadedBarrier); }
  // With kLoadsKeysApart: all but those of the item's last tile are.
  ATT_MEMBER unsigned last_tile_found() const { return barrier(kLoadedBarrier); }
  // O and dO have come of which rows are made.
  ATT_MEMBER unsigned rows_staged(int warp) const { return barrier(kRowBarrier + warp); }
  // The CTA's n-th turn at dQ's sums, and how far it is: it is the CTA's, its consumers have added,
  // the next CTA may.
  ATT_MEMBER unsigned turn(unsigned n) const { return base + kTurnOffset + 8 * (n % kTurns); }
  ATT_MEMBER unsigned turn_taken(unsigned n) const { return barrier(kTurnBarrier + n % kTurns); }
  ATT_MEMBER unsigned turn_used(unsigned n) const {
    return barrier(kTurnBarrier + kTurns + n % kTurns);
  }
  ATT_MEMBER unsigned turn_passed(unsigned n) const {
    return barrier(kTurnBarrier + 2 * kTurns + n % kTurns);
  }
  static ATT_MEMBER unsigned turn_parity(unsigned n) { return n / kTurns & 1; }
  // Rows of K, of V, or of Q and dO, have come, some of which are another packed sequence's.
  ATT_MEMBER unsigned kv_raw() const { return barrier(kRawBarrier); }
  ATT_MEMBER unsigned q_raw() const { return barrier(kRawBarrier + 1); }

 private:
  ATT_MEMBER unsigned barrier(int index) const { return base + kBarrierOffset + 8 * index; }
};

}  // namespace sm90
}  // namespace att
