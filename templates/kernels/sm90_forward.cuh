// The sm90a forward kernel: one producer warp moves Q, K and V by TMA; warpgroups of 64 query rows
// each multiply with wgmma and do the softmax. Attune's Hopper scheme, docs/hopper.md: the
// structure is FlashAttention-3's (Shah et al. 2024); the steady loop has a frozen maximum, so its
// tiles do not depend on one another and products stay in flight over several of them.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cluster.cuh"
#include "templates/ptx/ldmatrix.cuh"
#include "templates/ptx/setmaxnreg.cuh"
#include "templates/ptx/wgmma.cuh"
#include "templates/tile/sm90_epilogue.cuh"
#include "templates/tile/sm90_pipeline.cuh"

namespace att {
namespace sm90 {

constexpr int kQFragments = plan::kQInRegisters ? kQkSteps : 1;

// A warpgroup of consumers: its rows' state, and the products on it. Register arrays are passed by
// reference, never kept here, so that each of them stays a plain local array.
struct Consumer {
  const ForwardParams& p;
  const SharedMemory& shared;
  int warpgroup;
  const TileStream& stream;

  // S = Q K^T for a piece of a tile, asynchronous.
  ATT_MEMBER void issue_qk(Scores& s, const unsigned (&q)[kQFragments][4], const Tile& tile,
                           int piece) const {
    using Product = Wgmma<kPieceKeys, kBf16, false>;
    const unsigned k = shuffle_from(wgmma_descriptor(shared.k(tile.at.stage()), kKvSlabBytes), 0);
    const unsigned q_rows = wgmma_descriptor(shared.q(warpgroup), kQSlabBytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kQkSteps; ++step) {
      const unsigned b =
          k + (step / 4 * kKvSlabBytes + piece * kPieceKeys * kRowBytes + step % 4 * 32) / 16;
      if constexpr (plan::kQInRegisters) {
        if (step == 0) Product::registers<false>(s, q[step], b);
        if (step != 0) Product::registers<true>(s, q[step], b);
      } else {
        const unsigned a = q_rows + (step / 4 * kQSlabBytes + step % 4 * 32) / 16;
        if (step == 0) Product::shared<false>(s, a, b);
        if (step != 0) Product::shared<true>(s, a, b);
      }
    }
    wgmma_commit();
  }

  // O += P V for a piece of a tile whose V has come, asynchronous.
  ATT_MEMBER void issue_pv(Output& o, const Probabilities& p, const Tile& tile, int piece) const {
    const unsigned v = shuffle_from(wgmma_descriptor(shared.v(tile.at.stage()), kKvSlabBytes), 0);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kPvSteps; ++step) {
      Wgmma<spec::kHeadDimV, kBf16, true>::registers<true>(
          o, p[step], v + (piece * kPieceKeys + step * 16) * kRowBytes / 16);
    }
    wgmma_commit();
  }

  ATT_MEMBER void load_q(unsigned (&q)[kQFragments][4]) const {
    const int lane = thread_index() % 32;
    const int row = thread_index() % kWarpgroupThreads / 32 * 16 + lane % 16;
#pragma unroll
    for (int step = 0; step < kQFragments; ++step) {
      ldmatrix_x4(q[step], swizzled(shared.q(warpgroup) + step / 4 * kQSlabBytes, row,
                                    step % 4 * 2 + lane / 16));
    }
  }
};

// One work item of one warpgroup: O and the row state of its 64 rows.
struct Attention {
  const Consumer& consumer;
  TileStream& stream;
  const Context& c;
  int row;       // this thread's first
  int lane_key;  // first key of this thread in a tile
  bool may_freeze;
  const unsigned (&q)[kQFragments][4];
  Output& o;
  RowState& rows;
  bool first = true;  // no piece was summed yet

  ATT_MEMBER Position position(const Tile& tile, int piece) const {
    return {row, tile.key + piece * kPieceKeys + lane_key};
  }

  ATT_MEMBER bool has_references() const {
    if constexpr (!spec::kHasMask) return true;
    const bool unset = (row < c.q_len && rows.maximum[0] == -infinity()) ||
                       (row + 8 < c.q_len && rows.maximum[1] == -infinity());
    return !named_barrier_any(warpgroup_barrier(consumer.warpgroup), kWarpgroupThreads, unset);
  }

  // The ordinary online softmax of a piece whose scores are there: P waits for its product.
  ATT_MEMBER void soften_running(Scores& s, Probabilities& p, const Tile& tile, int piece) {
    const Position at = position(tile, piece);
    wgmma_pin(s);
    softmax_running(c, s, rows, o, at, tile.is_full(piece), first,
                    may_freeze ? kFrozenOffset : 0.0f);
    pack(c, s, p, at);
    wgmma_pin(p);
    first = false;
  }

