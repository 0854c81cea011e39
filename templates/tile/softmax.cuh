// The softmax of a warp's rows: running reference and sum, in log2 units or, with kAnyMagnitude, in
// those of scores.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/magnitude.cuh"
#include "templates/tile/negligible.cuh"
#include "templates/tile/quad.cuh"
#include "templates/tile/scores.cuh"

namespace att {

// With a frozen reference P, the sum and O may grow after it was chosen. bf16 has room for 2^126
// both ways: there the reference lies 40 above the first maximum, which leaves a tile room for a
// rise of 2^155. fp16 ends at 2^16. fp32 has the room, but not the bits: an exponent that is far
// from 0 is rounded coarsely.
constexpr bool kHasRoom = spec::kDType == DType::bf16;
constexpr bool kIsExact = spec::kDType == DType::f32;
constexpr float kFrozenOffset = kHasRoom ? 40.0f : 0.0f;
constexpr float kFrozenLimit = kHasRoom ? 0x1p115f : kIsExact ? 0x1p44f : 0x1p62f;
constexpr float kMostRise = kIsExact ? kFrozenLimit : 0x1p126f;

// By so much, log2, scores may exceed a reference that runs, when a frozen one failed: heavy tails
// do so at every other tile. O, which may be as large as n times V, has so much less room.
constexpr float kRunningSlack = kIsExact ? 0.0f : 8.0f;

// The larger, or NaN if one of them is.
ATT_FN float larger_or_nan(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// A row without a live key has the reference -inf, and all its elements are -inf: 0 keeps the
// difference from being NaN.
ATT_FN float finite(float x) { return x == -infinity() ? 0.0f : x; }

// Lets a sink join the sum of a row. Returns what the row of O is multiplied by to become the
// output, 0 where no key is live. With kAnyMagnitude the reference becomes a score in natural
// units.
ATT_FN float finish_row(const Context& c, float& reference, float& sum) {
  float shrink = 1.0f;
  if constexpr (kAnyMagnitude) reference = score_of_reference(reference);
  if constexpr (spec::kHasSink) {
    constexpr float kUnit = kAnyMagnitude ? kLog2E : 1.0f;
    const float logit = kAnyMagnitude ? sink(c) : sink(c) * kLog2E;
    const float raised = math_max(reference, logit);
    shrink = math_exp2((reference - finite(raised)) * kUnit);
    sum = sum * shrink + math_exp2((logit - finite(raised)) * kUnit);
    reference = raised;
  }
  return sum == 0.0f ? 0.0f : shrink / sum;
}

// Natural logarithm of the sum of exponentials, of what finish_row() left; -inf where no key is
// live.
ATT_FN float log_sum_exp(float reference, float sum) {
  if constexpr (kIsExact) {
    // The logarithm's error grows with it: the exponent is taken out first.
    if (sum >= 0x1p-126f && sum < infinity()) {
      const int n = exponent(sum);
      const float rest = __builtin_bit_cast(
          float, __builtin_bit_cast(unsigned, sum) - (static_cast<unsigned>(n) << 23));
      if constexpr (kAnyMagnitude) {
        return finite(reference) + (static_cast<float>(n) + math_log2(rest)) * kLn2;
      }
      return (finite(reference) + static_cast<float>(n) + math_log2(rest)) * kLn2;
    }
  }
  if constexpr (kAnyMagnitude) return finite(reference) + math_log2(sum) * kLn2;
  return (finite(reference) + math_log2(sum)) * kLn2;
}

// Of the 2 * kBlocks rows that a lane shares with the three others of its quad. exp2(s - reference)
// is what P holds; any reference that keeps it in range gives the same quotient. `sum` is this
// lane's part until finish().
template <int kBlocks>
struct RowState {
  float reference[kBlocks][2];
  float sum[kBlocks][2];

  ATT_MEMBER void clear() {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        reference[m][half] = -infinity();
        sum[m][half] = 0.0f;
      }
    }
  }

  // The largest of this lane's scores in each row. `kMindsNan`: NaN where one is.
  template <bool kMindsNan, int kTiles>
  static ATT_MEMBER void find_highest(const float (&s)[kBlocks][kTiles][4],
                                      float (&highest)[kBlocks][2]) {
    const auto larger = [&](float x, float y) {
      return kMindsNan ? larger_or_nan(x, y) : math_max(x, y);
    };
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        highest[m][half] = larger(s[m][0][2 * half], s[m][0][2 * half + 1]);
#pragma unroll
        for (int n = 1; n < kTiles; ++n) {
          highest[m][half] =
              larger(highest[m][half], larger(s[m][n][2 * half], s[m][n][2 * half + 1]));
        }
      }
    }
  }

  static ATT_MEMBER float above_by(float highest, float offset) {
    return kHasRoom ? highest * kScoreFactor + from_log2(offset) : highest * kScoreFactor;
  }

  template <int kTiles, int kOTiles>
  ATT_MEMBER void raise(const float (&s)[kBlocks][kTiles][4], float (&o)[kBlocks][kOTiles][4],
                        float offset, float slack) {
    float highest[kBlocks][2];
    find_highest<false>(s, highest);
    raise_to(highest, o, offset, slack);
  }

  // Raises the references to `offset` above the `highest` scores as well and rescales what was
  // accumulated (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018); after
  // the first few keys of a row that is rarely needed, and then skipped; nor is it needed while no
  // reference is more than `slack` too low.
  template <int kOTiles>
  ATT_MEMBER void raise_to(const float (&highest)[kBlocks][2], float (&o)[kBlocks][kOTiles][4],
                           float offset, float slack) {
    float above[kBlocks][2];  // what this lane's scores ask for
    bool same = true;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        above[m][half] = above_by(highest[m][half], offset);
        same &= above[m][half] <= reference[m][half] + from_log2(slack);
      }
    }
    if (all_lanes(same)) return;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float raised = math_max(reference[m][half], quad_max(above[m][half]));
        const float rescale = math_exp2(as_log2(reference[m][half] - finite(raised)));
        reference[m][half] = raised;
        sum[m][half] *= rescale;
