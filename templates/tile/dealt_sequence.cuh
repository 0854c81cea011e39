// What the kernels that deal out packed sequences' keys to CTAs know of each sequence.
#pragma once

#include "templates/items.h"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/pieces.cuh"

namespace att {

// How a sequence is dealt out. `units`: of its keys, as the mask's bounds leave them to head 0.
struct Dealt {
  int tiles, parts, units;
};

ATT_FN Dealt dealt(const PackedParams& p, int b) {
  const Sequence sequence = sequence_of(p, b);
  if (sequence.q_len == 0) return {0, 0, 0};
  KvBounds bounds = {0, sequence.kv_len};
  if (spec::kHasMask && sequence.kv_len > 0) {
    bounds = kv_bounds(context_of(p, sequence, b, 0, 0), 0, sequence.q_len);
  }
  const PackedTiles<int> grid = packed_tiles(p.heads, p.kv_heads, sequence.q_len, plan::kTileQ);
  const int keys = bounds.begin < bounds.end ? bounds.end - bounds.begin : 0;
  return {grid.q_tiles, grid.head_parts, tile_count(keys, kUnitKeys)};
}

// Of pieces of which none has come yet. The decode kernel may start meanwhile, and waits.
ATT_FN void zero_arrivals(const PackedParams& p, int count) {
  let_next_launch_start();
#pragma unroll 1
  for (int i = thread_index(); i < count; i += kItemThreads) p.pieces.arrivals[i] = 0;
}

ATT_FN void add_shared(int* sum, int value) {
  asm volatile("red.shared.add.s32 [%0], %1;" ::"r"(shared_address(sum)), "r"(value) : "memory");
}
ATT_FN void raise_shared(int* most, int value) {
  asm volatile("red.shared.max.s32 [%0], %1;" ::"r"(shared_address(most)), "r"(value) : "memory");
}

ATT_FN int at_most(long long value, int most) {
  return static_cast<int>(value < most ? value : most);
}

}  // namespace att
