// How a consumer warpgroup of the sm90a forward kernel does an item's softmax, and what its first
// tile, or an item that is done, says of that.
#pragma once

#include "templates/tile/sm90_consumer_pieces.cuh"

namespace att {
namespace sm90 {

struct ConsumerWays : ConsumerPieces {
  // With kHasSecondWay: how this warpgroup's items are done. What one of them taught holds for the
  // next ones.
  enum Way {
    kUnknown,       // the first way; no tile was looked at yet
    kFirstWay,      // the reference of fp16 is the first tile's, with bf16 a constant
    kOwnReference,  // with a constant reference: that of the first tile
    kSecondWay,     // the same, raised as the item goes where kTracks
  };
  int way = kUnknown;
  bool probes = false;         // whether this item's first tile is looked at
  bool is_first_item = false;  // of the CTA: may try the second way, and tells others
  bool on_trial = false;       // whether it tries

  // Whether probe() looks at all scores for the highest.
  static constexpr bool kSeesAll =
      kLearns || (kTracks && (kPieces == 2 || spec::kHasMask || kScoreVariesByKey));

  // Looks at a tile's scores, before mask and score, for what the first way does not serve; at two
  // a thread, or with kSeesAll at more. What it overlooks is found at the item's end.
  ATT_MEMBER void probe() {
    if constexpr (kTracks && kPieces == 2 && !kBf16) {
      look_for_rises();
    } else {
      look_for_levels();
    }
    if constexpr (kTellsOthers) {
      if (is_first_item) tell_others();
    }
  }

  // In a CTA's first item.
  ATT_MEMBER void tell_others() {
    if constexpr (kMeets) {
      const bool any =
          named_barrier_any(kConsumersBarrier, kWarpgroups * kWarpgroupThreads, way == kSecondWay);
      if (shuffle_from(any, 0) != 0) way = kSecondWay;
      fixed = fixed && way <= kFirstWay;
    } else if constexpr (kHints && kCluster == 1) {
      set_shared_bits(failed_word(shared), way == kSecondWay ? (1u << kSlices) - 1 : 0);
      if constexpr (kWaitsForOthers) {
        say_looked(true);
        if (p.kv_len >= kLeastWaitedKeys) hear_others();
      }
    }
  }

  ATT_MEMBER void say_looked(bool looked) {
    set_shared_bits(failed_word(shared), looked ? 1u << (kLookedShift + warpgroup) : 0);
  }

  // Under a mask the others' first tile may be another one, which comes a little later, or not
  // before this warpgroup goes on: they are waited for, but not for ever.
  ATT_MEMBER void hear_others() {
    constexpr int kLooks = 64;  // of some 30 clocks
    unsigned word = 0;
#pragma unroll 1
    for (int look = 0; look < kLooks; ++look) {
      word = load_shared_anew(failed_word(shared));
      if ((word >> kLookedShift & kAllSlices) == kAllSlices) break;
    }
    if (any_thread((word & kAllSlices) != 0)) way = kSecondWay;
    fixed = fixed && way <= kFirstWay;
  }

  // fp16 has room for a rise of 2^23 after the first tile, whatever its level: rows whose scores
  // are further apart in it will rise by more.
  ATT_MEMBER void look_for_rises() {
    // What a cap leaves has room.
    if constexpr (kSharesReciprocals && kLogisticHeight <= 23.0f) return;
    // Keys beyond kv_len have scores of 0: no look at a tile that has some.
    if (tile.key + kTileKv > sequence().kv_len) return;
    Scores& scores = s[kHigh];
    wgmma_pin(scores);
    float most = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float low = scores[2 * half], high = low;
#pragma unroll
      for (int i = 2 * half; i < kPieceKeys / 2; i += 4) {
        low = math_min(math_min(low, scores[i]), scores[i + 1]);
        high = math_max(math_max(high, scores[i]), scores[i + 1]);
      }
      most = math_max(most, high - low);
    }
    if (any_thread(most * softmax_scale(p) * kLog2E > kFarApart)) way = kSecondWay;
  }

  ATT_MEMBER void look_for_levels() {
    Scores& scores = s[kHigh];
    wgmma_pin(scores);
    const float to_log2 = softmax_scale(p) * kLog2E;
    float low = scores[0] * to_log2, high = scores[2] * to_log2;
    if constexpr (kSeesAll) {
      low = math_min(low, high);
      high = math_max(highest_score(scores, 0, 0.0f), highest_score(scores, 1, 0.0f));
      // A launch whose items are dealt out waits for the one CTA that saw nothing.
      if constexpr (kMeets) {
        wgmma_pin(s[0]);
        high = highest_score(s[0], 0, highest_score(s[0], 1, high));
      }
      high *= to_log2;
    }
    if constexpr (kLearns) {
      if (is_first_item) {
        constexpr float kExpected = kBf16 ? 29.0f : 16.0f;
        bool tries = low < kLowest || high > kExpected;
        if constexpr (kSamples)
          tries = tries || (load_shared_4(failed_word(shared)) & kSampledBit) != 0;
        on_trial = any_thread(tries);
        if (on_trial) way = kSecondWay;
        fixed = fixed && !on_trial;
        return;
      }
    }
    if (!any_thread(low < kLowest || low > kHighest || high < kLowest || high > kHighest)) return;
    fixed = false;
    // Scores all of which are high have their reference in their first tile.
    const bool some_high = any_thread(low > kHighest || high > kHighest);
    const bool some_ordinary = any_thread(low < kOrdinary || high < kOrdinary);
    way = some_high && some_ordinary ? kSecondWay : kOwnReference;
  }

  // What an item that is done says of the next ones, when its rows were totalled.
  ATT_MEMBER void learn(bool failed) {
    if (!on_trial) {
      if (any_thread(failed)) way = kSecondWay;
      return;
    }
    on_trial = false;
    const bool some_rose = any_thread(rose);
    if constexpr (!kConstantReference) {
      constexpr float kLarge = kFrozenLimit / 4;
      const bool some_large = any_thread(rows.sum[0] > kLarge || rows.sum[1] > kLarge);
      way = some_rose || some_large ? kSecondWay : kFirstWay;
      return;
    }
    const int q_len = sequence().q_len;
    const float upper = rows.maximum[0], lower = rows.maximum[1];
    const auto some = [&](bool of_upper, bool of_lower) {
      return any_thread((row < q_len && of_upper) || (row + 8 < q_len && of_lower));
    };
    const bool some_high = some(upper > kHighest, lower > kHighest);
    const bool some_low =
        some(upper < kLowest && upper != -infinity(), lower < kLowest && lower != -infinity());
    if (!some_high && !some_low) {
      way = kFirstWay;
      return;
    }
    // Scores that are high from the first tile on have their reference there.
    const bool some_ordinary = some(upper < kOrdinary, lower < kOrdinary);
    way = some_rose || (some_high && some_ordinary) ? kSecondWay : kOwnReference;
  }

  // Whether a way is left for an item that fails when done so.
  static ATT_MEMBER bool may_fail(int redo) {
    return plan::kFrozenMax && (kHasSecondWay ? (redo & kSecondRedo) == 0 : redo == 0);
  }

  // Whether the steady loop raises references.
  ATT_MEMBER bool raises() const { return kTracks && way == kSecondWay; }
};

}  // namespace sm90
}  // namespace att
