// What a consumer warpgroup of the sm90a forward kernel does with a piece of a tile: its products
// and its softmax.
#pragma once

#include "templates/ptx/exit.cuh"
#include "templates/ptx/named_barrier.cuh"
#include "templates/ptx/wgmma.cuh"
#include "templates/tile/sm90_epilogue.cuh"
#include "templates/tile/sm90_pipeline.cuh"
#include "templates/tile/sm90_running.cuh"
#include "templates/tile/sm90_strict.cuh"

namespace att {
namespace sm90 {

constexpr int kQFragments = plan::kQInRegisters ? kQkSteps : 1;

using QFragmentArray = unsigned[kQFragments][4];

// The register arrays are the caller's locals, so that the compiler keeps each of them in
// registers; `q` is used only where the plan keeps Q there.
struct ConsumerPieces {
  const ForwardParams& p;
  const SharedMemory& shared;
  const int warpgroup;
  const int slice;  // of the item
  TileStream& stream;
  QFragmentArray& q;
  Scores (&s)[kPieces];
  Probabilities& probabilities;
  Output& o;
  RowState& rows;

  // The work item.
  int b, h, h_kv;
  Sequence packed;  // what b is, of packed sequences
  int row;          // this thread's first
  bool may_freeze;  // not when that failed
  bool first;       // no piece was summed yet
  Tile tile;
  bool rose = false;        // with kLearns: a reference of the warp was raised, of any item
  KeyPiece own_piece;       // with kCutsKeys, of the item that is done
  bool piece_failed;        // whether a row of the warp did
  bool fixed;               // with kConstantReference: whether the rows have their reference
  TileStream::Found found;  // what `tile` is
  unsigned owed;            // in one piece a tile: what O is yet to be scaled by

  static constexpr int kHigh = kPieces - 1;

  ATT_MEMBER Context context() const { return context_of(p, sequence(), b, h, h_kv); }
  ATT_MEMBER Sequence sequence() const { return spec::kIsPacked ? packed : sequence_of(p, b); }
  ATT_MEMBER Position position(const Tile& at, int piece) const {
    return {row, at.key + piece * kPieceKeys, (thread_index() & 3) * 2};
  }

  // ---- Products, asynchronous.

  // Q's fragments, or the descriptor of Q.
  ATT_MEMBER decltype(auto) q_operand() const {
    if constexpr (plan::kQInRegisters) {
      return (q);
    } else {
      return wgmma_descriptor(shared.q(warpgroup), kQSlabBytes);
    }
  }

  ATT_MEMBER decltype(auto) p_operand() const {
    if constexpr (plan::kPInShared) {
      return wgmma_descriptor(shared.p(warpgroup), kQSlabBytes);
    } else {
      return (probabilities);
    }
  }

  // S = Q K^T for a piece of a tile.
  ATT_MEMBER void issue_qk(const Tile& at, int piece) {
    const unsigned k = wgmma_descriptor(shared.k(0), kKvSlabBytes) +
                       (at.at.stage * kKBytes + piece * kPieceKeys * kRowBytes) / 16;
    wgmma_fence();
    plan::multiply_qk<2, kKvSlabBytes / 16, 2, kQSlabBytes / 16>(s[piece], q_operand(), k);
    wgmma_commit();
  }

  // Both pieces of the current tile, the high one first.
  ATT_MEMBER void issue_qk_tile() {
    if constexpr (kPieces == 2) issue_qk(tile, kHigh);
    issue_qk(tile, 0);
  }

  // O += P V for a piece of a tile whose V has come.
  ATT_MEMBER void issue_pv(const Tile& at, int piece) {
    const unsigned v = wgmma_descriptor(shared.v(0), kKvSlabBytes) +
                       (at.at.stage * kVBytes + piece * kPieceKeys * kRowBytes) / 16;
    wgmma_fence();
    plan::multiply_pv<kRowBytes, 4 * kRowBytes, 2, kQSlabBytes / 16>(o, p_operand(), v);
    wgmma_commit();
  }

  // Leaves P where the next product finds it.
  ATT_MEMBER void keep_probabilities() {
    if constexpr (plan::kPInShared) {
      stage_probabilities(probabilities, shared.p(warpgroup));
    } else {
      wgmma_pin(probabilities);
    }
  }

  ATT_MEMBER void zero_probabilities() {
#pragma unroll
    for (int i = 0; i < kPvSteps * 4; ++i) probabilities[i / 4][i % 4] = 0;
  }

  // ---- Softmax.

  // Whether a piece has live keys for the warpgroup, and whether it needs no mask.
  ATT_MEMBER bool is_live(const Tile& at, int piece) const {
    if constexpr (spec::kHasMask) return stream.is_live(at, piece);
    return at.key + piece * kPieceKeys < sequence().kv_len;
  }
  ATT_MEMBER bool is_full(const Tile& at, int piece) const {
    if constexpr (spec::kHasMask) return stream.is_full(at, piece);
    return at.key + (piece + 1) * kPieceKeys <= sequence().kv_len;
  }

