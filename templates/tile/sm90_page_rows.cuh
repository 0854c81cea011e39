// K and V in pages of any size: three warps copy them row by row (cp.async) to where the tensor
// unit would have put them. For pages that are too small for boxes of rows
// (templates/tile/sm90_page_boxes.cuh); where boxes are small, K by boxes and V by rows take less
// time than either alone (kCopiesKeyRows is false then).
//
// Nothing waits for a copy but the consumers: a stage's barrier is told of its copies when they
// have been started, and a fence of theirs makes the tensor unit see them (wait_for_stage()). So
// the warps take as long as it takes to start copies, whose addresses are most of it: four lanes
// have the columns of a row, of d 128 four copies each, where eight would have as many copies and
// twice as many addresses (H200: 3 to 8 % of the kernel).
#pragma once

#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/sm90_pipeline.cuh"

namespace att {
namespace sm90 {

// Whose keys are copied: those of a K/V head of a sequence, of K or of V.
struct CopiedHead {
  const PageTable& table;
  const int* pages;   // the sequence's
  const char* first;  // the head's first row of page 0
  const Strides& stride;
  int kv_len;

  // The page of a key as listed: nothing waits for it before it is used. None behind the last key.
  ATT_MEMBER int look_up(int key) const {
    return key < kv_len ? pages[static_cast<unsigned>(page_of_key(table, key))] : -1;
  }

  // Bytes before the row of a key that has a page. Unsigned, as is neither number negative, which
  // halves the instructions.
  ATT_MEMBER long long bytes_before(int page, int key) const {
    using Offset = unsigned long long;
    const int row = key - page_of_key(table, key) * table.page_size;
    return static_cast<long long>(static_cast<unsigned>(page) *
                                      static_cast<Offset>(2 * stride.batch) +
                                  static_cast<unsigned>(row) * static_cast<Offset>(2 * stride.seq));
  }
};

ATT_FN CopiedHead copied_head(const ForwardParams& p, const Context& c, const void* tensor,
                              const Strides& stride) {
  const PageTable& table = page_table_of(p);
  return {table, table.entries + static_cast<long long>(c.b) * table.pages_per_sequence,
          static_cast<const char*>(tensor) + 2 * c.h_kv * stride.head, stride, c.kv_len};
}

// Copies of K's or V's tiles by a warp, eight rows at once. Of 32 rows each lane looks up one.
struct RowCopies {
  static constexpr int kLanes = 4;  // of a row
  static constexpr int kUnits = kRowBytes / 16, kParts = kUnits / kLanes, kUnitColumns = 8;
  static constexpr int kRowsAtOnce = 32 / kLanes;
  static constexpr int kBlocks = (kTileKv + 31) / 32;
  int page[kBlocks];  // that hold the lane's rows of the tile that comes next, as listed

  // Which of 32 rows the lane looks up: one of the four that it and its neighbours copy.
  static ATT_MEMBER int own_row() {
    const int lane = thread_index() % 32;
    return lane % kLanes * kRowsAtOnce + lane / kLanes;
  }

  ATT_MEMBER void look_up(const CopiedHead& head, int k0) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) page[i] = head.look_up(k0 + 32 * i + own_row());
  }

  // Starts the lane's copies of a row, from its first unit on. to: the places of the lane's units.
  template <int kDim, bool kMayLack>
  static ATT_MEMBER void copy(const unsigned (&to)[kParts], int first_row, const char* from,
                              bool exists) {
    constexpr int kUsedUnits = whole_steps(kDim) / kUnitColumns;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int slab = 0; slab < slabs(kDim); ++slab) {
        const int unit = slab * kUnits + part * kLanes + thread_index() % kLanes;
        if (unit >= kUsedUnits) continue;
        const unsigned at = to[part] + slab * kKvSlabBytes + first_row * kRowBytes;
        const char* const column = from + slab * kRowBytes + part * kLanes * 16;
        if constexpr (kMayLack || kDim % 16 != 0) {
          cp_async_16_or_zero(at, column, exists && unit * kUnitColumns < kDim);
        } else {
          cp_async_16(at, column);
        }
      }
    }
  }

  // Starts the lane's copies of the tile at k0 to the slabs at `to`, and looks up the one at
  // next_k0. Rows that lie nowhere become zeros, as what lies behind the columns does.
  template <int kDim>
  ATT_MEMBER void start(unsigned to, const CopiedHead& head, int k0, int next_k0) {
    const int unit = thread_index() % kLanes, row = thread_index() % 32 / kLanes;
    const char* const column = head.first + unit * 16;
    const unsigned places[kParts] = {swizzled(to, row, unit), swizzled(to, row, unit + kLanes)};
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const bool exists = static_cast<unsigned>(page[i]) < static_cast<unsigned>(head.table.pages);
      const unsigned existing = ballot(exists);
      const long long before = head.bytes_before(exists ? page[i] : 0, k0 + 32 * i + own_row());
      page[i] = head.look_up(next_k0 + 32 * i + own_row());
      const int rows = kTileKv - 32 * i < 32 ? kTileKv - 32 * i : 32;
      if (existing == 0xffffffffu) {
        const char* from[kLanes];
#pragma unroll
        for (int j = 0; j < kLanes; ++j) from[j] = column + shuffle_long_of_four(before, j);
#pragma unroll
        for (int j = 0; j < rows / kRowsAtOnce; ++j)
          copy<kDim, false>(places, 32 * i + j * kRowsAtOnce, from[j], true);
      } else {
#pragma unroll 1
        for (int j = 0; j < rows / kRowsAtOnce; ++j) {
          copy<kDim, true>(places, 32 * i + j * kRowsAtOnce,
                           column + shuffle_long_of_four(before, j),
                           (existing >> (row * kLanes + j) & 1) != 0);
        }
      }
    }
  }
};

