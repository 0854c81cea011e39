// In which order CTAs of a backward pass take the tiles of all heads.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/work_items.h"

namespace att {

// `last_first`: as query tiles under a causal mask, the last of which are the longest. Else tiles
// are of keys, the first of which are.
ATT_FN HeadTile<int> backward_tile(int index, int tiles, int heads, bool last_first) {
  if constexpr (!spec::kHasMask) {
    const int head = index / tiles;
    const int tile = index - head * tiles;
    return {head, last_first ? tiles - 1 - tile : tile};
  }
  const int size = tiles < kLeastTilesOfHead ? 1 : max_i32(1, kTilesOfGroup / tiles);
  const GroupSizes<int> sizes{size, 1};
  return tile_by_group(index, tiles, head_groups(heads, sizes), last_first);
}

}  // namespace att
