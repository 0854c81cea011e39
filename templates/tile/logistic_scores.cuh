// P of scores that are a logistic function of the product, a softcap's first of all, where an
// accumulator's rows are keys and its columns queries.
//
// As the score of a dead element cannot be minus infinity, dead ones are cleared afterwards, in the
// few tiles that have some, instead of being chosen in all.
#pragma once

#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/backward_scores.cuh"

namespace att {

template <int kColumns>
struct LogisticScores {
  static constexpr int kBlocks = kColumns / 8, kEarlyBlocks = kBlocks == 8 ? 2 : 1;
  // Shared address of the LSE, in log2 units, of the lane's first query. The first blocks' are
  // loaded while S is being made, as loads wait for products.
  unsigned references;
  float reference[kBlocks][2];

  ATT_MEMBER explicit LogisticScores(unsigned references) : references(references) {
    load<0, kEarlyBlocks>();
  }

  // As ColumnElements::probabilities(); `clear` says which of a pair of `kept` are live.
  template <typename Elements, typename Products, typename Keep, typename Kept, typename Clear>
  ATT_MEMBER void probabilities(const Elements& elements, const Context& c, Products& s, bool full,
                                const Keep& keep, const Kept& kept, const Clear& clear) {
    load<kEarlyBlocks, kBlocks>();
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      float denominator[4], core[4], value[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) denominator[e] = bounded_denominator(c, element(s, n, e));
      invert_logistic(denominator, core);
      float shift[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) shift[e] = kScoreOffset * kLog2E - reference[n][e];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float t = core[e], steep = kLogisticSlope * t;
        const float p = math_exp2(t * (kScoreMultiplier * kLog2E) + shift[e % 2]);
        element(s, n, e) = p * (steep - steep * t);
        value[e] = elements.keeps(keep, n, e) ? p : 0.0f;
      }
      kept(n, 0, value[0], value[1]);
      kept(n, 1, value[2], value[3]);
    }
    if (full) return;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        bool live[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          live[i] = is_live_element(c, elements.query_at(c, n, i), elements.key + half * 8);
          float& slope = element(s, n, 2 * half + i);
          slope = live[i] ? slope : 0.0f;
        }
        clear(n, half, live[0], live[1]);
      }
    }
  }

 private:
  template <int kFirst, int kEnd>
  ATT_MEMBER void load() {
#pragma unroll
    for (int n = kFirst; n < kEnd; ++n) {
      load_shared_8(references + 32 * n, reference[n][0], reference[n][1]);
    }
  }
};

}  // namespace att
