// What a CTA does where sequences may share a prefix: the rows of an item, which may be of several
// sequences, the units of keys of its piece, and which results become whose rows of O.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/arrive.cuh"
#include "templates/tile/decode_warp.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/shared_lists.cuh"

namespace att {

constexpr int kMostMembers = kRows;  // a sequence has a row at least
static_assert(kRows <= 32);

// A row of an item, with coordinates of its own sequence.
struct SharedRow {
  int b, h, q, q_len, kv_len, q_first;
  int member;

  ATT_MEMBER Context context(const ForwardParams& p, int h_kv) const {
    return {p, b, h, h_kv, q_len, kv_len, q_first, 0};
  }
};

// The rows that an item has of a sequence, [first_row, first_row + rows), and where all results of
// these rows are among those of the K/V head: of pieces of the prefix, whose item has them from
// prefix_row on, then of pieces of the sequence's own keys.
struct SharedMember {
  int b, h0, h1, q0, q1;
  Sequence sequence;
  int first_row, rows;
  int prefix_row, prefix_result, prefix_pieces;
  int own_result, own_pieces;

  ATT_MEMBER int results() const { return prefix_pieces + own_pieces; }
  ATT_MEMBER Item item(int h_kv) const { return {b, h_kv, h0, h1, q0, q1, sequence}; }
};

struct SharedTable {
  SharedRow rows[kRows];
  SharedMember members[kMostMembers];
  int row_count;
  bool is_last[kMostMembers];
};

// The same for all threads of the CTA.
struct SharedWork {
  int members, rows, h_kv;
  int begin, end;  // keys of all pieces together
  int piece, pieces;
  int result;  // of this piece, of the K/V head's
  bool is_prefix;
};

// The whole CTA calls it. Whatever another thread may have made of lengths since they were listed,
// no row leaves the item, and no sequence its tensors.
ATT_FN SharedWork shared_work(const PackedParams& p, int index, SharedTable& table) {
  const SharedPieceItem listed = shared_items(p)[index / p.kv_heads];
  SharedWork work = {};
  if (listed.sequence < 0) return work;
  work.h_kv = index % p.kv_heads;
  work.is_prefix = listed.members > 0;
  work.members = work.is_prefix ? min_i32(listed.members, kMostMembers) : 1;
  const int group = p.heads / p.kv_heads;
  if (warp_index() == 0) {
    const int lane = lane_index();
    SharedMember own = {};
    if (lane < work.members) {
      own.b = listed.sequence + lane;
      own.sequence = sequence_of(p, own.b);
      const int q_len = own.sequence.q_len;
      const SharedSequence of = shared_sequences(p)[own.b];
      own.prefix_row = of.row;
      own.prefix_result = of.prefix_result;
      own.prefix_pieces = of.prefix_pieces;
      own.own_result = of.own_result;
      own.own_pieces = of.own_pieces;
      if (work.is_prefix) {
        own.h0 = work.h_kv * group;
        own.h1 = own.h0 + group;
        own.q1 = q_len;
      } else {
        const PackedTiles<int> grid =
            packed_tiles(p.heads, p.kv_heads, max_i32(q_len, 1), plan::kTileQ);
        if (listed.tile < tile_count(q_len, plan::kTileQ) && listed.part < grid.head_parts) {
          const Item item = item_of(p, own.sequence, grid.heads_per_item, own.b, work.h_kv,
                                    listed.part, listed.tile);
          own.h0 = item.h0;
          own.h1 = item.h1;
          own.q0 = item.q0;
          own.q1 = item.q1;
          own.own_result += (listed.tile * grid.head_parts + listed.part) * of.own_pieces;
        }
      }
    }
    const int queries = own.q1 - own.q0;
    const int claimed = min_i32((own.h1 - own.h0) * min_i32(queries, kRows), kRows);
    const int up_to = sum_up_to_lane(claimed);
    own.first_row = min_i32(up_to - claimed, kRows);
    own.rows = min_i32(claimed, kRows - own.first_row);
    // Where the prefix item has them, which is not here.
    own.prefix_row = min_i32(own.prefix_row, kRows - own.rows);
    if (lane < work.members) {
      table.members[lane] = own;
      for (int r = 0; r < own.rows; ++r) {
        table.rows[own.first_row + r] = {own.b,
                                         own.h0 + r / queries,
                                         own.q0 + r % queries,
                                         own.sequence.q_len,
                                         own.sequence.kv_len,
                                         own.sequence.q_first,
                                         lane};
      }
    }
    if (lane == 31) table.row_count = min_i32(up_to, kRows);
  }
  sync_threads();
  work.rows = table.row_count;
  const SharedMember& first = table.members[0];
  const int keys = shared_sequences(p)[listed.sequence].keys;
  work.begin = work.is_prefix ? 0 : keys;
  work.end = work.is_prefix ? keys : first.sequence.kv_len;
  work.piece = listed.piece;
  work.pieces = work.is_prefix ? first.prefix_pieces : first.own_pieces;
  work.result = (work.is_prefix ? first.prefix_result : first.own_result) + listed.piece;
  return work;
}

// Queries that are read from shared memory at every step: of 32 wide rows registers have no room
// for the fragments.
struct QueriesInShared {
  unsigned address;

