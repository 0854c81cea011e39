// The sm90a forward kernel: a scheduler warp finds work and moves Q by TMA, a loader warp K and V
// (three where rows are copied), and under some masks a third looks at a few scores of the first
// item; warpgroups of 64 query rows each multiply with wgmma and do the softmax. Attune's Hopper
// scheme, docs/hopper.md: the structure is FlashAttention-3's (Shah et al. 2024); the steady loop
// has a fixed reference, so its tiles do not depend on one another and products stay in flight over
// several of them.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cluster.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/ldmatrix.cuh"
#include "templates/ptx/setmaxnreg.cuh"
#include "templates/tile/sm90_consumer_ways.cuh"
#include "templates/tile/sm90_key_results.cuh"
#include "templates/tile/sm90_page_rows.cuh"

namespace att {
namespace sm90 {

// Whether a steady loop may end before the item does.
constexpr bool kSteadyStops = spec::kHasMask || kScoreVariesByKey;

// With kSharesLast K of a tile in one piece is given back in one place, as soon as its scores are
// there.
constexpr bool kReleasesKFirst = kSharesLast && kPieces == 1;

// A warpgroup of consumers.
struct Consumer : ConsumerWays {
  // ---- A work item.

  // Takes item n. With Q in registers, also issues the QK products of its first tile. (Of whatever
  // is in the stage when there is none: ptxas must see the same products in flight on every path.)
  // False when there is no item.
  ATT_MEMBER bool begin(int n) {
    const int slot = n % kItemSlots;
    mbarrier_wait(shared.item_full(slot), n / kItemSlots & 1);
    const ItemSlot item = load_slot(shared.item(slot));
    const bool more = item.index != kNoMoreItems;
    if (more) {
      const int thread = thread_index() % kWarpgroupThreads;
      b = item.b;
      h_kv = item.h_kv;
      if constexpr (spec::kIsPacked) packed = uniform(sequence_of(p, b));
      const Context of_item = context_of(p, sequence(), b, item.h, h_kv);
      const Slice own = slice_of(of_item, item.q0, slice, part_of_warp());
      h = own.h;
      row = own.row + thread / 32 * 16 + thread % 32 / 4;
      may_freeze = may_fail(item.redo);
      if constexpr (kHasSecondWay) {
        const int failures = kHints ? item.redo | item.redo >> kLearnedShift : item.redo;
        // Any warpgroup's count: it makes all do the item again, and more are to come.
        const bool failed = (failures & kAllSlices) != 0;
        if constexpr (kAsksAtOnce) {
          if (n == 1 && any_thread((load_shared_4(failed_word(shared)) & kAllSlices) != 0))
            way = kSecondWay;
        }
        if constexpr (!kTeaches) way = kUnknown;
        way = failed ? kSecondWay : way;
        fixed = kConstantReference && may_freeze && way <= kFirstWay;
        // Not rows past q_len, whose scores are 0; but they hear of the others'.
        const bool has_rows = slice_of(of_item, item.q0, slice).row < sequence().q_len;
        probes = kProbes && may_freeze && way == kUnknown && (has_rows || (kMeets && n == 0));
        is_first_item = n == 0;  // which item comes later may be chance
        if constexpr (kWaitsForOthers) say_looked(is_first_item && !has_rows);
        way = probes && has_rows ? kFirstWay : way;
      }
      first = true;
      mbarrier_wait(shared.q_full(warpgroup), n & 1);
      if constexpr (plan::kQInRegisters) {
        const int q_row = thread / 32 * 16 + thread % 16;
#pragma unroll
        for (int step = 0; step < kQFragments; ++step) {
          ldmatrix_x4(q[step], swizzled(shared.q(warpgroup) + step / 4 * kQSlabBytes, q_row,
                                        step % 4 * 2 + thread % 32 / 16));
        }
      }
      stream.begin(item, of_item);
      if constexpr (kCutsKeys && !spec::kHasMask)
        stream.cut(load_key_piece(shared.item(slot)), of_item);
      found = stream.next(tile);
    }
    if constexpr (kQAhead) {
      issue_qk_tile();
      if (more && !kStagesInQ) release_q();
    }
    return more;
  }

