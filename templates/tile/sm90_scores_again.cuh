// The scores of a warp's rows once more, when their exponentials have taken their place and turn
// out to be too large. The warp alone multiplies: it need not wait for the others of its warpgroup,
// and no product that is in flight is touched.
#pragma once

#include "templates/ptx/ldmatrix.cuh"
#include "templates/ptx/mma.cuh"
#include "templates/tile/sm90_softmax.cuh"

namespace att {
namespace sm90 {

// `q_fragment(step, out)` gives Q's fragment of 16 columns; `k` is the first slab of the stage's K.
// The scores lie as wgmma leaves them, whose layout is mma's for every 8 keys.
template <typename QFragment>
ATT_FN void multiply_again(Scores& s, const QFragment& q_fragment, unsigned k, int first_key) {
  // Worked out here, not kept in registers over loops.
  const int lane = opaque(thread_index()) % 32;
  const int key = first_key + lane / 16 * 8 + lane % 8;
#pragma unroll
  for (int keys = 0; keys < kPieceKeys; keys += 16) {
    float d[2][4] = {};
#pragma unroll(plan::kQInRegisters ? kQkSteps : 1)
    for (int step = 0; step < kQkSteps; ++step) {
      unsigned a[4], b[4];
      q_fragment(step, a);
      ldmatrix_x4(b,
                  swizzled(k + step / 4 * kKvSlabBytes, key + keys, step % 4 * 2 + lane / 8 % 2));
      mma_m16n8k16<spec::kDType>(d[0], a, b[0], b[1]);
      mma_m16n8k16<spec::kDType>(d[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) s[keys / 2 + i] = d[i / 4][i % 4];
  }
}

}  // namespace sm90
}  // namespace att