  ATT_MEMBER void keep(unsigned shared) {
    const int lane = lane_index();
    address = shared + RowLayout<kDimQk>::offset(down_row(lane), down_unit(lane));
  }
};
ATT_FN void multiply_queries(float (&s)[kBlocks][plan::kStepKeys / 8][4],
                             const QueriesInShared& queries, unsigned stage, int lane) {
  using Layout = RowLayout<kDimQk>;
  const auto fragment = [&](unsigned(&a)[4], int m, int k) {
    ldmatrix_x4(a, Layout::step(queries.address, 2 * k) + m * 16 * Layout::kRowBytes);
  };
  product_qk<kBlocks, plan::kStepKeys, kDimQk, kDimQk / 16>(
      s, fragment, stage + Layout::offset(across_row(lane), across_unit(lane)));
}

template <bool kInRegisters>
struct QueriesOf {
  using Type = QueriesInShared;
};
template <>
struct QueriesOf<true> {
  using Type = Cache::Queries<kBlocks, kDimQk>;
};

// The rows of a lane, as a warp's part asks for them.
struct SharedLaneRows {
  using Queries = QueriesOf<plan::kQueriesInRegisters>::Type;
  const ForwardParams& p;
  const SharedTable& table;
  int h_kv, rows;
  int index[kBlocks][2];

  // Rows behind the last one act as it.
  ATT_MEMBER SharedLaneRows(const ForwardParams& params, const SharedTable& from,
                            const SharedWork& work)
      : p(params), table(from), h_kv(work.h_kv), rows(work.rows) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        index[m][half] = min_i32(16 * m + lane_index() / 4 + 8 * half, rows - 1);
      }
    }
  }
  ATT_MEMBER int count() const { return rows; }
  ATT_MEMBER Context context(int m, int half) const {
    return table.rows[index[m][half]].context(p, h_kv);
  }
  ATT_MEMBER int query(int m, int half) const { return table.rows[index[m][half]].q; }
};

// Starts the copy of the item's queries, rows behind the last as zeros.
ATT_FN void load_shared_q(const ForwardParams& p, const SharedTable& table, int rows,
                          unsigned shared) {
  using Layout = RowLayout<kDimQk>;
#pragma unroll 1
  for (int i = thread_index(); i < kRows * Layout::kUnits; i += kThreads) {
    const int row = i / Layout::kUnits, unit = i % Layout::kUnits;
    const bool valid = row < rows && unit * 8 < spec::kHeadDimQk;
    const SharedRow& of = table.rows[valid ? row : 0];
    const Sequence sequence = {of.q_len, of.kv_len, 0, of.q_first, 0};
    cp_async_16_or_zero(shared + Layout::offset(row, unit),
                        static_cast<const char*>(p.q) +
                            2 * (query_offset(sequence, p.q_stride, of.h, of.q) + unit * 8),
                        valid);
  }
}

// ---- Units of keys, as templates/tile/pieces.cuh has them.

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

// ---- Results.

// Those of a K/V head, row by row.
struct SharedResults {
  float* outputs;
  float* statistics;

  ATT_MEMBER SharedResults(const PackedParams& p, int h_kv) {
    const int room = shared_result_room(p.batch, p.kv_heads);
    const long long first = static_cast<long long>(h_kv) * room * kRows;
    const long long all = static_cast<long long>(p.kv_heads) * room * kRows;
    outputs = p.pieces.rows + first * spec::kHeadDimV;
    statistics = p.pieces.rows + all * spec::kHeadDimV + 2 * first;
  }
  ATT_MEMBER float* output(int result, int row) const {
    return outputs + (static_cast<long long>(result) * kRows + row) * spec::kHeadDimV;
  }
  ATT_MEMBER float* statistic(int result, int row) const {
    return statistics + 2 * (static_cast<long long>(result) * kRows + row);
  }
};

