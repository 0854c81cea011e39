// Attention backward on a CPU core.
//
// The forward kernel's loop twice: rows of an item's own sequence lie in vector lanes, and the item
// walks the rows of the other one as they lie in memory. Where lanes are keys, it walks the
// queries: S = Q K^T, dP = dO V^T, dV^T += dO^T P, dK^T += Q^T dS. Where they are queries, the same
// code walks the keys: S^T = K Q^T, dP^T = V dO^T, dQ^T += K^T dS^T. That is seven products. With
// plan::kWholeHeads an item has all keys of a K/V head, one tile after the other, and nobody else
// adds to the dQ of its query heads: it adds them up in the workspace, and five products do.
//
// Either way every gradient is written by one item, in a fixed order of sums: the pass is
// deterministic. Arithmetic is fp32 whatever the storage.
#include "templates/cpu/backward_rows.h"
#include "templates/cpu/backward_walk.h"
#include "templates/cpu/lanes.h"
#include "templates/cpu/launch.h"
#include "templates/cpu/learned_gradients.h"

namespace att {

struct Item {
  int b, h;  // h of the K/V heads for keys, of all for queries
  Span own;
};
ATT_INLINE Item item_at(int index, int heads, int length) {
  const int tiles = tile_count(length, kTile);
  const int head = index / tiles;
  return {head / heads, head % heads, tile_at(index % tiles, length)};
}

// dK and dV of some keys of a K/V head, over all query heads that share them. The sums of what is
// learned are those of part `part` of `parts`.
ATT_INLINE void make_key_gradients(const BackwardParams& p, const Item& item, int parts, int part,
                                   Scratch& scratch) {
  const int group = p.heads / p.kv_heads;
  const Context first = context_of(p, item.b, item.h * group, item.h);
  for (int i = 0; i * kBlockLanes < item.own.size(); ++i) {
    Block& block = scratch.blocks[i];
    const int k0 = item.own.begin + i * kBlockLanes;
    const int count = min_i32(kBlockLanes, item.own.end - k0);
    const Storage* const keys = key_row(p.k, p.k_stride, first, k0);
    load_lanes(keys, p.k_stride.seq, count, block.x);
    load_lanes(key_row(p.v, p.v_stride, first, k0), p.v_stride.seq, count, block.y);
    if (plan::kWholeHeads) copy_rows<kQk>(keys, p.k_stride.seq, count, count, block.keys);
    clear(block.d_x);
    clear(block.d_y);
  }
  for (int h = first.h; h < first.h + group; ++h) {
    walk_head<Lanes::kKeys>(p, context_of(p, item.b, h, item.h), item.own,
                            learned_sums(p, item.b, h, parts, part), scratch);
  }
  for (int i = 0; i * kBlockLanes < item.own.size(); ++i) {
    const Block& block = scratch.blocks[i];
    const int k0 = item.own.begin + i * kBlockLanes;
    const int count = min_i32(kBlockLanes, item.own.end - k0);
    store_lanes(block.d_x, softmax_scale(p), count,
                const_cast<Storage*>(key_row(p.d_k, p.d_k_stride, first, k0)), p.d_k_stride.seq);
    store_lanes(block.d_y, keep_scale(p), count,
                const_cast<Storage*>(key_row(p.d_v, p.d_v_stride, first, k0)), p.d_v_stride.seq);
  }
}

// Parts that each head's sums of what is learned have.
ATT_INLINE int learned_parts(const BackwardParams& p) {
  return plan::kWholeHeads ? 1 : tile_count(p.kv_len, kTile);
}
ATT_INLINE void clear_learned_sums_of_group(const BackwardParams& p, const Item& item, int part) {
  const int group = p.heads / p.kv_heads;
  for (int h = item.h * group; h < (item.h + 1) * group; ++h) {
    clear_learned_sums(learned_sums(p, item.b, h, learned_parts(p), part));
  }
}

// An item of the launch of key tiles.
static void make_key_tile(const BackwardParams& p, int index, Scratch& scratch) {
  const Item item = item_at(index, p.kv_heads, p.kv_len);
  const int part = index % tile_count(p.kv_len, kTile);
  clear_learned_sums_of_group(p, item, part);
  make_key_gradients(p, item, learned_parts(p), part, scratch);
}

// All gradients of a K/V head, and dQ of its query heads.
static void make_whole_head(const BackwardParams& p, int index, Scratch& scratch) {
  const int group = p.heads / p.kv_heads;
  Item item = {index / p.kv_heads, index % p.kv_heads, {0, 0}};
  clear_learned_sums_of_group(p, item, 0);
  const long long first = statistic_offset(p, item.b, item.h * group);
  const long long rows = static_cast<long long>(group) * p.q_len;
  float* const sums = p.d_q_sums + first * kSumColumns;
  for (long long i = 0; i < rows * kSumColumns; ++i) sums[i] = 0.0f;
  for (int tile = 0; tile < tile_count(p.kv_len, kTile); ++tile) {
    item.own = tile_at(tile, p.kv_len);
    make_key_gradients(p, item, 1, 0, scratch);
  }
  const float scale = softmax_scale(p);
  for (long long i = 0; i < rows; ++i) {
    const int h = item.h * group + static_cast<int>(i / p.q_len);
    const Context c = context_of(p, item.b, h, item.h);
    Storage* const to =
        const_cast<Storage*>(query_row(p.d_q, p.d_q_stride, c, static_cast<int>(i % p.q_len)));
    for (int j = 0; j < kQk; ++j) from_float(sums[i * kSumColumns + j] * scale, to[j]);
  }
}

// dQ of a tile of queries.
static void make_query_gradient(const BackwardParams& p, int index, Scratch& scratch) {
  const Item item = item_at(index, p.heads, p.q_len);
  const Context c = context_of(p, item.b, item.h, item.h / (p.heads / p.kv_heads));
  for (int i = 0; i * kBlockLanes < item.own.size(); ++i) {
    Block& block = scratch.blocks[i];
    const int q0 = item.own.begin + i * kBlockLanes;
    const int count = min_i32(kBlockLanes, item.own.end - q0);
    load_lanes(query_row(p.q, p.q_stride, c, q0), p.q_stride.seq, count, block.x);
    load_lanes(query_row(p.d_o, p.d_o_stride, c, q0), p.d_o_stride.seq, count, block.y);
    clear(block.d_x);
    const long long first = statistic_offset(p, c.b, c.h) + q0;
    for (int lane = 0; lane < kBlockLanes; ++lane) {
      const bool is_live = lane < count && p.row_references[first + lane] != kInfinity;
      block.references[lane] = is_live ? p.row_references[first + lane] : kInfinity;
      block.deltas[lane] = is_live ? p.row_deltas[first + lane] : 0.0f;
      for (int j = 0; j < kV && !is_live; ++j) block.y[j][lane] = 0.0f;
    }
  }
  walk_head<Lanes::kQueries>(p, c, item.own, nullptr, scratch);
  for (int i = 0; i * kBlockLanes < item.own.size(); ++i) {
    const int q0 = item.own.begin + i * kBlockLanes;
    store_lanes(scratch.blocks[i].d_x, softmax_scale(p), min_i32(kBlockLanes, item.own.end - q0),
                const_cast<Storage*>(query_row(p.d_q, p.d_q_stride, c, q0)), p.d_q_stride.seq);
  }
}

// Rows that an item of each launch walks.
static int key_item_weight(const ForwardParams* p, int index) {
  const Item item = item_at(index, p->kv_heads, p->kv_len);
  const int group = p->heads / p->kv_heads;
  long long rows = 0;
  for (int h = item.h * group; h < (item.h + 1) * group; ++h) {
    const Span walked = walked_rows<Lanes::kKeys>(context_of(*p, item.b, h, item.h), item.own);
    rows += max_i32(walked.size(), 0);
  }
  return static_cast<int>(rows < __INT_MAX__ ? rows : __INT_MAX__);
}
static int query_item_weight(const ForwardParams* p, int index) {
  const Item item = item_at(index, p->heads, p->q_len);
  const Context c = context_of(*p, item.b, item.h, item.h / (p->heads / p->kv_heads));
  return max_i32(walked_rows<Lanes::kQueries>(c, item.own).size(), 0);
}

}  // namespace att

extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _rows_work)(const att::BackwardParams*,
                                                      att::CpuWork* work) {
  *work = {nullptr, 1, 0};
}
extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _rows)(const att::BackwardParams* params, int item,
                                                 void*) {
  const long long rows = static_cast<long long>(params->batch) * params->heads * params->q_len;
  const long long first = static_cast<long long>(item) * att::plan::kRowsOfItem;
  for (int i = 0; i < att::plan::kRowsOfItem && first + i < rows; ++i) {
    att::make_row_statistics(*params, first + i);
  }
  const long long items = att::tile_count<long long>(rows, att::plan::kRowsOfItem);
  att::clear_learned_gradients(*params, item, static_cast<int>(items));
}

#if ATT_WHOLE_HEADS
extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _work)(const att::BackwardParams*, att::CpuWork* work) {
  *work = {nullptr, 1, sizeof(att::Scratch)};
}
extern "C" void ATT_KERNEL_NAME(const att::BackwardParams* params, int item, void* scratch) {
  att::make_whole_head(*params, item, *static_cast<att::Scratch*>(scratch));
}
#else
extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _work)(const att::BackwardParams* params,
                                                 att::CpuWork* work) {
  work->weight = att::spec::kHasMask ? &att::key_item_weight : nullptr;
  work->items_per_head = att::tile_count(params->kv_len, att::kTile);
  work->scratch_bytes = sizeof(att::Scratch);
}
extern "C" void ATT_KERNEL_NAME(const att::BackwardParams* params, int item, void* scratch) {
  att::make_key_tile(*params, item, *static_cast<att::Scratch*>(scratch));
}

extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _queries_work)(const att::BackwardParams* params,
                                                         att::CpuWork* work) {
  work->weight = att::spec::kHasMask ? &att::query_item_weight : nullptr;
  work->items_per_head = att::tile_count(params->q_len, att::kTile);
  work->scratch_bytes = sizeof(att::Scratch);
}
extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _queries)(const att::BackwardParams* params, int item,
                                                    void* scratch) {
  att::make_query_gradient(*params, item, *static_cast<att::Scratch*>(scratch));
}
#endif

#if ATT_LEARNS
extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _learned_work)(const att::BackwardParams*,
                                                         att::CpuWork* work) {
  *work = {nullptr, 1, 0};
}
extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _learned)(const att::BackwardParams* params, int, void*) {
  att::finish_learned_gradients(*params, att::learned_parts(*params));
}
#endif

#pragma clang attribute pop