  // Gives Q's place back, once an item. With Q in registers, not before the products have taken
  // them: an arrival does not wait for ldmatrix, and TMA then overwrote rows that were still to be
  // read (d 64, four stages: in 20 of a million items).
  ATT_MEMBER void release_q() {
    if constexpr (kStagesInQ) tma_store_wait_read();
    if (thread_index() % 32 == 0) mbarrier_arrive(shared.q_empty(warpgroup));
  }

  // Whether the steady loop takes the tile without knowing a maximum.
  ATT_MEMBER bool starts_steady() const {
    return kConstantReference && fixed && !raises() && is_steady(tile);
  }

  // Whether a maximum that was found may be kept.
  ATT_MEMBER bool takes_reference() const {
    return spec::kIsStrict || (may_freeze && (!kConstantReference || way >= kOwnReference));
  }

  // Does the item that was begun; nothing is in flight afterwards.
  ATT_MEMBER void run() {
    rows = {{-infinity(), -infinity()}, {kFirstReference, kFirstReference}, {0.0f, 0.0f}};
    if constexpr (kStagesInQ) release_q();
    // Without a mask only a packed sequence, or a piece, may have no key.
    const bool starts_dead =
        (spec::kHasMask || spec::kIsPacked || kCutsKeys) && found != TileStream::kTile;
    // Not before, or ptxas inserts a wait of its own (C7517).
    if (starts_dead) wgmma_wait<0>();
    if (kConstantReference || starts_dead) {
#pragma unroll
      for (int i = 0; i < kColumnsV / 2; ++i) o[i] = 0.0f;
    }
    // A dead first tile is skipped in the loop: a copy of to_next() costs 6 % of the compile time.
    bool skips = starts_dead;
    Tile next = tile;
    // Uniform, as ptxas must see, or nothing is in what follows.
    while (skips || shuffle_from(found, 0) == TileStream::kTile) {
      if (!skips && do_tile(next)) return;
      skips = false;
      to_next(next);
    }
    wgmma_wait<0>();
  }

  // Does the tile, and what the steady loop takes from it on. True when that was the item's end;
  // otherwise `found` says what `next` is.
  ATT_MEMBER bool do_tile(Tile& next) {
    // Where the reference is not the constant: a running maximum, until each row has met a live
    // key.
    tile = uniform(tile);
    stream.look(tile);
    if constexpr (!kQAhead) issue_qk_tile();
    wgmma_wait<0>();
    if constexpr (kReleasesKFirst) stream.release_k(tile);
    if constexpr (kProbes) {
      if (probes) probe();
      probes = false;
    }
    const bool at_once = starts_steady();
    bool was_steady = false;
#pragma unroll 1
    for (int piece = kHigh; piece >= 0; --piece) {
      if (at_once || is_live(tile, piece)) {
        if (at_once && !kSharesFirst) {
          soften_first();
        } else {
          soften_running(tile, piece, at_once || was_steady);
        }
        stream.wait_v(tile);
        if (piece == kHigh && (at_once || (takes_reference() && has_references()))) {
          fixed = true;
          found = steady(next);
          if constexpr (!kSharesLast) {
            stream.release_v(tile);
            return !kSteadyStops || found == TileStream::kEnd;
          }
          was_steady = true;
        }
        issue_pv(tile, piece);
        wgmma_wait<0>();
      }
      move_low_piece();
    }
    if constexpr (!kReleasesKFirst) stream.release_k(tile);
    stream.release_v(tile);
    if (was_steady) return !kSteadyStops || found == TileStream::kEnd;
    found = stream.next(next);
    return false;
  }

  // The low piece's scores to where soften_running() takes them: it is there once, which spares a
  // tenth of the compile time.
  ATT_MEMBER void move_low_piece() {
    if constexpr (kPieces == 2) {
#pragma unroll
      for (int i = 0; i < kPieceKeys / 2; ++i) s[kHigh][i] = s[0][i];
    }
  }

