// Units of keys of an item whose rows may be of several sequences, as templates/tile/pieces.cuh has
// those of one: which ones a piece takes.
#pragma once

#include "templates/tile/pieces.cuh"
#include "templates/tile/shared_rows.cuh"

namespace att {

struct SharedUnitTable {
  unsigned live[kMostSharedUnits / 32], full[kMostSharedUnits / 32];
  unsigned short listed[kMostSharedUnits];  // those of the piece: 2 * unit + (1 when full)
};

struct SharedUnits {
  int first_key, keys, end;
  int begin;  // number of the first one, where they are not listed
  int count;
};

ATT_FN Unit shared_unit_at(const SharedUnits& units, const SharedUnitTable& table, int i) {
  if constexpr (spec::kHasMask) {
    const int listed = table.listed[i];
    return {units.first_key + listed / 2 * units.keys, listed % 2 != 0};
  }
  const int k0 = units.first_key + (units.begin + i) * units.keys;
  return {k0, units.end - k0 >= units.keys};
}

// One head speaks for all where the mask does not tell them apart.
ATT_FN Item judged_item(const SharedMember& member, int h_kv) {
  Item judged = member.item(h_kv);
  if (!plan::kMaskReadsHead) judged.h1 = judged.h0 + 1;
  return judged;
}

// The keys that some row of the item may see, of [begin, end). Every warp finds them for itself.
ATT_FN KvBounds shared_bounds(const ForwardParams& p, const SharedTable& table,
                              const SharedWork& work) {
  if constexpr (!spec::kHasMask) return {work.begin, work.end};
  KvBounds own = {work.end, 0};
  if (lane_index() < work.members && table.members[lane_index()].rows > 0) {
    const KvBounds found = bounds_of(p, judged_item(table.members[lane_index()], work.h_kv));
    if (found.begin < found.end) own = found;
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    own.begin = min_i32(own.begin, shuffle_from(own.begin, lane_index() ^ distance));
    own.end = max_i32(own.end, shuffle_from(own.end, lane_index() ^ distance));
  }
  return {max_i32(own.begin, work.begin), min_i32(own.end, work.end)};
}

// The class that holds for the rows of all members.
ATT_FN TileClass shared_class(const ForwardParams& p, const SharedTable& table,
                              const SharedWork& work, int k0, int k1) {
  TileClass all = TileClass::kSkip;
  bool any = false;
#pragma unroll 1
  for (int i = 0; i < work.members; ++i) {
    if (table.members[i].rows == 0) continue;
    const TileClass found = class_of(p, judged_item(table.members[i], work.h_kv), k0, k1);
    if (any && found != all) return TileClass::kPartial;
    all = found;
    any = true;
  }
  return all;
}

// The whole CTA calls it. All threads may read the table afterwards.
template <int kWarps>
ATT_FN SharedUnits shared_units(const ForwardParams& p, const SharedTable& members,
                                const SharedWork& work, SharedUnitTable& table) {
  const auto share = [&](int all, int which) {
    return static_cast<int>(static_cast<long long>(all) * which / work.pieces);
  };
  const KvBounds bounds = shared_bounds(p, members, work);
  // Units of a prefix end where it ends.
  const int aligned = work.is_prefix ? shared_unit_keys(work.end) : kSharedUnitKeys;
  const int first_key = bounds.begin / aligned * aligned;
  const int span = bounds.begin < bounds.end ? bounds.end - first_key : 0;
  const int keys = work.is_prefix ? aligned : shared_unit_keys(span);
  const int all = tile_count(span, keys);
  if constexpr (!spec::kHasMask) {
    const int begin = share(all, work.piece);
    return {first_key, keys, work.end, begin, share(all, work.piece + 1) - begin};
  }
  const int lane = lane_index();
  // What is live to all rows, as most of a prefix is, need not be looked at unit by unit.
  if (work.is_prefix && span > 0) {
    bool full = true;
    if (lane < work.members && members.members[lane].rows > 0) {
      const Item judged = judged_item(members.members[lane], work.h_kv);
      full = class_of(p, judged, first_key, work.end) == TileClass::kFull;
    }
    if (all_lanes(full)) {
      const int begin = share(all, work.piece), count = share(all, work.piece + 1) - begin;
      for (int i = thread_index(); i < count; i += 32 * kWarps) {
        table.listed[i] = static_cast<unsigned short>(2 * (begin + i) + 1);
      }
      sync_threads();
      return {first_key, keys, work.end, begin, count};
    }
  }
  for (int word = warp_index(); word < kMostSharedUnits / 32; word += kWarps) {
    const int unit = 32 * word + lane;
    TileClass found = TileClass::kSkip;
    const int k0 = first_key + unit * keys;
    int k1 = k0;
    if (unit < all) {
      k1 = work.end - k0 < keys ? work.end : k0 + keys;
      found = shared_class(p, members, work, k0, k1);
    }
    const unsigned live = ballot(found != TileClass::kSkip);
    const unsigned full = ballot(found == TileClass::kFull && k1 - k0 == keys);
    if (lane == 0) {
      table.live[word] = live;
      table.full[word] = full;
    }
  }
  sync_threads();
  // Every warp finds how many there are, the first one lists those of the piece.
  static_assert(kMostSharedUnits == 32 * 32);
  const int own = bit_count(table.live[lane]);
  const int up_to = sum_up_to_lane(own);
  const int live_units = shuffle_from(up_to, 31);
  const int begin = share(live_units, work.piece), end = share(live_units, work.piece + 1);
  if (warp_index() == 0) {
    int rank = up_to - own;
    for (unsigned live = table.live[lane]; live != 0; live &= live - 1) {
      const int bit = highest_bit(live & (0u - live));
      if (rank >= begin && rank < end) {
        table.listed[rank - begin] = static_cast<unsigned short>(
            2 * (32 * lane + bit) + static_cast<int>(table.full[lane] >> bit & 1));
      }
      ++rank;
    }
  }
  sync_threads();
  return {first_key, keys, work.end, begin, end - begin};
}

}  // namespace att
