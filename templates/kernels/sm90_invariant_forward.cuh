// The sm90a forward kernel of batch-invariant specs: many queries, with the additions, and so the
// bits, of templates/kernels/invariant_forward.cuh, which is for few.
//
// As templates/kernels/sm90_forward.cuh a scheduler warp finds work and moves Q by TMA, a loader
// warp K and V, and warpgroups of 64 query rows multiply with wgmma. But tiles come in the order of
// chains (templates/tile/fixed_order.cuh): a warpgroup makes a chain of a piece in its
// accumulators, folds it into the piece's registers, and pieces into shared memory. wgmma and
// mma.sync add up 16 products and an accumulator in the same way on Hopper.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/setmaxnreg.cuh"
#include "templates/ptx/wgmma.cuh"
#include "templates/tile/sm90_fixed_feed.cuh"
#include "templates/tile/sm90_fixed_rows.cuh"
#include "templates/tile/sm90_output_rows.cuh"

namespace att {
namespace sm90 {

static_assert(!plan::kQInRegisters && !plan::kPInShared && !plan::kFrozenMax && !plan::kPingPong &&
              !plan::kTmaStore);

// A warpgroup of consumers. The register arrays are the caller's locals, so that the compiler keeps
// each of them in registers.
struct FixedConsumer {
  const ForwardParams& p;
  const SharedMemory& shared;
  const int warpgroup;
  Scores& s;
  Probabilities& probabilities;
  Output& o;
  Output& piece;
  FoldedPieces folded_pieces;

  RingPosition position = {};  // of the next tile
  Statistics rows, of_piece;
  // The work item.
  int b, h, h_kv;
  Sequence sequence;
  int row;  // this thread's first
  Tile tile;

  ATT_MEMBER Context context() const { return context_of(p, sequence, b, h, h_kv); }

  // ---- Products, asynchronous.

  ATT_MEMBER void issue_qk(const RingPosition& at) {
    const unsigned k = wgmma_descriptor(shared.k(0), kKvSlabBytes) + at.stage * kKBytes / 16;
    wgmma_fence();
    plan::multiply_qk<2, kKvSlabBytes / 16, 2, kQSlabBytes / 16>(
        s, wgmma_descriptor(shared.q(warpgroup), kQSlabBytes), k);
    wgmma_commit();
  }
  ATT_MEMBER void issue_pv(const RingPosition& at) {
    const unsigned v = wgmma_descriptor(shared.v(0), kKvSlabBytes) + at.stage * kVBytes / 16;
    wgmma_fence();
    plan::multiply_pv<kRowBytes, 4 * kRowBytes, 2, kQSlabBytes / 16>(o, probabilities, v);
    wgmma_commit();
  }

  // ---- Tiles.

  // Waits for the next tile's K, and issues its product.
  ATT_MEMBER Tile take() {
    mbarrier_wait(shared.k_full(position.stage), position.parity);
    issue_qk(position);
    Tile next = {position, 0, 0};
    position.advance();
    position = uniform(position);
    return next;
  }
  ATT_MEMBER void look(Tile& at) const {
    const TileInfo info = load_tile_info(shared.tile(at.at.stage));
    at.key = info.tile * kTileKv;
    at.flags = info.flags;
  }
  // The product with K is done.
  ATT_MEMBER void release_k(const Tile& at) const {
    warp_arrive(shared.k_empty(at.at.stage));
    if ((at.flags & kItemEnds) != 0) warp_arrive(shared.q_empty(warpgroup));
  }
  ATT_MEMBER void wait_v(const Tile& at) const {
    mbarrier_wait(shared.v_full(at.at.stage), at.at.parity);
  }

  // From a tile's products, which are there, to its P. The product with the V of the tile before
  // may still run; then it does no longer. A warp raises its rows' references alone, but the wait
  // is the warpgroup's: O is not touched before it.
  ATT_MEMBER void soften(const Tile& at) {
    const Context c = context();
    wgmma_pin(s);
    finish_scores(c, s, row, at.key, (at.flags >> (kFullShift + warpgroup) & 1) != 0);
    const float tops[2] = {top_of<0, kPvSteps>(s, 0), top_of<0, kPvSteps>(s, 1)};
    const bool rises = !all_lanes(!is_raised(tops[0], rows.reference[0]) &&
                                  !is_raised(tops[1], rows.reference[1]));
    if (!rises) {
      exponentiate();
      wgmma_wait<0>();
    } else {
      float rescale[2];
      const bool rises_within = !raise_at_first(rescale);
      if (!rises_within) exponentiate();
      wgmma_wait<0>();
      wgmma_pin(o);
      if (rises_within) {
        visit(at);
      } else {
        scale_rows(o, rescale);
      }
      wgmma_pin(o);
    }
#pragma unroll
    for (int step = 0; step < kPvSteps; ++step) pack_step(s, step, probabilities[step]);
    wgmma_pin(probabilities);
  }

  ATT_MEMBER void exponentiate() {
#pragma unroll
    for (int step = 0; step < kPvSteps; ++step) exponentiate_step(s, step, rows);
  }