  ATT_MEMBER TileStream::Found steady(Tile& next) {
    if constexpr (kPieces == 1 && !kReleasesKFirst) stream.release_k(tile);
    // A loop of its own: in the other one, what raises references costs 3 to 6 %.
    if constexpr (kEndsOnce) {
      float top[2] = {0.0f, 0.0f};
      const bool tracks = raises();
      if (tracks) {
        loop_two<true>(next, top);
      } else {
        loop_two<false>(next, top);
      }
      return end_two<true>(top, tracks);
    } else if constexpr (kTracks) {
      if (raises()) return steady_loop<true>(next);
    }
    return steady_loop<false>(next);
  }
  template <bool kTracking>
  ATT_MEMBER TileStream::Found steady_loop(Tile& next) {
    if constexpr (kPieces == 1) return steady_one<kTracking>(next);
    float top[2] = {0.0f, 0.0f};
    if (loop_two<kTracking>(next, top)) return TileStream::kEnd;
    return end_two<kTracking>(top, kTracking);
  }

  // To `next`, or past dead tiles to the next live one.
  ATT_MEMBER void to_next(const Tile& next) {
    tile = next;
    if (found == TileStream::kDeadTile) {
      found = TileStream::kTile;
      if constexpr (spec::kHasMask) {
        stream.skip(tile);
        if (!stream.next_live(tile)) found = TileStream::kEnd;
      }
    }
    if constexpr (kQAhead) issue_qk_tile();
  }

  // Whether the steady loop may go on with the tile. Without a mask it knows no keys beyond kv_len,
  // which are in the last tile of an upward walk.
  ATT_MEMBER bool is_steady(const Tile& at) const {
    return spec::kHasMask ? stream.is_live(at) : at.key + kTileKv <= sequence().kv_len;
  }

  // The item may go on where the loop may stop; judge() is told of the largest scores then.
  ATT_MEMBER void end_tracking(const float (&top)[2]) {
    keep_maxima(rows, top, steady_factor(p));
    if constexpr (!kSteadyStops) count_rounded_maxima(rows);
  }

  // The steady loop, a tile in two pieces: while the exponentials of one are computed, PV of the
  // piece before it and QK of the piece after it run. On entry P of the tile's high piece waits for
  // its product, QK of the low piece is in flight and V is there; so it is when the loop ends. True
  // at an exit that is never taken.
  template <bool kTracking>
  ATT_MEMBER bool loop_two(Tile& next, float (&top)[2]) {
    stream.make_uniform();
    tile = uniform(tile);
    if constexpr (kTracking) begin_tracking(top);
    while (!stream.at_end()) {
      stream.take(next);
      if (kSteadyStops && !is_steady(next)) break;
      issue_pv(tile, kHigh);
      issue_qk(next, kHigh);
      stream.look(next);  // under the products
      wgmma_wait<2>();
      stream.release_k(tile);
      soften_frozen<1, kTracking>(tile, 0, top);
      // Without an exit here ptxas (13.0) loses track of the product that is in flight over the
      // loop's back edge, and serialises all of them (C7514).
      if (p.kv_len < 0) {
        wgmma_wait<0>();
        if constexpr (kEndsOnce) exit_thread();
        return true;
      }

      issue_pv(tile, 0);
      issue_qk(next, 0);
      wgmma_wait<2>();
      soften_frozen<1, kTracking>(next, kHigh, top);
      stream.release_v(tile);
      if constexpr (kRecentre) recentre(rows, o, probabilities);

      tile = next;
      stream.wait_v(tile);
    }
    return false;
  }

  // The end of the loop's last tile. Returns what ended the loop, kEnd or a dead tile `next`; then
  // nothing is in flight, and with kSharesLast P and the low piece's scores of `tile` are as on the
  // loop's entry. `tracks`: whether its references were raised, which they may be with kTracking.
  template <bool kTracking>
  ATT_MEMBER TileStream::Found end_two(float (&top)[2], bool tracks) {
    if constexpr (!kSharesLast) {
      issue_pv(tile, kHigh);
      wgmma_wait<1>();
      stream.release_k(tile);
      soften_frozen<0, kTracking>(tile, 0, top, tracks);
      issue_pv(tile, 0);
    }
    wgmma_wait<0>();
    if (kTracking && tracks) end_tracking(top);
    return stream.at_end() ? TileStream::kEnd : TileStream::kDeadTile;
  }