ATT_FN int* shared_arrivals(const PackedParams& p, const SharedMember& member, int h_kv) {
  return p.pieces.arrivals + h_kv * shared_result_room(p.batch, p.kv_heads) + member.own_result;
}

ATT_FN void write_shared_output(const ForwardParams& p, const SharedRow& of, int h_kv, int column,
                                const FourFloats& o, float reference, float sum) {
  const Sequence sequence = {of.q_len, of.kv_len, 0, of.q_first, 0};
  const float factor = finish_row(of.context(p, h_kv), reference, sum);
  unsigned* const to = reinterpret_cast<unsigned*>(
      static_cast<char*>(p.o) + 2 * (query_offset(sequence, p.o_stride, of.h, of.q) + column));
  to[0] = pack_2<spec::kDType>(o.x[0] * factor, o.x[1] * factor);
  to[1] = pack_2<spec::kDType>(o.x[2] * factor, o.x[3] * factor);
  if (p.lse != nullptr && column == 0) {
    p.lse[statistic_offset(p, sequence, of.h) + of.q] = log_sum_exp(reference, sum);
  }
}

// Calls f(row, column) of every fourth column of rows [first, first + count), each from one thread.
template <typename F>
ATT_FN void for_each_four_of_rows(int first, int count, const F& f) {
  constexpr int kFours = spec::kHeadDimV / 4;
#pragma unroll 1
  for (int i = thread_index(); i < count * kFours; i += kThreads) {
    f(first + i / kFours, i % kFours * 4);
  }
}

constexpr int kMostResults = 2 * plan::kPieces;  // of a row: of a prefix, and of own keys
using ResultWeights = Weights<kMostResults, kRows>;

// O and LSE of the rows whose members are marked, from all results of them, those of the prefix
// first: the order depends on nothing but how many there are. The whole CTA calls it.
ATT_FN void merge_results(const PackedParams& p, const SharedTable& table, const SharedWork& work,
                          ResultWeights& weights) {
  const SharedResults results(p, work.h_kv);
  const auto result_of = [&](const SharedMember& member, int i) {
    return i < member.prefix_pieces ? member.prefix_result + i
                                    : member.own_result + i - member.prefix_pieces;
  };
  const auto row_of = [&](const SharedMember& member, int row, int i) {
    return row - member.first_row + (i < member.prefix_pieces ? member.prefix_row : 0);
  };
  const int lane = lane_index();
#pragma unroll 1
  for (int row = warp_index(); row < work.rows; row += plan::kWarps) {
    const int at = table.rows[row].member;
    if (!table.is_last[at]) continue;
    const SharedMember& member = table.members[at];
    const int count = member.results();
    const auto statistic = [&](int i) {
      return results.statistic(result_of(member, i), row_of(member, row, i));
    };
    float reference = -infinity();
#pragma unroll 1
    for (int i = lane; i < count; i += 32) reference = math_max(reference, statistic(i)[0]);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      reference = math_max(reference, shuffle_xor(reference, distance));
    }
    float sum = 0.0f;
#pragma unroll 1
    for (int i = lane; i < count; i += 32) {
      const float weight = math_exp2(statistic(i)[0] - finite(reference));
      weights.of[row][i] = weight;
      sum += weight * statistic(i)[1];
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += shuffle_xor(sum, distance);
    if (lane == 0) {
      weights.reference[row] = reference;
      weights.sum[row] = sum;
    }
  }
  sync_threads();
  for_each_four_of_rows(0, work.rows, [&](int row, int column) {
    const int at = table.rows[row].member;
    if (!table.is_last[at]) return;
    const SharedMember& member = table.members[at];
    const int count = member.results();
    FourFloats merged = {};
#pragma unroll 16
    for (int i = 0; i < count; ++i) {
      const auto o = *reinterpret_cast<const FourFloats*>(
          results.output(result_of(member, i), row_of(member, row, i)) + column);
      const float weight = weights.of[row][i];
#pragma unroll
      for (int j = 0; j < 4; ++j) merged.x[j] += weight * o.x[j];
    }
    write_shared_output(p, table.rows[row], work.h_kv, column, merged, weights.reference[row],
                        weights.sum[row]);
  });
}

}  // namespace att
