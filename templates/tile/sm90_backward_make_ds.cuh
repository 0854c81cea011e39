// dS of the one P that sm90_backward_tight_walk.cuh keeps.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/tile/sm90_backward_layout.cuh"

namespace att {
namespace sm90 {

static_assert(!kWalksTightly || (plan::kSplitReferences && plan::kSplitDeltas && kGradLoads == 0 &&
                                 (!spec::kHasScore || kScoreGradIsOne) && !spec::kHasDropout));

// `d`: dP less D.
ATT_FN void make_ds(const float (&p)[kTileQ / 2], const float (&d)[kTileQ / 2],
                    unsigned (&ds)[kTileQ / 16][4]) {
#pragma unroll
  for (int i = 0; i < kTileQ / 2; i += 2)
    ds[i / 8][i % 8 / 2] = pack_2<spec::kDType>(p[i] * d[i], p[i + 1] * d[i + 1]);
}

template <int kSteps>
ATT_FN void round_p(const float (&p)[8 * kSteps], unsigned (&operand)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < 8 * kSteps; i += 2)
    operand[i / 8][i % 8 / 2] = pack_2<spec::kDType>(p[i], p[i + 1]);
}

// Of P as dV's operand has it, rounded: dS is rounded itself, its error becomes 1.2 times as large.
ATT_FN void make_ds_of_rounded(const unsigned (&p)[kTileQ / 16][4], const float (&d)[kTileQ / 2],
                               unsigned (&ds)[kTileQ / 16][4]) {
#pragma unroll
  for (int n = 0; n < kTileQ / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float low, high;
      unpack_2<spec::kDType>(p[n / 2][n % 2 * 2 + half], low, high);
      ds[n / 2][n % 2 * 2 + half] =
          pack_2<spec::kDType>(low * d[4 * n + 2 * half], high * d[4 * n + 2 * half + 1]);
    }
  }
}

}  // namespace sm90
}  // namespace att