  // The steady loop, a tile in one piece: only PV of the tile before runs under its exponentials.
  // On entry P of the tile waits for its product, and V of it is there; with kSharesLast on return
  // too. Nothing is in flight then.
  template <bool kTracking>
  ATT_MEMBER TileStream::Found steady_one(Tile& next) {
    stream.make_uniform();
    tile = uniform(tile);
    float top[2] = {0.0f, 0.0f};
    if constexpr (kTracking) begin_tracking(top);
    while (!stream.at_end()) {
      stream.take(next);
      if (kSteadyStops && !is_steady(next)) break;
      issue_qk(next, 0);
      if constexpr (kTracking) scale_owed();
      issue_pv(tile, 0);
      stream.look(next);
      wgmma_wait<1>();
      stream.release_k(next);
      soften_frozen<0, kTracking>(next, 0, top);
      stream.release_v(tile);
      if constexpr (kRecentre) recentre(rows, o, probabilities);
      tile = next;
      stream.wait_v(tile);
    }
    if constexpr (kTracking) scale_owed();
    if constexpr (!kSharesLast) {
      issue_pv(tile, 0);
      wgmma_wait<0>();
    }
    if constexpr (kTracking) end_tracking(top);
    return stream.at_end() ? TileStream::kEnd : TileStream::kDeadTile;
  }

  // What is left to do for an item whose O is complete.
  struct Result {
    Context c;
    int first_row;  // of the warpgroup
    bool again;     // it was stored before
    bool store;     // not when that was good
  };

  ATT_MEMBER bool overflowed(unsigned slot, unsigned bad) const {
    const Context c = context();
    if constexpr (kCutsKeys) return has_overflowed(c, bad, row, keys_of_item(slot, c));
    return has_overflowed(c, bad, row, {0, c.kv_len});
  }

  // Totals the rows of item n and gives the scheduler the verdict: this must not wait for the next
  // item, which may be this one again. A warp alone decides: what it stores of a result that
  // overflowed is stored again.
  ATT_MEMBER Result judge(int n) {
    const unsigned slot = shared.item(n % kItemSlots);
    const ItemSlot item = load_slot(slot);
    if (kSteadyStops && raises()) count_rounded_maxima(rows);
    unsigned bad = total_rows(o, rows, raises());
    if (kAnyMagnitude && may_freeze) {
      bad |= (is_large(rows.maximum[0]) ? 1u : 0u) | (is_large(rows.maximum[1]) ? 2u : 0u);
    }
    const bool failed =
        may_fail(item.redo) && !all_lanes(bad == 0) && !all_lanes(!overflowed(slot, bad));
    if constexpr (kCutsKeys) {
      own_piece = load_key_piece(slot);
      piece_failed = failed;
    }
    if (failed) {
      const int lane = thread_index() % 32;
      if (lane < kCluster) {
        const unsigned rank = kCluster == 1 ? cluster_cta_rank() : lane;
        cluster_or(overflow_word(slot), rank, 1u << slice);
        if constexpr (kHints) cluster_or(failed_word(shared), rank, 1u << slice);
      }
    }
    warp_arrive<true>(shared.item_empty(n % kItemSlots));
    // The first verdict is not waited for: the next item may have been handed out.
    if (kLearns && n == 0) learn(failed);
    if constexpr (kAnyMagnitude) references_to_scores(rows, !may_freeze);
    const Sequence own = spec::kIsPacked ? packed : sequence_of(p, item.b);
    const int redo = redo_of(item.redo);
    const Slice rows_of =
        slice_of(context_of(p, own, item.b, item.h, item.h_kv), item.q0, slice, part_of_warp());
    return {context_of(p, own, item.b, rows_of.h, item.h_kv), rows_of.row, redo != 0,
            redo == 0 || (redo >> slice & 1) != 0};
  }

  // With kCutsKeys: an item's pieces are put together once, so a result that any of the warpgroup's
  // warps holds to be bad is not left for the others.
  ATT_MEMBER bool gathers() {
    if (any_thread(piece_failed)) return false;
    if (own_piece.pieces == 1) return true;
    return gather_pieces(static_cast<const PackedParams&>(p), own_piece, warpgroup, o, rows);
  }

