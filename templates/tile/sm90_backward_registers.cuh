// What a consumer warpgroup of the sm90a backward's main kernel has in registers: operands and
// gradients, and what it loads of a tile while the products that go before are made.
#pragma once

#include "templates/tile/backward_scores.cuh"
#include "templates/tile/dropped_elements.cuh"
#include "templates/tile/logistic_scores.cuh"
#include "templates/tile/sm90_backward_layout.cuh"

namespace att {
namespace sm90 {

using Products = float[kTileQ / 2];        // S^T, dP^T: 64 keys x kTileQ queries
using Operand = unsigned[kTileQ / 16][4];  // P^T, dS^T of them
// K's and V's rows as left operands of S^T and dP^T, where they stay in registers.
template <int kColumns>
using KeyRowsOperand = unsigned[plan::kKeysInRegisters ? kColumns / 16 : 1][4];
using KeyGradient = float[kColumnsQk / 2];
using ValueGradient = float[kColumnsV / 2];
// Of a kernel that leaves dQ to another one there is none.
template <bool kMakesQueries>
using QueryGradient = float[kMakesQueries ? kDqNumbers : 1];

// What is loaded of a tile's LSE while S is being made, and of its D while dP is, where anything
// is.
struct NothingLoaded {
  ATT_MEMBER explicit NothingLoaded(unsigned) {}
  template <typename Elements, typename Keep, typename Kept, typename Clear>
  ATT_MEMBER void probabilities(const Elements& elements, const Context& c, Products& s, bool full,
                                const Keep& keep, const Kept& kept, const Clear&) const {
    elements.probabilities(c, s, full, keep, kept);
  }
  template <typename Elements, typename Keep, typename Kept, typename Learned>
  ATT_MEMBER void gradients(const Elements& elements, const Context& c, Products& s, Products& d,
                            const Keep& keep, const DrawnWord&, const Kept& kept,
                            Learned& learned) const {
    elements.gradients(c, s, d, keep, kept, learned);
  }
};
template <bool kIsLoaded, typename Loaded>
struct LoadedIf {
  using Type = NothingLoaded;
};
template <typename Loaded>
struct LoadedIf<true, Loaded> {
  using Type = Loaded;
};
using LoadedReferences = LoadedIf<kSharesReciprocals, LogisticScores<kTileQ>>::Type;
using DeltasAhead = LoadedIf<plan::kScalesRows, LoadedDeltas<kTileQ>>::Type;

template <int kCount>
ATT_FN void zero(float (&numbers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) numbers[i] = 0.0f;
}

}  // namespace sm90
}  // namespace att