#pragma unroll
        for (int n = 0; n < kOTiles; ++n) {
          o[m][n][2 * half] *= rescale;
          o[m][n][2 * half + 1] *= rescale;
        }
      }
    }
  }

  // Whether none of the warp's scores counts, whose references run and were raised to the highest.
  // A row that has met none yet says no.
  ATT_MEMBER bool are_negligible(const float (&highest)[kBlocks][2], float offset) const {
    bool all = true;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        all =
            all && above_by(highest[m][half], offset) < reference[m][half] - from_log2(kNegligible);
      }
    }
    return all_lanes(all);
  }

  // s = exp2(s - reference), added to the sums.
  template <int kTiles>
  ATT_MEMBER void exponentiate(float (&s)[kBlocks][kTiles][4]) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float shift = -finite(reference[m][half]);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[m][n][e] = exponential(s[m][n][e], shift);
            sum[m][half] += s[m][n][e];
          }
        }
      }
    }
  }

  // Moves references up where a frozen one has let a sum grow, by a power of two so that nothing is
  // rounded (but with kAnyMagnitude, where a score's own unit is the reference's). Scores that
  // climb from tile to tile then never leave the range; only a rise of more than that within one
  // tile does (for fp16, of 2^4). True when one did in a row of the warp, as far as sums say it
  // (for fp16 one may have, of many exponentials).
  template <int kOTiles>
  ATT_MEMBER bool recentre(float (&o)[kBlocks][kOTiles][4]) {
    constexpr float kLargeSum = spec::kDType == DType::f16 ? 0x1p12f : 0x1p20f;
    constexpr float kLostSum = spec::kDType == DType::f16 ? 0x1p16f : kFrozenLimit;
    bool small = true;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      small = small && sum[m][0] < kLargeSum && sum[m][1] < kLargeSum;
    }
    if (all_lanes(small)) return false;
    bool kept = true;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float total = quad_sum(sum[m][half]);
        kept &= total < kLostSum;
        // What is infinite or NaN, or nearly so, stays, and in_range() sees it.
        const int rise = total >= kLargeSum && total < kMostRise ? exponent(total) : 0;
        float shrink = power_of_two(-rise);
        if constexpr (kAnyMagnitude) {
          // By as much as the reference has room for beside its own rounding, which may be nothing.
          const float before = reference[m][half];
          if (rise > 0) reference[m][half] += from_log2(static_cast<float>(rise));
          if (rise > 0) shrink = math_exp2(as_log2(before - reference[m][half]));
        } else {
          reference[m][half] += static_cast<float>(rise);
        }
        sum[m][half] *= shrink;
#pragma unroll
        for (int n = 0; n < kOTiles; ++n) {
          o[m][n][2 * half] *= shrink;
          o[m][n][2 * half + 1] *= shrink;
        }
      }
    }
    return !all_lanes(kept);
  }

  // True for the whole warp when every row has met a live key, so that its reference may be frozen.
  ATT_MEMBER bool has_reference() const {
    bool all = true;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      all = all && reference[m][0] > -infinity() && reference[m][1] > -infinity();
    }
    return all_lanes(all);
  }

  // Whether some rows have met scores far above what others have: heavy tails, of which more will
  // come than a frozen reference has room for. (Where all lie high they may stay there.)
  ATT_MEMBER bool are_unlike() const {
    // As the sm90a family has them.
    const float kHigh = from_log2(kFrozenOffset + 130.0f);
    const float kOrdinary = from_log2(kFrozenOffset + 60.0f);
    bool none_high = true, none_ordinary = true;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        none_high = none_high && reference[m][half] < kHigh;
        none_ordinary = none_ordinary && reference[m][half] > kOrdinary;
      }
    }
    return !all_lanes(none_high) && !all_lanes(none_ordinary);
  }

  // False when a frozen reference was too small somewhere. P >= 0, so a row's final sum bounds
  // every P that went into it.
  ATT_MEMBER bool in_range() const {
    bool good = true;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      good = good && sum[m][0] < kFrozenLimit && sum[m][1] < kFrozenLimit;
    }
    return good;
  }

  // Adds up the quad's parts of the sums and lets a sink join them. Afterwards `factor` is what a
  // row of O is multiplied by to become the output, 0 where no key is live.
  ATT_MEMBER void finish(const Context& c, float (&factor)[kBlocks][2]) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[m][half] = quad_sum(sum[m][half]);
        factor[m][half] = finish_row(c, reference[m][half], sum[m][half]);
      }
    }
  }

  ATT_MEMBER float log_sum_exp(int m, int half) const {
    return att::log_sum_exp(reference[m][half], sum[m][half]);
  }
};

}  // namespace att