  // Stores O and LSE; the next item may have begun.
  ATT_MEMBER void finish(const Result& result, const TensorMap* o_map) {
    const int thread = thread_index() % kWarpgroupThreads;
    if (!result.store) return;
    const int result_row = result.first_row + thread / 32 * 16 + thread % 32 / 4;
    normalise(result.c, o, rows, result_row);
    if constexpr (plan::kTmaStore) {
      const bool leader = thread % 32 == 0;
      if (leader && !kStagesInQ) tma_store_wait_read();
      // What was stored before must not come after.
      if (leader && result.again) tma_store_wait();
      // Warps have buffers of their own, but those that drift apart over long items fetch K and V
      // from shared memory one by one (2.5 % at d 128, 16k). Under masks that costs less than it.
      if constexpr (!spec::kHasMask) {
        named_barrier_sync(warpgroup_barrier(warpgroup), kWarpgroupThreads);
      }
      // TMA would go on into the next sequence.
      const int warp_row = result.first_row + thread / 32 * 16;
      if (spec::kIsPacked && warp_row + kStoreRows > result.c.q_len) {
        store_output_rows(o, result.c, result_row);
      } else {
        store_output(o, o_map, shared.o(warpgroup), result.c, warp_row);
      }
    } else {
      store_output_rows(o, result.c, result_row);
    }
    store_lse(result.c, rows, result_row);
  }
};

// What the kernel declares: results of pieces lie where lists do.
using Params = ParamsOf<spec::kIsPacked || kCutsKeys, spec::kIsPaged>::Type;

ATT_FN void consume(const ForwardParams& p, const TensorMap* o_map, const SharedMemory& shared,
                    int warpgroup, int cta_rank) {
  TileStream stream(shared, warpgroup);
  QFragmentArray q;
  Scores s[kPieces];
  Probabilities probabilities;
  Output o;
  RowState rows;
  Consumer consumer{{{p, shared, warpgroup, cta_rank * kWarpgroups + warpgroup, stream, q, s,
                      probabilities, o, rows}}};
  if (warpgroup == kWarpgroups - 1) stream.give_turn();
  bool more = consumer.begin(0);
  for (int n = 0; more; ++n) {
    consumer.run();
    wgmma_pin(o);
    Consumer::Result result = consumer.judge(n);
    if constexpr (kCutsKeys) result.store = result.store && consumer.gathers();
    if constexpr (kQAhead) {
      // The next item's first products run under this one's end.
      more = consumer.begin(n + 1);
      consumer.finish(result, o_map);
    } else {
      consumer.release_q();
      consumer.finish(result, o_map);
      more = consumer.begin(n + 1);
    }
  }
  wgmma_wait<0>();
  if (plan::kTmaStore && thread_index() % 32 == 0) tma_store_wait();
}

}  // namespace sm90
}  // namespace att

ATT_KERNEL __launch_bounds__(att::sm90::kThreads, 1)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT att::sm90::Params p, ATT_GRID_CONSTANT att::TensorMap q_map,
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
  if constexpr (plan::kHasLaunchInFront) {
    if (!finds_items(p)) wait_for_launches_before();
  }
  sync_threads();
  if constexpr (kCluster > 1) cluster_sync();

  const int warpgroup = shuffle_from(thread_index() / kWarpgroupThreads, 0) - 1;
  if (warpgroup < 0) {
    registers_release_to<kProducerRegisters>();
    const int warp = shuffle_from(thread_index() / 32, 0);
    if constexpr (plan::kCopiesRows) {
      if (warp != 1) load_by_rows<kLoaders>(p, &k_map, shared, warp == 0 ? 0 : warp - 1);
    } else {
      if (warp == 0) load(p, &k_map, &v_map, shared, cta_rank);
    }
    // One after the other they would all keep their number, for which they have no register.
    if (kSamples && warp == 2) {
      sample_first_item(p, shared);
    } else if (warp == 1) {
      schedule(p, &q_map, shared, cta_rank);
    }
  } else {
    registers_acquire_to<kConsumerRegisters>();
    consume(p, &o_map, shared, warpgroup, cta_rank);
  }
  // A CTA's shared memory must outlive what the others send to it.
  if constexpr (kCluster > 1) cluster_sync();
}
