// The kernel that deals out the keys of paged sequences to CTAs where sequences may begin with the
// same pages: it finds these by comparing neighbours' tables, and lists pieces of the prefixes and
// of each sequence's own keys (templates/shared_prefix.h). As in piece_items.cuh a piece has at
// most `target` units of keys, of which all items together have at most kMostPieces / 2.
#pragma once

#include "templates/items.h"
#include "templates/ptx/arrive.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/shared_prefix.h"
#include "templates/tile/dealt_sequence.cuh"
#include "templates/tile/load.cuh"
#include "templates/tile/prefix_sums.cuh"
#include "templates/tile/shared_lists.cuh"

namespace att {

struct SharedTables {
  int common[kItemThreads];   // of a chunk of sequences: keys that each has in common with the next
  int rows[kItemThreads];     // of a prefix item
  int ends[kItemThreads];     // entries of those up to each
  int results[kItemThreads];  // the same of the results that wait to be merged
};

// Keys that two sequences may begin with alike, by their lengths and by what their masks leave.
struct SharedSpan {
  int begin, end;
  int rows;  // of a prefix item
};
ATT_FN SharedSpan shareable(const PackedParams& p, int b) {
  const Sequence sequence = sequence_of(p, b);
  KvBounds bounds = {0, sequence.kv_len};
  if (spec::kHasMask && sequence.kv_len > 0 && sequence.q_len > 0) {
    bounds = kv_bounds(context_of(p, sequence, b, 0, 0), 0, sequence.q_len);
  }
  return {bounds.begin, sequence.kv_len,
          shared_rows(p.heads / p.kv_heads, sequence.q_len, plan::kTileQ)};
}

// The whole CTA calls it: keys that sequences b and b + 1 begin with alike. Every page is compared,
// since nothing says that tables which agree on one page agree on those before it. First a page a
// thread: most tables that differ do so there.
ATT_FN int keys_in_common(const PackedParams& p, int b, SharedTables& tables) {
  const SharedSpan one = shareable(p, b), other = shareable(p, b + 1);
  const int most = min_i32(one.end, other.end);
  const int begin = min_i32(one.begin, other.begin);
  const bool counts = one.rows > 0 && other.rows > 0 && most - begin >= kLeastSharedKeys;
  // Another thread may change lengths meanwhile: all are to take the same way.
  if (!sync_threads_or(counts && thread_index() == 0)) return 0;
  const PageTable& table = page_table_of(p);
  const int pages = counts ? page_of_key(table, most - 1) + 1 : 0;
  const int* const left = table.entries + static_cast<long long>(b) * table.pages_per_sequence;
  const int* const right = left + table.pages_per_sequence;
  constexpr int kAtOnce = 8;  // of a thread
  int first = 0;
  bool differs[kAtOnce];
  for (;;) {
    const int count = first == 0 ? 1 : kAtOnce;
    bool any = false;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int page = first + kItemThreads * i + thread_index();
      differs[i] = i < count && page < pages && left[page] != right[page];
      any |= differs[i];
    }
    if (sync_threads_or(any)) break;
    first += kItemThreads * count;
    if (sync_threads_or(thread_index() == 0 && first >= pages)) return counts ? most : 0;
  }
  int found = pages;
#pragma unroll
  for (int i = kAtOnce - 1; i >= 0; --i) {
    const unsigned lanes = ballot(differs[i]);
    if (lanes == 0) continue;
    found = first + kItemThreads * i + 32 * warp_index() + highest_bit(lanes & (0u - lanes));
  }
  if (lane_index() == 0) tables.ends[warp_index()] = found;
  sync_threads();
  for (int i = 0; i < kItemThreads / 32; ++i) found = min_i32(found, tables.ends[i]);
  const int keys = found < pages ? found * table.page_size : most;
  return counts && keys - begin >= kLeastSharedKeys ? keys : 0;
}

