// Attention backward on a CPU core.
//
// The forward kernel's loop twice: rows of an item's own sequence lie in vector lanes, and the item
// walks the rows of the other one as they lie in memory. Where lanes are keys, it walks the
// queries: S = Q K^T, dP = dO V^T, dV^T += dO^T P, dK^T += Q^T dS. Where they are queries, the same
// code walks the keys: S^T = K Q^T, dP^T = V dO^T, dQ^T += K^T dS^T. That is seven products. With
// plan::kWholeHeads an item has all keys of a K/V head, one tile after the other, and nobody else
// adds to the dQ of its query heads: it adds them up in the workspace, and five products do. With
// plan::kInParts it has every so many-th tile of them, and sums of its own; the last launch adds
// these up.
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
  Sequence sequence;
  Span own;
  int part = 0;  // of the head's
};
// Of tile `tile` of `length` rows.
ATT_INLINE Item item_of(const Sequence& sequence, int b, int h, int tile, int length) {
  return {b, h, sequence, tile_at(tile, length)};
}
// Of a list; no rows of its own: there is nothing to do.
ATT_INLINE Item listed_item(const ForwardParams& p, const SequenceItem* list, int index, int heads,
                            bool of_keys) {
  const SequenceItem listed = list[index / heads];
  if (listed.sequence < 0) return {};
  const Sequence sequence = sequence_of(p, listed.sequence);
  const int length = of_keys ? sequence.kv_len : sequence.q_len;
  // Another thread may have changed the lengths since they were listed.
  if (listed.tile >= tile_count(length, kTile)) return {};
  return item_of(sequence, listed.sequence, index % heads, listed.tile, length);
}
ATT_INLINE Item dense_item(const ForwardParams& p, int index, int heads, int length) {
  const int tiles = tile_count(length, kTile);
  const int b = index / tiles / heads;
  return item_of(sequence_of(p, b), b, index / tiles % heads, index % tiles, length);
}
ATT_INLINE Item key_item(const ForwardParams& p, int index) {
  if (!spec::kIsPacked) return dense_item(p, index, p.kv_heads, p.kv_len);
  return listed_item(p, static_cast<const PagedParams&>(p).key_items, index, p.kv_heads, true);
}
ATT_INLINE Item query_item(const ForwardParams& p, int index) {
  if (!spec::kIsPacked) return dense_item(p, index, p.heads, p.q_len);
  return listed_item(p, static_cast<const PagedParams&>(p).sequences.items, index, p.heads, false);
}

ATT_INLINE Context context_of(const ForwardParams& p, const Item& item, int h, int h_kv) {
  return context_of(p, item.sequence, item.b, h, h_kv);
}

// The sums of what is learned that an item's keys have, of a query head.
ATT_INLINE float* learned_sums(const BackwardParams& p, const Item& item, int h) {
  return learned_sums(p, item.sequence, item.b, h, item.own.begin / kLearningTile);
}

// The item's sums of a query head's dQ.
ATT_INLINE float* query_sums(const BackwardParams& p, const Item& item, int h) {
  if (!plan::kWholeHeads) return nullptr;
  return p.d_q_sums + statistic_offset(p, item.sequence, h) * sum_stride(p) +
         item.part * kSumColumns;
}

