// dS of the one P that sm90_backward_long_walk.cuh and sm90_backward_tight_walk.cuh keep.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/tile/sm90_backward_layout.cuh"

namespace att {
namespace sm90 {

static_assert(!kWalksTightly || (plan::kSplitReferences && plan::kSplitDeltas && kGradLoads == 0 &&
                                 (!spec::kHasScore || kScoreGradIsOne) && !spec::kHasDropout));

// `d`: dP less D.
template <int kSteps>
ATT_FN void make_ds(const float (&p)[8 * kSteps], const float (&d)[8 * kSteps],
                    unsigned (&ds)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < 8 * kSteps; i += 2)
    ds[i / 8][i % 8 / 2] = pack_2<spec::kDType>(p[i] * d[i], p[i + 1] * d[i + 1]);
}

template <int kSteps>
ATT_FN void round_p(const float (&p)[8 * kSteps], unsigned (&operand)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < 8 * kSteps; i += 2)
    operand[i / 8][i % 8 / 2] = pack_2<spec::kDType>(p[i], p[i + 1]);
}

// What rounding P to bf16 took or gave: of each element the next 8 bits, a signed number. A P just
// between two bf16 that was rounded down, one of 2^17, comes back a place too small. All 16 bits
// take 0.4 % less time off the counter under a causal mask, where ptxas has registers for them, and
// 2 to 7 % more under others and with a CTA for each key tile.
using Rests = unsigned[kTileQ / 16][2];
ATT_FN void keep_rests(Rests& rests, int n, int half, float low, float high) {
  const unsigned two =
      byte_permute(__builtin_bit_cast(unsigned, low), __builtin_bit_cast(unsigned, high), 0x51u);
  unsigned& four = rests[n / 2][n % 2];
  four = half == 0 ? two : byte_permute(four, two, 0x5410u);
}
// Waits for the barrier, which is most often complete. What is kept changes in the other case as
// far as ptxas knows: else it would make it of P much later, and keep P until then.
ATT_FN void wait_with_rests(unsigned barrier, unsigned parity, Rests& rests, int kv_len) {
  if (mbarrier_is_complete(barrier, parity)) return;
  mbarrier_wait(barrier, parity);
  const unsigned zeros = static_cast<unsigned>(kv_len >> 31);
#pragma unroll
  for (int step = 0; step < kTileQ / 16; ++step) {
#pragma unroll
    for (unsigned& some : rests[step]) some ^= zeros;
  }
}
// Of P as dV's operand has it and what is left of it.
ATT_FN void make_ds_of_parts(const unsigned (&p)[kTileQ / 16][4], const Rests& rests,
                             const float (&d)[kTileQ / 2], unsigned (&ds)[kTileQ / 16][4]) {
#pragma unroll
  for (int n = 0; n < kTileQ / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned pair = p[n / 2][n % 2 * 2 + half];
      const unsigned four = rests[n / 2][n % 2];
      const unsigned low = (pair << 16) + byte_permute(four, 0u, half == 0 ? 0x8804u : 0xaa24u);
      const unsigned high =
          (pair & 0xffff0000u) + byte_permute(four, 0u, half == 0 ? 0x9914u : 0xbb34u);
      const int i = 4 * n + 2 * half;
      ds[n / 2][n % 2 * 2 + half] = pack_2<spec::kDType>(
          __builtin_bit_cast(float, low) * d[i], __builtin_bit_cast(float, high) * d[i + 1]);
    }
  }
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
