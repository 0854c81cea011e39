// Forward attention on a CPU core where a row's bits must not depend on what else is in the launch:
// the cpu family's kernel of batch-invariant specs.
//
// As templates/kernels/cpu_forward.h, but tiles of keys begin where their pieces do, which is fixed
// (templates/cpu/fixed_pieces.h), and not where an item's keys begin. What is dead to a row adds
// zeros to it, and a maximum that does not rise multiplies by one: so the rows that share an item
// do not matter either.
#include "templates/cpu/attend.h"
#include "templates/cpu/fixed_pieces.h"
#include "templates/cpu/launch.h"

namespace att {

struct alignas(64) InvariantScratch {
  Scratch tile;
  Found totals[kBlocks];
};

// Keys that a call walks.
static int item_weight(const ForwardParams* params, int index) {
  const FixedPieces pieces = fixed_pieces_at(*params, index);
  const KvBounds all = bounds_of(*params, item_at(*params, pieces.item));
  const KvBounds bounds = pieces.count > 1 ? keys_of_fixed(pieces.first, all) : all;
  return bounds.end > bounds.begin ? bounds.end - bounds.begin : 0;
}

static void walk_keys(const ForwardParams& p, const Item& item, const KvBounds& bounds, int blocks,
                      Scratch& scratch) {
  const int rows = item.rows();
  for (int k0 = bounds.begin; k0 < bounds.end; k0 += kTileKv) {
    const int keys = bounds.end - k0 < kTileKv ? bounds.end - k0 : kTileKv;
    const TileClass tile_class = class_of(p, item, k0, k0 + keys);
    if (tile_class == TileClass::kSkip) continue;
    const bool masked = tile_class == TileClass::kPartial;
    const int padded = (keys + kKeyRows - 1) / kKeyRows * kKeyRows;
    const Rows k = Cache::k_rows(p, item, k0, keys, padded, scratch.k);
    const Rows v = Cache::v_rows(p, item, k0, keys, keys, scratch.v);
    for (int i = 0; i < blocks; ++i) {
      const int left = rows - i * kBlockRows;
      const int vectors = left >= kBlockRows ? kColumns : (left + kLanes - 1) / kLanes;
      attend_dynamic<kColumns>(vectors, p, item, scratch.blocks[i], scratch, k, v, i * kBlockRows,
                               k0, keys, padded, masked);
    }
  }
}

static void run_item(const ForwardParams& p, const FixedPieces& pieces, const Item& item,
                     InvariantScratch& scratch) {
  const int blocks = (item.rows() + kBlockRows - 1) / kBlockRows;
  Block(&found)[kBlocks] = scratch.tile.blocks;
  const Scale scale = scale_of(p);
  for (int i = 0; i < blocks; ++i) {
    clear(scratch.totals[i]);
    load_queries(p, item, i * kBlockRows, found[i]);
  }
  const KvBounds all = bounds_of(p, item);
  for (int piece = pieces.first; piece <= pieces.last; ++piece) {
    const KvBounds bounds = keys_of_fixed(piece, all);
    if (bounds.begin < bounds.end) walk_keys(p, item, bounds, blocks, scratch.tile);
    if (pieces.count > 1) {
      if (!merge_fixed_pieces(p, pieces, blocks, found, scratch.totals, scale)) return;
    } else if (bounds.begin < bounds.end) {
      for (int i = 0; i < blocks; ++i) {
        fold(scratch.totals[i], found[i].o, found[i].maximum, found[i].sum, scale);
        clear(found[i]);
      }
    }
  }
  for (int i = 0; i < blocks; ++i) {
    copy(scratch.totals[i], found[i]);
    store_block(p, item, i * kBlockRows, found[i]);
  }
}

}  // namespace att

extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _work)(const att::ForwardParams* params,
                                                 att::CpuWork* work) {
  // A list is in order.
  work->weight = att::spec::kHasMask && !att::spec::kIsPacked ? &att::item_weight : nullptr;
  work->items_per_head = att::item_grid(*params).per_kv_head() * att::fixed_pieces_of(*params);
  work->scratch_bytes = sizeof(att::InvariantScratch);
}

extern "C" void ATT_KERNEL_NAME(const att::ForwardParams* params, int item, void* scratch) {
  const att::FixedPieces pieces = att::fixed_pieces_at(*params, item);
  const att::Item own = att::item_at(*params, pieces.item);
  if (att::spec::kIsPacked && own.rows() == 0) return;
  att::run_item(*params, pieces, own, *static_cast<att::InvariantScratch*>(scratch));
}

#pragma clang attribute pop
