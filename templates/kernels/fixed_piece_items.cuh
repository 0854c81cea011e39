// The kernel that deals out the keys of packed sequences to CTAs where a row's result must not
// depend on the others of its batch (templates/kernels/invariant_forward.cuh). Where pieces end is
// fixed; what the lengths of all sequences together decide is whether an item's pieces have a CTA
// each or one CTA for all, which comes to the same. A sequence has a CTA for each where it is
// longer than a kItemsThatFill-th of all, as long as there is room for results.
#pragma once

#include "templates/tile/piece_list.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/work_items.h"

namespace att {

struct FixedPieces {
  static constexpr int kResults = kMostFixedResults;
  static constexpr bool kMayAskForMore = true;
  long long share = 0;  // units of a sequence that is not longer than others

  ATT_MEMBER void count(const Dealt&) {}
  ATT_MEMBER void decide(const PackedParams& p, int all, bool) {
    share = static_cast<long long>(all) * p.kv_heads / kItemsThatFill;
  }
  ATT_MEMBER int pieces(const Dealt& own) const {
    const int fixed = fixed_piece_count(own.sequence.kv_len);
    return fixed > 1 && own.units > share ? fixed : 1;
  }
};

}  // namespace att

ATT_KERNEL __launch_bounds__(att::kItemThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _items)(ATT_GRID_CONSTANT att::ListKernelParams params) {
  __shared__ att::ListedSequence listed[att::kItemThreads];
  att::FixedPieces rule;
  att::list_pieces(params, listed,
                   att::fixed_piece_item_count(params.q_len, params.batch, params.heads,
                                               params.kv_heads, att::plan::kTileQ),
                   rule);
}
