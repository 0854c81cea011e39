// What a backward pass lists of packed sequences' keys.
#pragma once

#include "templates/sequence.h"
#include "templates/tile/item_list.cuh"

namespace att {

struct KeyItems {
  static constexpr int kRows = kItemKeys;
  static ATT_MEMBER int all_rows(const PackedParams& p) { return p.kv_len; }
  static ATT_MEMBER int rows(const Sequence& sequence) { return sequence.kv_len; }
  static ATT_MEMBER SequenceItem* list(const PackedParams& p) {
    return static_cast<const PagedParams&>(p).key_items;
  }
  static constexpr int kWalkedTile = kItemQueries;
  static ATT_MEMBER int walked_rows(const Sequence& sequence) { return sequence.q_len; }
  static ATT_MEMBER QBounds walked_rows(const Context& c, int begin, int end) {
    return q_bounds(c, begin, end);
  }
};

}  // namespace att
