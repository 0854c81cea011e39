// Forward attention on a CPU core: one call does the query rows of one work item.
//
// Tiled online softmax (Milakov and Gimelshein 2018; FlashAttention's loop), turned so that vector
// lanes are queries: S^T = K Q^T and O^T += V^T P^T are the same product (templates/cpu/product.h),
// maximum and sum are plain vector operations, and Q is the only operand that is ever transposed,
// once an item. Arithmetic is fp32 whatever the storage.
#include "templates/cpu/attend.h"
#include "templates/cpu/key_pieces.h"
#include "templates/cpu/launch.h"

namespace att {

// Keys that the item of a piece walks.
static int item_weight(const ForwardParams* params, int index) {
  const Piece piece = piece_at(*params, index);
  const KvBounds bounds = bounds_of(*params, item_at(*params, piece.item));
  return bounds.end > bounds.begin ? bounds.end - bounds.begin : 0;
}

static void run_item(const ForwardParams& p, const Piece& piece, const Item& item,
                     Scratch& scratch) {
  const int rows = item.rows();
  const int blocks = (rows + kBlockRows - 1) / kBlockRows;
  for (int i = 0; i < blocks; ++i) load_queries(p, item, i * kBlockRows, scratch.blocks[i]);

  // Tiles start at a multiple of 32 keys, where dropout's blocks start.
  const KvBounds all = bounds_of(p, item);
  const KvBounds bounds = keys_of(piece, {all.begin / 32 * 32, all.end});
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
  if constexpr (plan::kPieces > 1) {
    Block& block = scratch.blocks[0];
    if (piece.count > 1 && !merge_pieces(p, piece, block, scale_of(p))) return;
  }
  for (int i = 0; i < blocks; ++i) store_block(p, item, i * kBlockRows, scratch.blocks[i]);
}

}  // namespace att

extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _work)(const att::ForwardParams* params,
                                                 att::CpuWork* work) {
  // A list is in order.
  work->weight = att::spec::kHasMask && !att::spec::kIsPacked ? &att::item_weight : nullptr;
  work->items_per_head = att::item_grid(*params).per_kv_head() * att::pieces_of(*params);
  work->scratch_bytes = sizeof(att::Scratch);
}

extern "C" void ATT_KERNEL_NAME(const att::ForwardParams* params, int item, void* scratch) {
  const att::Piece piece = att::piece_at(*params, item);
  const att::Item own = att::item_at(*params, piece.item);
  if (att::spec::kIsPacked && own.rows() == 0) return;
  att::run_item(*params, piece, own, *static_cast<att::Scratch*>(scratch));
}

#pragma clang attribute pop
