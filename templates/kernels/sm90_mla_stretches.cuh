// Attention forward for packed queries of many heads whose V is the first columns of K: the mla
// family's kernel for Hopper, whose CTAs take stretches of all keys (templates/tile/stretches.cuh).
//
// What a piece costs beside its keys is hidden where it can be: what comes after a piece is found
// while its own first keys are on their way, and the next one's are brought while its results are
// written from registers.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/fence.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/piece_results.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/sm90_mla_loop.cuh"
#include "templates/tile/sm90_mla_results.cuh"
#include "templates/tile/stretches.cuh"

namespace att {

// In shared memory, as the loops have no registers for them: the piece that the CTA is with, the
// next one, and where that was found. One without pieces is none.
struct TakenPieces {
  StretchPiece of[2];
  StretchPlace place;
};
constexpr int kTakenOffset =
    kTableOffset + (spec::kHasMask ? static_cast<int>(sizeof(SmallTable)) : 0);
static_assert(kTakenOffset % 8 == 0 &&
              kTakenOffset + static_cast<int>(sizeof(TakenPieces)) <= plan::kSharedBytes);

// `map`: of the keys, kByMap.
template <bool kByMap>
ATT_FN void take_stretches(const ListKernelParams& params, const TensorMap* map) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned shared = shared_address(shared_memory);
  SmallTable& table = *reinterpret_cast<SmallTable*>(shared_memory + kTableOffset);
  TakenPieces& taken = *reinterpret_cast<TakenPieces*>(shared_memory + kTakenOffset);
  int& flag = *reinterpret_cast<int*>(shared_memory + kFlagOffset);
  LineSums& sums = *reinterpret_cast<LineSums*>(shared_memory);
  const int group = warp_index() / 4;
  if (thread_index() == 0) init_slab_barriers<kByMap>(shared);

  const int lines = lines_of_head(params), all = lines * params.kv_heads;
  const int stretches = stretches_of_line(all);
  int parity = 0;  // of pairs
#pragma unroll 1
  for (int i = block_index(); i < stretches * all; i += block_count()) {
    const Line line = {i % all / lines, i % all % lines, lines};
    Units units;
    PagedKey ahead;
    HalfOfO half;
    RowTotals totals;
    // Each piece is found, and what is known of it brought, before the one in front is attended to
    // or delivered; there is one place for each of these, as instructions come from memory too.
#pragma unroll 1
    for (int piece = 0;; ++piece) {
      StretchPiece& next = taken.of[piece % 2];
      const StretchPiece& current = taken.of[1 - piece % 2];
      if (piece == 0 || warp_index() == 0) {
        Stretch stretch(params, i / all, stretches, line);
        if (piece > 0) stretch.go_on_from(taken.place);
        StretchPiece found;
        if (!stretch.next(sums, found)) found.piece.pieces = 0;
        if (thread_index() == 0) {
          next = found;
          taken.place = stretch.place_now();
        }
      }
      cp_async_wait<0>();  // of what is committed: Q
      fence_shared_for_async();
      sync_threads();
      if (piece > 0) {
        const Item item = current.piece.item;
        const PieceKeys keys(units, table, item.sequence.kv_len);
        half.clear();
        RowsOfP rows(params, item);
        attend<kByMap>({params, map, item, shared, ahead}, keys, rows, half, shared, parity);
        parity ^= keys.pairs & 1;
        const int to = group == 0 ? kSecondReferenceOffset : kFirstReferenceOffset;
        const int from = group == 0 ? kFirstReferenceOffset : kSecondReferenceOffset;
        rows.leave_sum(shared + to);
        sync_threads();  // sums are there, and all have left Q and keys
        totals = rows.totals(shared + from);
      }
      const bool is_of_many = piece > 0 && current.piece.pieces > kFewPieces;
      if (is_of_many) {
        float* const outputs = reinterpret_cast<float*>(shared_memory);
        const Parts<kRows, kPartStride> part = {outputs, outputs + kRows * kPartStride, 1};
        half.store(part, group);
        store_totals(part, totals, group);
        sync_threads();
        wait_for_launches_before();  // arrivals are counted from zero
        const PieceOfItem own = current.piece;
        deliver(params, own, part, *reinterpret_cast<ItemWeights*>(shared_memory + kWeightsOffset),
                flag);
        half.clear();              // or it would be kept meanwhile
        fence_shared_for_async();  // the tensor unit writes where results were
        sync_threads();
      }
      const bool goes_on = next.piece.pieces > 0;
      if (goes_on) {
        const Item item = next.piece.item;
        load_rows_of_q(params, item, shared);
        cp_async_commit();
        units = units_of_piece(params, item, next.units, table);
        const PieceKeys keys(units, table, item.sequence.kv_len);
        SlabCopies<kByMap> copies = {params, map, item, shared, {-1, 0}};
        begin_pairs(copies, keys);
        ahead = copies.ahead;
      }
      if (piece > 0 && !is_of_many) {
        const PieceOfItem own = current.piece;
        deliver_rows(params, own, half, totals, group, flag);
      }
      sync_threads();  // all are done with the piece, or have begun the first one
      if (!goes_on) break;
    }
  }
  wait_for_launches_before();  // none ends before the one in front
}

// One for keys that the tensor unit brings, and one for others: with the loops of both a kernel has
// twice the instructions, which come from memory.
ATT_KERNEL __launch_bounds__(kThreads, 1)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT ListKernelParams params, ATT_GRID_CONSTANT TensorMap k_map) {
  take_stretches<true>(params, &k_map);
}

ATT_KERNEL __launch_bounds__(kThreads, 1)
    ATT_JOIN(ATT_KERNEL_NAME, _copies)(ATT_GRID_CONSTANT ListKernelParams params) {
  take_stretches<false>(params, nullptr);
}

}  // namespace att
