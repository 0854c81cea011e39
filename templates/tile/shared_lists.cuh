// Where the lists of shared prefixes lie in the workspace: the pieces, behind them what is known of
// each sequence.
#pragma once

#include "templates/items.h"
#include "templates/shared_prefix.h"

namespace att {

ATT_FN SharedPieceItem* shared_items(const PackedParams& p) {
  return reinterpret_cast<SharedPieceItem*>(p.pieces.items);
}
ATT_FN SharedSequence* shared_sequences(const PackedParams& p) {
  return reinterpret_cast<SharedSequence*>(
      shared_items(p) + shared_item_count(p.q_len, p.batch, p.heads, p.kv_heads, plan::kTileQ));
}

// The counter of the CTAs that make the list, behind those of the results.
ATT_FN int* shared_listers(const PackedParams& p) {
  return p.pieces.arrivals + shared_result_room(p.batch, p.kv_heads) * p.kv_heads;
}

}  // namespace att