// How a sequence is dealt out.
struct SharedDealt {
  int tiles, parts;
  int own_units;     // of its own keys
  int prefix_units;  // of the keys of its prefix item
};
ATT_FN int units_within(const KvBounds& bounds, int begin, int end) {
  const int first = max_i32(bounds.begin, begin), last = min_i32(bounds.end, end);
  return first < last ? tile_count(last - first, kSharedUnitKeys) : 0;
}
ATT_FN KvBounds bounds_of_sequence(const PackedParams& p, const Sequence& sequence, int b) {
  if (!spec::kHasMask || sequence.kv_len == 0) return {0, sequence.kv_len};
  return kv_bounds(context_of(p, sequence, b, 0, 0), 0, sequence.q_len);
}
ATT_FN SharedDealt shared_dealt(const PackedParams& p, int b, const SharedSequence& of) {
  const Sequence sequence = sequence_of(p, b);
  if (sequence.q_len == 0) return {0, 0, 0, 0};
  const PackedTiles<int> grid = packed_tiles(p.heads, p.kv_heads, sequence.q_len, plan::kTileQ);
  SharedDealt dealt = {grid.q_tiles, grid.head_parts, 0, 0};
  dealt.own_units = units_within(bounds_of_sequence(p, sequence, b), of.keys, sequence.kv_len);
  if (of.keys > 0) {
    // The team's first sequence speaks for all.
    const KvBounds first = bounds_of_sequence(p, sequence_of(p, of.team), of.team);
    dealt.prefix_units = units_within(first, 0, of.keys);
  }
  return dealt;
}

// Of a piece, where a K/V head has so many units in all. A prefix in pieces as long as a CTA's
// share of all leaves room for own keys beside them, if they are a little longer than that; pieces
// are also no more than half of what results have room for.
ATT_FN long long most_units(long long all_units, int kv_heads) {
  const long long at_once = max_i32(plan::kCtasAtOnce / kv_heads, 1);
  const long long full = max_i32(kMostPieces / kv_heads / 2, 1);
  const long long share = (9 * all_units + 8 * at_once - 1) / (8 * at_once);
  const long long least = (all_units + full - 1) / full;
  return (share > least ? share : least) + kLeastPieceUnits - 1;
}

ATT_FN int shared_pieces(int units, long long target) {
  const long long wanted = (units + target - 1) / target;
  return static_cast<int>(wanted < 1 ? 1 : wanted < plan::kPieces ? wanted : plan::kPieces);
}

// Who shares what, of all sequences, once it is known what neighbours have in common.
ATT_FN void find_prefixes(const PackedParams& p, SharedTables& tables) {
  SharedSequence* const records = shared_sequences(p);
  const int thread = thread_index();
#pragma unroll 1
  for (int first = 0; first < p.batch; first += kItemThreads) {
    const int count = min_i32(p.batch - first, kItemThreads);
    if (thread < count) {
      const int rows = shareable(p, first + thread).rows;
      const bool ends = thread + 1 == count || rows == 0;  // no prefix goes on into the next chunk
      tables.rows[thread] = rows;
      tables.common[thread] = ends ? 0 : records[first + thread].common;
    }
    sync_threads();
    // What another thread has made of lengths meanwhile must not make an item overflow.
    if (thread + 1 < count && tables.rows[thread + 1] == 0) tables.common[thread] = 0;
    sync_threads();
    if (thread < count && tables.common[thread] > 0 &&
        (thread == 0 || tables.common[thread - 1] == 0)) {
      share_prefixes(
          first + thread, first + count, plan::kTileQ,
          [&](int b) { return tables.common[b - first]; },
          [&](int b) { return tables.rows[b - first]; },
          [&](int b) -> SharedSequence& { return records[b]; });
    }
    sync_threads();
  }
}