  // Raises references that a tile's scores ask for, and what O is to be multiplied by; false, and
  // nothing is raised, where a step behind the first one asks.
  ATT_MEMBER bool raise_at_first(float (&rescale)[2]) {
    float first[2], later[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      first[half] = quad_max(top_of<0, 1>(s, half));
      later[half] = top_of<1, kPvSteps - 1>(s, half);
    }
    bool again = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float before = rows.reference[half];
      again |= is_raised(later[half], is_raised(first[half], before) ? first[half] : before);
    }
    if (!all_lanes(!again)) return false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      rescale[half] = raise_row(rows.reference[half], rows.sum[half], first[half]);
    }
    return true;
  }

  // Does such a tile, and leaves exponentials of zero for the warpgroup's product.
  ATT_MEMBER void visit(const Tile& at) {
    wait_v(at);
    visit_by_steps(s, rows, o, shared.v(at.at.stage));
    sync_warp();  // all lanes have read V when lane 0 gives it back
#pragma unroll
    for (int i = 0; i < kTileKv / 2; ++i) s[i] = 0.0f;
  }

  // ---- A work item.

  ATT_MEMBER void begin_chain() {
    rows.clear();
#pragma unroll
    for (int i = 0; i < spec::kHeadDimV / 2; ++i) o[i] = 0.0f;
  }

  // One chain of a piece.
  ATT_MEMBER void run_chain() {
    begin_chain();
    tile = take();
    look(tile);
    wgmma_wait<0>();
    release_k(tile);
    soften(tile);
    wait_v(tile);
    while ((tile.flags & kChainEnds) == 0) {
      Tile next = take();
      issue_pv(tile.at);
      look(next);
      wgmma_wait<1>();
      release_k(next);
      soften(next);
      warp_arrive(shared.v_empty(tile.at.stage));
      tile = next;
      wait_v(tile);
    }
    issue_pv(tile.at);
    wgmma_wait<0>();
    wgmma_pin(o);
    warp_arrive(shared.v_empty(tile.at.stage));
    rows.sum[0] = quad_sum(rows.sum[0]);
    rows.sum[1] = quad_sum(rows.sum[1]);
  }

  // Item n; false: there is none.
  ATT_MEMBER bool run(int n) {
    const int slot = n % kItemSlots;
    mbarrier_wait(shared.item_full(slot), n / kItemSlots & 1);
    const ItemSlot item = load_slot(shared.item(slot));
    warp_arrive(shared.item_empty(slot));
    if (item.index == kNoMoreItems) return false;
    const int thread = thread_index() % kWarpgroupThreads;
    b = item.b;
    h = item.h;
    h_kv = item.h_kv;
    sequence = uniform(sequence_of(p, b));
    row = item.q0 + warpgroup * kRows + thread / 32 * 16 + thread % 32 / 4;
    mbarrier_wait(shared.q_full(warpgroup), n & 1);
    folded_pieces.clear();
    do {
      of_piece.clear();
#pragma unroll
      for (int i = 0; i < spec::kHeadDimV / 2; ++i) piece[i] = 0.0f;
      do {
        run_chain();
        fold_rows(piece, of_piece, o, rows);
      } while ((tile.flags & kPieceEnds) == 0);
      folded_pieces.fold(piece, of_piece);
      if ((tile.flags & kItemEnds) == 0) folded_pieces.keep(piece);
    } while ((tile.flags & kItemEnds) == 0);
    store();
    return true;
  }

  // O and LSE.
  ATT_MEMBER void store() {
    const Context c = context();
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      factor[half] = finish_row(c, of_piece.reference[half], of_piece.sum[half]);
      const int at = row + 8 * half;
      if (p.lse != nullptr && thread_index() % 4 == 0 && at < c.q_len) {
        p.lse[lse_offset(p, sequence, h, at)] =
            log_sum_exp(of_piece.reference[half], of_piece.sum[half]);
      }
    }
    scale_rows(piece, factor);
    store_output_rows(piece, c, row);
  }
};

ATT_FN void consume_in_order(const ForwardParams& p, const SharedMemory& shared, int warpgroup) {
  Scores s;
  Probabilities probabilities;
  Output o, piece;
  FixedConsumer consumer{
      p, shared, warpgroup, s, probabilities, o, piece, FoldedPieces(shared, warpgroup)};
  for (int n = 0; consumer.run(n); ++n) {
  }
}

}  // namespace sm90
}  // namespace att

ATT_KERNEL __launch_bounds__(att::sm90::kThreads, 1)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT att::KernelParams p, ATT_GRID_CONSTANT att::TensorMap q_map,
                    ATT_GRID_CONSTANT att::TensorMap k_map, ATT_GRID_CONSTANT att::TensorMap v_map,
                    ATT_GRID_CONSTANT att::TensorMap) {
  using namespace att;
  using namespace att::sm90;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const SharedMemory shared{shared_address(shared_memory)};
  if (thread_index() == 0) {
    init_barriers(shared);
    tma_prefetch_map(&q_map);
    tma_prefetch_map(&k_map);
    tma_prefetch_map(&v_map);
  }
  if constexpr (plan::kHasLaunchInFront) wait_for_launches_before();
  sync_threads();

  const int warpgroup = shuffle_from(thread_index() / kWarpgroupThreads, 0) - 1;
  if (warpgroup < 0) {
    registers_release_to<kProducerRegisters>();
    const int warp = shuffle_from(thread_index() / 32, 0);
    if (warp == 0) load_in_order(p, &k_map, &v_map, shared);
    if (warp == 1) schedule_in_order(p, &q_map, shared);
  } else {
    registers_acquire_to<kConsumerRegisters>();
    consume_in_order(p, shared, warpgroup);
  }
}
