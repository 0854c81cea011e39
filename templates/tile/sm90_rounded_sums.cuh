// Sums of what the product of P and V is given: of the exponentials as they were rounded. O divided
// by them is a mean of V's rows whose weights sum to 1.
#pragma once

#include "templates/ptx/convert.cuh"
#include "templates/tile/quad.cuh"
#include "templates/tile/sm90_layout.cuh"

namespace att {
namespace sm90 {

constexpr bool kSumsRounded = spec::kIsStrict;

// Of a thread's columns of its two rows; where they are not kept, nothing.
template <bool kKept>
struct RoundedSums {
  ATT_MEMBER void scale(int, float) {}
  ATT_MEMBER void add(int, float, float) {}
  ATT_MEMBER void add(const float (&)[kPieceKeys / 2]) {}
  ATT_MEMBER void total(int) {}
  ATT_MEMBER float or_else(int, float other) const { return other; }
};

template <>
struct RoundedSums<true> {
  float sum[2];

  ATT_MEMBER void scale(int half, float by) { sum[half] *= by; }

  // Two elements of row `half`, rounded.
  ATT_MEMBER void add(int half, float low, float high) {
    sum[half] += low;
    sum[half] += high;
  }
  // The exponentials of a piece, not rounded.
  ATT_MEMBER void add(const float (&s)[kPieceKeys / 2]) {
#pragma unroll
    for (int i = 0; i < kPieceKeys / 4; ++i) {
      float low, high;
      unpack_2<spec::kDType>(pack_2<spec::kDType>(s[2 * i], s[2 * i + 1]), low, high);
      add(i % 2, low, high);
    }
  }

  ATT_MEMBER void total(int half) { sum[half] = quad_sum(sum[half]); }
  ATT_MEMBER float or_else(int half, float) const { return sum[half]; }
};

}  // namespace sm90
}  // namespace att
