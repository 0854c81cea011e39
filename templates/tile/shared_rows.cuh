// What a CTA does where sequences may share a prefix: the rows of an item, which may be of several
// sequences.
#pragma once

#include "templates/kernels/head.cuh"
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

}  // namespace att