ATT_FN void list_shared_pieces(const PackedParams& p, SharedTables& tables) {
  const int capacity = shared_item_count(p.q_len, p.batch, p.heads, p.kv_heads, plan::kTileQ);
  const int room = shared_result_room(p.batch, p.kv_heads);
  SharedSequence* const records = shared_sequences(p);
  SharedPieceItem* const items = shared_items(p);
  const int thread = thread_index();
  find_prefixes(p, tables);
  long long own_units = 0;
  for (int b = thread; b < p.batch; b += kItemThreads) {
    const SharedSequence of = records[b];
    const SharedDealt dealt = shared_dealt(p, b, of);
    own_units += static_cast<long long>(dealt.tiles) * dealt.parts * dealt.own_units;
    if (of.keys > 0 && of.first == b) own_units += dealt.prefix_units;
  }
  const long long target = most_units(sum_of_all(own_units), p.kv_heads);
  int done = 0, results = 0;
#pragma unroll 1
  for (int first = 0; first < p.batch && done < capacity; first += kItemThreads) {
    const int width = power_of_two_from(min_i32(p.batch - first, kItemThreads));
    const int b = first + thread;
    SharedSequence of = b < p.batch ? records[b] : SharedSequence{};
    const SharedDealt dealt = b < p.batch ? shared_dealt(p, b, of) : SharedDealt{0, 0, 0, 0};
    const int own_wanted = shared_pieces(dealt.own_units, target);
    const int prefix_wanted = shared_pieces(dealt.prefix_units, target);
    const int own_items = dealt.tiles * dealt.parts;
    const bool leads = of.keys > 0 && of.team == b;
    const int team_pieces = leads ? of.team_size * prefix_wanted : 0;
    const int left = max_i32(room + 1 - results, 0);  // one more than there is room for: too many
    tables.results[thread] =
        of.keys > 0 || own_wanted > 1
            ? at_most(static_cast<long long>(own_items) * own_wanted + team_pieces, left)
            : 0;
    sync_threads();
    add_up(tables.results, width, left);
    const auto fits = [&](int i) { return results + tables.results[i] <= room; };
    const bool shares = of.keys > 0 && fits(records[of.team].team_end - 1 - first);
    const int own_pieces = (of.keys > 0 ? shares : fits(thread)) ? own_wanted : 1;
    const int prefix_pieces = shares ? prefix_wanted : 0;
    // All read the team's end before it may be written.
    sync_threads();
    tables.ends[thread] =
        at_most(static_cast<long long>(own_items) * own_pieces + (shares ? team_pieces : 0),
                capacity - done);
    if (b < p.batch) {
      const auto before = [&](int i) { return results + (i > 0 ? tables.results[i - 1] : 0); };
      if (!shares) of.keys = 0;
      of.own_pieces = own_pieces;
      of.own_result = before(thread) + (shares ? team_pieces : 0);
      of.prefix_pieces = prefix_pieces;
      of.prefix_result = shares ? before(of.team - first) + of.rank * prefix_pieces : 0;
      records[b] = of;
    }
    sync_threads();
    add_up(tables.ends, width, capacity - done);
    const int count = tables.ends[width - 1];
#pragma unroll 1
    for (int i = thread; i < count; i += kItemThreads) {
      int at = 0;  // the sequence: how many end before the item
#pragma unroll 1
      for (int step = width / 2; step > 0; step /= 2) {
        if (tables.ends[at + step - 1] <= i) at += step;
      }
      const SharedSequence found = records[first + at];
      const Sequence sequence = sequence_of(p, first + at);
      const PackedTiles<int> grid =
          packed_tiles(p.heads, p.kv_heads, max_i32(sequence.q_len, 1), plan::kTileQ);
      items[done + i] = shared_entry(records, first + at, found, grid.head_parts,
                                     i - (at > 0 ? tables.ends[at - 1] : 0));
    }
    done += count;
    results += tables.results[width - 1];
    sync_threads();
  }
#pragma unroll 1
  for (int i = done + thread; i < capacity; i += kItemThreads) items[i].sequence = -1;
}

}  // namespace att

ATT_KERNEL __launch_bounds__(att::kItemThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _items)(ATT_GRID_CONSTANT att::ListKernelParams params) {
  __shared__ att::SharedTables tables;
  __shared__ bool is_last;
  att::let_next_launch_start();  // it waits of its own accord
  const int b = att::block_index();
  const int common = b + 1 < params.batch ? att::keys_in_common(params, b, tables) : 0;
  if (att::thread_index() == 0) {
    att::SharedSequence own = {};
    own.common = common;
    att::shared_sequences(params)[b] = own;
    is_last = att::arrive(att::shared_listers(params)) == params.batch - 1;
  }
  att::sync_threads();
  if (is_last) att::list_shared_pieces(params, tables);
}
