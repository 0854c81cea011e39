// Pages that neighbouring sequences begin with alike, which are read once for all of them: how
// sequences are put together, and what the lists of that hold. The same for kernels and for hosts
// (templates/kernels/shared_piece_items.cuh makes the lists, shared_prefix_forward.cuh takes them).
//
// A prefix item has the rows of several sequences that follow one another in the batch, all query
// heads of a K/V head and all queries of each, and the keys [0, keys). Every one of these sequences
// has an item of its own for the keys from there on. Prefix items with the same keys are a team:
// their pieces stand side by side in the list, so that the second finds in the L2 cache what the
// first has read.
#pragma once

#include "templates/ptx/platform.cuh"
#include "templates/work_items.h"

namespace att {

// Fewer keys in common are not worth the merging.
constexpr int kLeastSharedKeys = 512;
// What prefixes are multiples of, and more where they are so long that units of keys are larger.
constexpr int kSharedUnitKeys = 64;
constexpr int kMostSharedUnits = 1024;

// The unit in which an item's `span` keys are dealt out.
ATT_FN constexpr int shared_unit_keys(int span) {
  int keys = kSharedUnitKeys;
  while (span / keys >= kMostSharedUnits) keys *= 2;
  return keys;
}
// A prefix of whole units.
ATT_FN constexpr int whole_units(int keys) {
  const int unit = shared_unit_keys(keys);
  return keys / unit * unit;
}

// An entry of the list, of a K/V head.
struct SharedPieceItem {
  int sequence;  // negative: none
  int members;   // of a prefix item: sequences from `sequence` on; 0: the sequence's own keys
  int tile;      // of the sequence's own queries
  int part;      // of the heads of a K/V head
  int piece;
};

// Of every sequence.
struct SharedSequence {
  int common;          // keys that it begins with alike with the next one; 0: none that count
  int keys;            // of the prefix; 0: it shares none
  int first, members;  // of the prefix item: its sequences are [first, first + members)
  int row;             // of the prefix item, where the sequence's rows begin
  int team, rank;      // first sequence of the team, number of the item in it
  int team_size;       // items; of the team's first sequence
  int team_end;        // behind the last sequence; of the team's first sequence
  // Where results are among those of a K/V head, and how many pieces there are.
  int prefix_result, prefix_pieces;
  int own_result, own_pieces;
};

// Results that a K/V head has room for: the pieces of packed sequences, and of those that share a
// prefix one more each and one more for each prefix item; but no more than 4096 in all.
constexpr int kMostSharedResults = 4096;
template <typename Int>
ATT_FN constexpr Int shared_result_room(Int sequences, Int kv_heads) {
  const Int wanted = kMostPieces / kv_heads + sequences + sequences / 2;
  const Int most = kMostSharedResults / kv_heads;
  return wanted < most ? wanted : most;
}

// How long the list is that a K/V head has: as piece_item_count, with that room.
template <typename Int>
ATT_FN constexpr Int shared_item_count(Int all_queries, Int sequences, Int heads, Int kv_heads,
                                       Int tile) {
  const Int group = heads / kv_heads;
  return all_queries / (tile / 2) * group + group + sequences +
         shared_result_room(sequences, kv_heads);
}

// Rows of a sequence in a prefix item; 0: it takes no part, as an item has room for `tile` rows and
// a sequence that fills more than half of them leaves none for another.
ATT_FN constexpr int shared_rows(int group, int q_len, int tile) {
  return q_len > 0 && q_len <= tile / 2 && group * q_len <= tile / 2 ? group * q_len : 0;
}

// Puts sequences together, from `first` on as long as neighbours have keys in common; [0, end) are
// all. common(b): keys that b and b + 1 begin with alike, 0: none that count, as of end - 1;
// rows(b): of b in a prefix item, at most `tile` / 2. Writes what is known of the sharing into
// at(b), of sequences that share; of the others it writes nothing.
//
// A prefix item takes the next sequence as long as it has room and that does not read more: of m
// keys that n sequences share, (n - 1) * m are not read. A sequence that has far more in common
// with the next one than with the one before leaves the item and begins another.
template <typename Common, typename Rows, typename At>
ATT_FN void share_prefixes(int first, int end, int tile, const Common& common, const Rows& rows,
                           const At& at) {
  int start = first, members = 1, keys = 0, filled = rows(first);
  int team = -1, team_keys = 0, rank = 0;
  const auto close = [&](int count) {
    const int whole = whole_units(keys);
    if (count < 2 || whole < kLeastSharedKeys) {
      team = -1;
      return;
    }
    // A little more in common is not worth another walk through all of it.
    const bool joins = team >= 0 && whole >= team_keys && whole - team_keys <= team_keys / 8;
    if (!joins) {
      team = start;
      team_keys = whole;
      rank = 0;
    } else {
      ++rank;
    }
    int row = 0;
    for (int b = start; b < start + count; ++b) {
      SharedSequence& of = at(b);
      of.keys = team_keys;
      of.first = start;
      of.members = count;
      of.row = row;
      of.team = team;
      of.rank = rank;
      row += rows(b);
    }
    at(team).team_size = rank + 1;
    at(team).team_end = start + count;
  };
  const auto begin_with = [&](int b) {
    start = b;
    members = 1;
    keys = 0;
    filled = rows(b);
  };
  for (int b = first; b < end; ++b) {
    const int next = common(b);
    if (next <= 0) {
      close(members);
      return;
    }
    const int more = rows(b + 1);
    const int least = keys < next ? keys : next;
    if (filled + more > tile) {
      close(members);
      if (next < team_keys) team = -1;
      begin_with(b + 1);
      continue;
    }
    if (members > 1 && next / 2 > keys) {
      close(members - 1);
      team = -1;
      begin_with(b);
    } else if (members > 1 && static_cast<long long>(least) * members <
                                  static_cast<long long>(keys) * (members - 1)) {
      close(members);
      team = -1;
      begin_with(b + 1);
      continue;
    }
    keys = members == 1 || next < keys ? next : keys;
    filled += more;
    ++members;
  }
}

// Entry number `index` of those of sequence b: of the team that it leads, piece by piece, then of
// its own keys. `parts`: of the heads of a K/V head. Records are those of the whole batch.
ATT_FN SharedPieceItem shared_entry(const SharedSequence* records, int b, const SharedSequence& of,
                                    int parts, int index) {
  if (of.keys > 0 && of.team == b) {
    const int of_team = of.team_size * of.prefix_pieces;
    if (index < of_team) {
      int first = b;
      for (int rank = index % of.team_size; rank > 0; --rank) first += records[first].members;
      return {first, records[first].members, 0, 0, index / of.team_size};
    }
    index -= of_team;
  }
  const int item = index / of.own_pieces;
  return {b, 0, item / parts, item % parts, index % of.own_pieces};
}

}  // namespace att