  // The ordinary online softmax of a piece whose scores are in s[kHigh]: P waits for its product.
  ATT_MEMBER void soften_running(const Tile& at, int piece, bool keeps_reference) {
    const Context c = context();
    Scores& scores = s[kHigh];
    wgmma_pin(scores);
    softmax_running(c, scores, rows, o, position(at, piece), is_full(at, piece), first,
                    may_freeze ? kFrozenOffset : 0.0f, keeps_reference, !may_freeze);
    pack(c, scores, probabilities, position(at, piece));
    keep_probabilities();
    first = false;
  }

  // What raise_references() said.
  ATT_MEMBER void scale_output(unsigned rises) {
    wgmma_pin(o);
    const float factor[2] = {__builtin_bit_cast(float, rises << 16),
                             __builtin_bit_cast(float, rises & 0xFFFF0000u)};
#pragma unroll
    for (int i = 0; i < kColumnsV / 2; ++i) o[i] *= factor[i / 2 % 2];
  }

  // In one piece a tile O is scaled when the next tile's QK product was issued, which hides it.
  // (The lanes are asked anew: a branch on what a loop carries is not uniform to ptxas.)
  ATT_MEMBER void scale_owed() {
    if (kPieces == 1 && !all_lanes(owed == kNoRise)) scale_output(owed);
  }

  ATT_MEMBER void begin_tracking(float (&top)[2]) {
    owed = kNoRise;
    take_maxima(rows, top, steady_factor(p));
  }

  // The softmax of a piece with the references as they are. `kRunning` products issued after the
  // one that reads P may still run when it is written. `kTracking`: the references are raised where
  // they must be. Then `top` has the largest positive scores that this thread met.
  template <int kRunning, bool kTracking = false>
  ATT_MEMBER void soften_frozen(const Tile& at, int piece, float (&top)[2], bool tracks = true) {
    if constexpr (spec::kIsStrict) return soften_following<kRunning>(at, piece);
    const Context c = context();
    wgmma_pin(s[piece]);
    // Without a mask only the first tile has keys beyond kv_len, and that has a running maximum.
    unsigned rises = kNoRise;
    bool raised = false;
    // Never taken: over a branch on their sum ptxas does not move the wait.
    const auto wait = [&] {
      if (kBeforeWait > 0 && !all_lanes(!(rows.sum[0] + rows.sum[1] < 0.0f))) {
        wgmma_wait<0>();
        exit_thread();
      }
      wgmma_wait<kRunning>();
    };
    bool full = !spec::kHasMask || is_full(at, piece);
    if constexpr (kTracking && kSkips) {
      if (!full) mask_scores<kFrozenIsInside>(c, s[piece], position(at, piece));
      full = true;
      if (are_negligible(s[piece], top, steady_factor(p))) {
        wgmma_wait<kRunning>();
        zero_probabilities();
        return keep_probabilities();
      }
      share_maxima(top, piece);
    }
    if constexpr (kSharesReciprocals) {
      softmax_logistic<kTracking>(c, s[piece], rows, position(at, piece), full, top, rises, raised,
                                  wait, tracks);
    } else {
      softmax_frozen<kTracking>(c, s[piece], rows, position(at, piece), full, top, rises, raised,
                                wait, tracks);
    }
    if constexpr (kTracking) {
      if constexpr (kLearns) rose = rose || raised;
      if constexpr (kPieces == 1) {
        owed = rises;
      } else if (kScalesAlways || raised) {
        scale_output(rises);
      }
    }
    pack(c, s[piece], probabilities, position(at, piece));
    keep_probabilities();
  }

  // The same with references that follow the largest scores, `accuracy: strict`.
  template <int kRunning>
  ATT_MEMBER void soften_following(const Tile& at, int piece) {
    const Context c = context();
    wgmma_pin(s[piece]);
    float correction[2] = {1.0f, 1.0f};
    const bool raised = softmax_following<kFrozenIsInside>(
        c, s[piece], rows, position(at, piece), !spec::kHasMask || is_full(at, piece), correction);
    wgmma_wait<kRunning>();
    if (raised) {
      wgmma_pin(o);
#pragma unroll
      for (int i = 0; i < kColumnsV / 2; ++i) o[i] *= correction[i / 2 % 2];
    }
    pack(c, s[piece], probabilities, position(at, piece));
    keep_probabilities();
  }

  // The high piece of a tile that the steady loop then goes on with.
  ATT_MEMBER void soften_first() {
    if (!spec::kHasMask || is_live(tile, kHigh)) {
      float top[2];
      return soften_frozen<0>(tile, kHigh, top);
    }
    zero_probabilities();
    if constexpr (plan::kPInShared) keep_probabilities();
  }

  // True when each row of the warpgroup has met a live key.
  ATT_MEMBER bool has_references() const {
    if constexpr (!spec::kHasMask) return true;
    const int q_len = sequence().q_len;
    const bool unset = (row < q_len && rows.maximum[0] == -infinity()) ||
                       (row + 8 < q_len && rows.maximum[1] == -infinity());
    return !any_thread(unset);
  }

  // Whether `condition` holds for a thread of the warpgroup.
  ATT_MEMBER bool any_thread(bool condition) const {
    return shuffle_from(
               named_barrier_any(warpgroup_barrier(warpgroup), kWarpgroupThreads, condition), 0) !=
           0;
  }
};

}  // namespace sm90
}  // namespace att