  // The same with the references as they are. `kRunning` products issued after the one that reads P
  // may still run when it is written.
  template <int kRunning>
  ATT_MEMBER void soften_frozen(Scores& s, Probabilities& p, const Tile& tile, int piece) {
    const Position at = position(tile, piece);
    wgmma_pin(s);
    softmax_frozen(c, s, rows, at, tile.is_full(piece));
    wgmma_wait<kRunning>();
    pack(c, s, p, at);
    wgmma_pin(p);
  }

  ATT_MEMBER void run() {
    Scores s[kPieces];
    Probabilities p;
    Tile tile;
    bool have = stream.next_live(tile, c.kv_len);
    if (!have) {
#pragma unroll
      for (int i = 0; i < spec::kHeadDimV / 2; ++i) o[i] = 0.0f;
    }
    while (have) {
      // With a running maximum, until each row has met a live key; nothing is in flight.
      Tile next;
      if (kPieces == 2 && tile.is_live(kPieces - 1)) {
        consumer.issue_qk(s[kPieces - 1], q, tile, kPieces - 1);
        consumer.issue_qk(s[0], q, tile, 0);
        wgmma_wait<1>();
        soften_running(s[kPieces - 1], p, tile, kPieces - 1);
        stream.wait_v(tile);
        if (may_freeze && has_references()) {
          have = advance(steady_two(s[0], s[kPieces - 1], p, tile, next), tile, next);
          continue;
        }
        consumer.issue_pv(o, p, tile, kPieces - 1);
        wgmma_wait<0>();
      } else {
        consumer.issue_qk(s[0], q, tile, 0);
        wgmma_wait<0>();
        stream.wait_v(tile);
      }
      stream.release_k(tile);
      if (tile.is_live(0)) {
        soften_running(s[0], p, tile, 0);
        if (kPieces == 1 && may_freeze && has_references()) {
          have = advance(steady_one(s[0], p, tile, next), tile, next);
          continue;
        }
        consumer.issue_pv(o, p, tile, 0);
        wgmma_wait<0>();
      }
      stream.release_v(tile);
      have = advance(stream.next(next, c.kv_len), tile, next);
    }
  }

  // To the next live tile when `found` says what `next` is; nothing is in flight.
  ATT_MEMBER bool advance(TileStream::Found found, Tile& tile, const Tile& next) {
    tile = next;
    if (!spec::kHasMask || found != TileStream::kDeadTile) return found == TileStream::kTile;
    stream.skip(tile);
    return stream.next_live(tile, c.kv_len);
  }

  // The steady loop, a tile in two pieces: while the exponentials of one are computed, PV of the
  // piece before it and QK of the piece after it run. On entry P of the tile's high piece waits for
  // its product, QK of the low piece is in flight and V is there. Returns what ended it, kEnd or a
  // dead tile `next`; then nothing is in flight.
  ATT_MEMBER TileStream::Found steady_two(Scores& low, Scores& high, Probabilities& p, Tile tile,
                                          Tile& next) {
    TileStream::Found found = stream.next(next, c.kv_len);
    while (found == TileStream::kTile) {
      consumer.issue_pv(o, p, tile, 1);
      consumer.issue_qk(high, q, next, 1);
      wgmma_wait<2>();
      stream.release_k(tile);
      soften_frozen<1>(low, p, tile, 0);
      // Never taken. Without an exit here ptxas (13.0) loses track of the product that is in flight
      // over the loop's back edge, and serialises all of them (C7514).
      if (c.kv_len < 0) {
        wgmma_wait<0>();
        return found;
      }

      consumer.issue_pv(o, p, tile, 0);
      consumer.issue_qk(low, q, next, 0);
      wgmma_wait<2>();
      soften_frozen<1>(high, p, next, 1);
      stream.release_v(tile);

      tile = next;
      stream.wait_v(tile);
      found = stream.next(next, c.kv_len);
    }
    consumer.issue_pv(o, p, tile, 1);
    wgmma_wait<1>();
    stream.release_k(tile);
    soften_frozen<0>(low, p, tile, 0);
    consumer.issue_pv(o, p, tile, 0);
    wgmma_wait<0>();
    stream.release_v(tile);
    return found;
  }

