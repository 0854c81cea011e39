// In which order CTAs that take turns at dQ's sums (templates/tile/sm90_backward_turns.cuh) take
// the key tiles of all K/V heads, and in which one they add to the sums of a query tile. A CTA
// waits for none but CTAs of lower numbers, which have started before.
//
// Heads come in groups, of which all tiles that come first are taken first, then all that come
// next. A turn takes longer to pass on than a tile of queries takes, so the fewer CTAs a head has
// at a time the less they wait.
//
// Without a mask all begin with the first query tile, the first key tile ahead. With a mask the
// last key tile comes first. Under a causal one a CTA then begins with query tiles that are its
// own, and when it comes to another's, that one has been there. But the longest items would then be
// the last of all, and CTAs end far apart. So the last group is turned round: its first key tile
// comes first, and query tiles are walked downwards.
#pragma once

#include "templates/ptx/platform.cuh"
#include "templates/work_items.h"

namespace att {

template <typename Int>
struct TurnOrder {
  Int tiles;  // of a head
  HeadGroups<Int> groups;
  bool has_mask;

  ATT_MEMBER constexpr bool is_turned_round(Int head) const {
    return has_mask && head >= groups.before_last * groups.size;
  }
  // Where a key tile of a head comes in the order, and the other way round.
  ATT_MEMBER constexpr Int turn_of_tile(Int tile, bool turned_round) const {
    return has_mask && !turned_round ? tiles - 1 - tile : tile;
  }
  ATT_MEMBER constexpr HeadTile<Int> item(Int number) const {
    const HeadTile<Int> turn = tile_by_group(number, tiles, groups, false);
    return {turn.head, turn_of_tile(turn.tile, is_turned_round(turn.head))};
  }
};

// A group has up to `group` tiles. `slots`: heads that have sums of dQ at a time. All of a group
// have, of which the last one may be nearly twice as large as the others.
template <typename Int>
ATT_FN constexpr TurnOrder<Int> turn_order(Int heads, Int tiles, Int group, Int slots,
                                           bool has_mask) {
  const Int most = slots < heads ? slots / 2 : heads;
  const Int wanted = group / tiles < most ? group / tiles : most;
  const Int size = wanted < 1 ? 1 : wanted;
  return {tiles, head_groups(heads, GroupSizes<Int>{size, has_mask ? size : 1}), has_mask};
}

}  // namespace att
