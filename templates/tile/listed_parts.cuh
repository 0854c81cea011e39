// Walks of packed sequences' key tiles, cut into parts as templates/tile/walk_parts.cuh says: where
// their dK and dV lie meanwhile, and CTAs beside the next launch's that add them up. A
// sequence's rows begin with a key tile of their own, as its items do.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/walk_parts.cuh"
#include "templates/work_items.h"

namespace att {

// Key tiles before those of sequence b.
ATT_FN int first_listed_tile(const Sequence& own, int b) {
  return first_sequence_tile(own.kv_first, b, kPartKeys);
}

ATT_FN int listed_sum_ctas(const BackwardParams& p) {
  return ctas_of_listed_sums(cut_walks(p).parts,
                             sequence_item_count(p.kv_len, p.batch, kPartKeys) * p.kv_heads,
                             kPartKeys);
}
// One of them, number `cta`, of kThreads.
template <int kThreads>
ATT_FN void add_parts_of_listed_keys(const BackwardParams& p, int cta) {
  constexpr int kCtasOfTile = kPartKeys / kListedRowsOfSum;
  const int tiles = sequence_item_count(p.kv_len, p.batch, kPartKeys);
  const int index = cta / kCtasOfTile;
  const int h_kv = index / tiles, tile = index - h_kv * tiles;
  const SequenceList& list = static_cast<const PackedParams&>(p).sequences;
  const int b = sequence_of_tile<kPartKeys>(list.cu_kv, p.kv_len, p.batch, tile);
  const Sequence own = sequence_of(p, b);
  const int parts = cut_walks(p, own.q_len).parts;
  const int first =
      (tile - first_listed_tile(own, b)) * kPartKeys + cta % kCtasOfTile * kListedRowsOfSum;
  // Stored where it belongs; behind the sequence, or where offsets are no caller's.
  if (parts == 1 || first < 0) return;
  const int rows = min_i32(kListedRowsOfSum, own.kv_len - first);
#pragma unroll 1
  for (int i = thread_index(); i < rows * kUnitsOfSum; i += kThreads) {
    const int row = i / kUnitsOfSum;
    const int key = first + row;
    add_parts_of_unit(p, parts, h_kv, first_listed_tile(own, b) * kPartKeys + key,
                      i - row * kUnitsOfSum, own, h_kv, key);
  }
}

}  // namespace att