  // The steady loop, a tile in one piece: only PV of the tile before runs under its exponentials.
  // On entry P of `tile` waits for its product, and V of it is there.
  ATT_MEMBER TileStream::Found steady_one(Scores& s, Probabilities& p, Tile tile, Tile& next) {
    TileStream::Found found = stream.next(next, c.kv_len);
    while (found == TileStream::kTile) {
      consumer.issue_qk(s, q, next, 0);
      consumer.issue_pv(o, p, tile, 0);
      wgmma_wait<1>();
      stream.release_k(next);
      soften_frozen<0>(s, p, next, 0);
      stream.release_v(tile);
      tile = next;
      stream.wait_v(tile);
      found = stream.next(next, c.kv_len);
    }
    consumer.issue_pv(o, p, tile, 0);
    wgmma_wait<0>();
    stream.release_v(tile);
    return found;
  }
};

ATT_FN void consume(const ForwardParams& p, const TensorMap* o_map, const SharedMemory& shared,
                    int warpgroup, int cta_rank) {
  const int thread = thread_index() % kWarpgroupThreads;
  const bool leader = thread == 0;
  const int slice = cta_rank * kWarpgroups + warpgroup;  // of the cluster's rows
  TileStream stream(shared, warpgroup);
  const Consumer consumer{p, shared, warpgroup, stream};
  for (int n = 0;; ++n) {
    const int slot = n % kItemSlots;
    mbarrier_wait(shared.item_full(slot), n / kItemSlots & 1);
    const ItemSlot item = load_slot(shared.item(slot));
    if (item.index == kNoMoreItems) break;
    const Context c{p, item.b, item.h, item.h / (p.heads / p.kv_heads), p.q_len, p.kv_len};
    const int row = item.q0 + slice * kRows + thread / 32 * 16 + thread % 32 / 4;

    unsigned q[kQFragments][4];
    mbarrier_wait(shared.q_full(warpgroup), n & 1);
    if constexpr (plan::kQInRegisters) {
      consumer.load_q(q);
      if (thread % 32 == 0) mbarrier_arrive(shared.q_empty(warpgroup));
    }
    Output o;
    RowState rows{{-infinity(), -infinity()}, {0.0f, 0.0f}, {0.0f, 0.0f}};
    stream.begin(item, p.kv_len);
    Attention{consumer, stream, c,   row, thread % 4 * 2, plan::kFrozenMax && item.redo == 0,
              q,        o,      rows}
        .run();
    if constexpr (!plan::kQInRegisters && plan::kOwnOutputBuffer) {
      if (thread % 32 == 0) mbarrier_arrive(shared.q_empty(warpgroup));
    }

    const bool overflowed = normalise(c, o, rows, row);
    if (leader) tma_store_wait_read();
    bool store = item.redo == 0 || (item.redo >> slice & 1) != 0;
    const bool any_overflowed =
        named_barrier_any(warpgroup_barrier(warpgroup), kWarpgroupThreads, overflowed);
    if (plan::kFrozenMax && item.redo == 0 && any_overflowed) {
      store = false;
      if (kCluster == 1 ? thread == 0 : thread < kCluster) {
        cluster_or(overflow_word(shared, slot), kCluster == 1 ? cta_rank : thread, 1u << slice);
      }
    }
    if (store) {
      stage_output(o, shared.o(warpgroup), warpgroup);
      named_barrier_sync(warpgroup_barrier(warpgroup), kWarpgroupThreads);
      if (leader) store_output(o_map, shared.o(warpgroup), c, item.q0 + slice * kRows);
      store_lse(c, rows, row);
    }
    if constexpr (!plan::kOwnOutputBuffer) {
      if (leader) {
        tma_store_wait_read();
        mbarrier_arrive(shared.q_empty(warpgroup));
      }
    }
    warp_arrive(shared.item_empty(slot));
  }
  if (leader) tma_store_wait();
}

}  // namespace sm90
}  // namespace att

ATT_KERNEL __launch_bounds__(att::sm90::kThreads, 1)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT att::ForwardParams p, ATT_GRID_CONSTANT att::TensorMap q_map,
                    ATT_GRID_CONSTANT att::TensorMap k_map, ATT_GRID_CONSTANT att::TensorMap v_map,
                    ATT_GRID_CONSTANT att::TensorMap o_map) {
  using namespace att;
  using namespace att::sm90;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const SharedMemory shared{shared_address(shared_memory)};
  const int cta_rank = kCluster > 1 ? static_cast<int>(cluster_cta_rank()) : 0;
  if (thread_index() == 0) {
    init_barriers(shared);
    tma_prefetch_map(&q_map);
    tma_prefetch_map(&k_map);
    tma_prefetch_map(&v_map);
    tma_prefetch_map(&o_map);
  }
  sync_threads();
  if constexpr (kCluster > 1) cluster_sync();

  const int warpgroup = thread_index() / kWarpgroupThreads - 1;
  if (warpgroup < 0) {
    registers_release_to<kProducerRegisters>();
    if (thread_index() < 32) produce(p, &q_map, &k_map, &v_map, shared, cta_rank);
  } else {
    registers_acquire_to<kConsumerRegisters>();
    consume(p, &o_map, shared, warpgroup, cta_rank);
  }
  // A CTA's shared memory must outlive what the others send to it.
  if constexpr (kCluster > 1) cluster_sync();
}