// One of the kWarps warps: feeds the rings with K and V of the scheduler's items, as load() does.
// They take the tiles of K and V, which come by turns, one by one: of three that follow one another
// each has a K, a V and neither. (A template, as no other kernel is to compile it.)
template <int kWarps>
ATT_FN void load_by_rows(const ForwardParams& p, const TensorMap* k_map, const SharedMemory& shared,
                         int own) {
  static_assert(kWarps == 3);
  const bool leader = thread_index() % 32 == 0;
  RingPosition position;
  RowCopies copies;
  int turn = own;  // 0: a K, 1: a V, 2: neither
  for (int n = 0;; ++n) {
    const int slot = n % kItemSlots;
    mbarrier_wait(shared.item_full(slot), n / kItemSlots & 1);
    const ItemSlot item = load_slot(shared.item(slot));
    if (item.index == kNoMoreItems) return;
    const Context context = context_of(p, sequence_of(p, item.b), item.b, item.h, item.h_kv);
    ClusterWalk walk;
    TileInfo info = begin_walk(walk, shared, slot, item, context, 0);
    if (leader) mbarrier_arrive(shared.item_empty(slot));
    const CopiedHead k_head = copied_head(p, context, p.k, p.k_stride);
    const CopiedHead v_head = copied_head(p, context, p.v, p.v_stride);
    bool has_more = info.flags != kNoTile;
    PagedKey box = {};  // of K, with kCopiesKeyRows unset
    const auto look_up_keys = [&](int k0) {
      if constexpr (plan::kCopiesKeyRows) {
        copies.look_up(k_head, k0);
      } else {
        box = look_up_box(k_head.table, item.b, context.kv_len, k0);
      }
    };
    if (has_more) {
      look_up_keys(info.tile * kTileKv);
      if constexpr (!plan::kCopiesKeyRows) copies.look_up(v_head, info.tile * kTileKv);
    }
    do {
      const TileInfo following = has_more ? walk.next(context, 0) : info;
      // As in load().
      if (own == 0 && following.flags == kNoTile && leader) mbarrier_arrive(shared.item_wanted());
      if (!has_more) break;
      const int stage = position.stage, k0 = info.tile * kTileKv;
      // None has its rows behind the last key.
      const int next_k0 = following.flags != kNoTile ? following.tile * kTileKv : context.kv_len;
      if (turn == 0) {
        mbarrier_wait(shared.k_empty(stage), position.parity ^ 1);
        if (spec::kHasMask && leader) store_tile_info(shared.tile(stage), following);
        if constexpr (plan::kCopiesKeyRows) {
          copies.start<spec::kHeadDimQk>(shared.k(stage), k_head, k0, next_k0);
        } else {
          copies.look_up(v_head, next_k0);
          load_page_boxes<kQkSlabs>(shared.k(stage), k_map, shared.k_full(stage), k_head.table, box,
                                    item.h_kv);
        }
      } else if (turn == 1) {
        mbarrier_wait(shared.v_empty(stage), position.parity ^ 1);
        copies.start<spec::kHeadDimV>(shared.v(stage), v_head, k0, next_k0);
      } else {
        // A wait tells one use of a stage from the one before, not from the one before that. With
        // two stages this warp's next V comes two uses after the one that consumers may be at.
        if constexpr (kStages == 2) mbarrier_wait(shared.v_empty(stage), position.parity ^ 1);
        look_up_keys(next_k0);
      }
      if (turn < 2 && (plan::kCopiesKeyRows || turn == 1)) {
        const unsigned full = turn == 0 ? shared.k_full(stage) : shared.v_full(stage);
        cp_async_arrive(full);
        if (leader) mbarrier_arrive(full);  // of what was stored beside the copies
      }
      turn = turn < 2 ? turn + 1 : 0;
      position.advance();
      info = following;
      has_more = info.flags != kNoTile;
    } while (has_more);
  }
}

}  // namespace sm90
}  // namespace att