// dK and dV of some keys of a K/V head, over all query heads that share them.
ATT_INLINE void make_key_gradients(const BackwardParams& p, const Item& item, Scratch& scratch) {
  const int group = p.heads / p.kv_heads;
  const Context first = context_of(p, item, item.h * group, item.h);
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
    walk_head<Lanes::kKeys>(p, context_of(p, item, h, item.h), item.own, query_sums(p, item, h),
                            learned_sums(p, item, h), scratch);
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

ATT_INLINE void clear_learned_sums_of_group(const BackwardParams& p, const Item& item) {
  const int group = p.heads / p.kv_heads;
  for (int h = item.h * group; h < (item.h + 1) * group; ++h) {
    clear_learned_sums(learned_sums(p, item, h));
  }
}

// An item of the launch of key tiles.
static void make_key_tile(const BackwardParams& p, int index, Scratch& scratch) {
  const Item item = key_item(p, index);
  if (spec::kIsPacked && item.own.size() == 0) return;
  clear_learned_sums_of_group(p, item);
  make_key_gradients(p, item, scratch);
}

// `sums`: of the row's first part.
ATT_INLINE void store_query_row(const BackwardParams& p, const Sequence& sequence, int h, int q,
                                const float* sums) {
  const float scale = softmax_scale(p);
  const int parts = parts_of_head(p);
  Storage* const to = static_cast<Storage*>(p.d_q) + query_offset(sequence, p.d_q_stride, h, q);
  for (int j = 0; j < kQk; ++j) {
    float sum = sums[j];
    for (int part = 1; part < parts; ++part) sum += sums[part * kSumColumns + j];
    from_float(sum * scale, to[j]);
  }
}

// All gradients of a K/V head's part, and what it adds to dQ of its query heads.
static void make_whole_head(const BackwardParams& p, int index, Scratch& scratch) {
  const int group = p.heads / p.kv_heads;
  const int parts = parts_of_head(p), head = index / parts;
  const int b = head / p.kv_heads;
  Item item = {b, head % p.kv_heads, sequence_of(p, b), {0, 0}, index % parts};
  clear_learned_sums_of_group(p, item);
  const Sequence& sequence = item.sequence;
  const int first_head = item.h * group, end_head = first_head + group;
  for (int h = first_head; h < end_head; ++h) {
    float* sums = query_sums(p, item, h);
    for (int q = 0; q < sequence.q_len; ++q, sums += sum_stride(p)) {
      for (int j = 0; j < kSumColumns; ++j) sums[j] = 0.0f;
    }
  }
  // Every so many tiles, for the first ones are the longest under a causal mask.
  for (int tile = item.part; tile < tile_count(sequence.kv_len, kTile); tile += parts) {
    item.own = tile_at(tile, sequence.kv_len);
    make_key_gradients(p, item, scratch);
  }
  if (plan::kInParts) return;
  for (int h = first_head; h < end_head; ++h) {
    const float* sums = query_sums(p, item, h);
    for (int q = 0; q < sequence.q_len; ++q, sums += sum_stride(p)) {
      store_query_row(p, sequence, h, q, sums);
    }
  }
}

// Of row number `row` of [batch, heads, q_len].
ATT_INLINE void add_up_query_row(const BackwardParams& p, long long row) {
  const int head = static_cast<int>(row / p.q_len);
  const int q = static_cast<int>(row - static_cast<long long>(head) * p.q_len);
  store_query_row(p, sequence_of(p, head / p.heads), head % p.heads, q,
                  p.d_q_sums + row * sum_stride(p));
}

// dQ of a tile of queries.
static void make_query_gradient(const BackwardParams& p, int index, Scratch& scratch) {
  const Item item = query_item(p, index);
  if (spec::kIsPacked && item.own.size() == 0) return;
  const Context c = context_of(p, item, item.h, item.h / (p.heads / p.kv_heads));
  for (int i = 0; i * kBlockLanes < item.own.size(); ++i) {
    Block& block = scratch.blocks[i];
    const int q0 = item.own.begin + i * kBlockLanes;
    const int count = min_i32(kBlockLanes, item.own.end - q0);
    load_lanes(query_row(p.q, p.q_stride, c, q0), p.q_stride.seq, count, block.x);
    load_lanes(query_row(p.d_o, p.d_o_stride, c, q0), p.d_o_stride.seq, count, block.y);
    clear(block.d_x);
    const long long first = statistic_offset(p, item.sequence, c.h) + q0;
    for (int lane = 0; lane < kBlockLanes; ++lane) {
      const bool is_live = lane < count && p.row_references[first + lane] != kInfinity;
      block.references[lane] = is_live ? p.row_references[first + lane] : kInfinity;
      block.deltas[lane] = is_live ? p.row_deltas[first + lane] : 0.0f;
      for (int j = 0; j < kV && !is_live; ++j) block.y[j][lane] = 0.0f;
    }
  }
  walk_head<Lanes::kQueries>(p, c, item.own, nullptr, nullptr, scratch);
  for (int i = 0; i * kBlockLanes < item.own.size(); ++i) {
    const int q0 = item.own.begin + i * kBlockLanes;
    store_lanes(scratch.blocks[i].d_x, softmax_scale(p), min_i32(kBlockLanes, item.own.end - q0),
                const_cast<Storage*>(query_row(p.d_q, p.d_q_stride, c, q0)), p.d_q_stride.seq);
  }
}

// ---- Rows of all heads, some of which are an item.

ATT_INLINE long long row_count(const BackwardParams& p) {
  return static_cast<long long>(slice_count(p)) * p.heads * p.q_len;
}
template <typename Body>
ATT_INLINE void for_each_row(const BackwardParams& p, int item, const Body& body) {
  const long long first = static_cast<long long>(item) * plan::kRowsOfItem;
  for (int i = 0; i < plan::kRowsOfItem && first + i < row_count(p); ++i) body(p, first + i);
}

constexpr bool kWeighsItems = spec::kHasMask && !spec::kIsPacked;

// Rows that an item of each launch walks. Of packed sequences a list is in order.
static int key_item_weight(const ForwardParams* p, int index) {
  const Item item = key_item(*p, index);
  const int group = p->heads / p->kv_heads;
  long long rows = 0;
  for (int h = item.h * group; h < (item.h + 1) * group; ++h) {
    const Span walked = walked_rows<Lanes::kKeys>(context_of(*p, item, h, item.h), item.own);
    rows += max_i32(walked.size(), 0);
  }
  return static_cast<int>(rows < __INT_MAX__ ? rows : __INT_MAX__);
}
static int query_item_weight(const ForwardParams* p, int index) {
  const Item item = query_item(*p, index);
  const Context c = context_of(*p, item, item.h, item.h / (p->heads / p->kv_heads));
  return max_i32(walked_rows<Lanes::kQueries>(c, item.own).size(), 0);
}
// Of packed sequences: pairs of 64 queries and 64 keys of a head, before the mask.
static int head_item_weight(const ForwardParams* p, int index) {
  const Sequence sequence = sequence_of(*p, index / p->kv_heads);
  const long long pairs =
      static_cast<long long>(tile_count(sequence.q_len, 64)) * tile_count(sequence.kv_len, 64);
  return static_cast<int>(pairs < __INT_MAX__ ? pairs : __INT_MAX__);
}

}  // namespace att

extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _rows_work)(const att::BackwardParams*,
                                                      att::CpuWork* work) {
  *work = {nullptr, 1, 0};
}
extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _rows)(const att::BackwardParams* params, int item,
                                                 void*) {
  att::for_each_row(*params, item, att::make_row_statistics);
  const long long items =
      att::tile_count<long long>(att::row_count(*params), att::plan::kRowsOfItem);
  att::clear_learned_gradients(*params, item, static_cast<int>(items));
}

#if ATT_WHOLE_HEADS
extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _work)(const att::BackwardParams* params,
                                                 att::CpuWork* work) {
  const auto weight = att::spec::kIsPacked ? &att::head_item_weight : nullptr;
  const int items = params->batch * params->kv_heads * att::parts_of_head(*params);
  *work = {weight, items, sizeof(att::Scratch)};
}
extern "C" void ATT_KERNEL_NAME(const att::BackwardParams* params, int item, void* scratch) {
  att::make_whole_head(*params, item, *static_cast<att::Scratch*>(scratch));
}
#if ATT_IN_PARTS
extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _queries_work)(const att::BackwardParams*,
                                                         att::CpuWork* work) {
  *work = {nullptr, 1, 0};
}
extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _queries)(const att::BackwardParams* params, int item,
                                                    void*) {
  att::for_each_row(*params, item, att::add_up_query_row);
}
#endif
#else
extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _work)(const att::BackwardParams* params,
                                                 att::CpuWork* work) {
  work->weight = att::kWeighsItems ? &att::key_item_weight : nullptr;
  work->items_per_head = att::tile_count(params->kv_len, att::kTile);
  work->scratch_bytes = sizeof(att::Scratch);
}
extern "C" void ATT_KERNEL_NAME(const att::BackwardParams* params, int item, void* scratch) {
  att::make_key_tile(*params, item, *static_cast<att::Scratch*>(scratch));
}

extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _queries_work)(const att::BackwardParams* params,
                                                         att::CpuWork* work) {
  work->weight = att::kWeighsItems ? &att::query_item_weight : nullptr;
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
  att::finish_learned_gradients(*params);
}
#endif

#pragma clang attribute pop
