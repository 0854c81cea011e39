// The two matrix products of one warp over a chunk of keys, operands in shared memory.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/ldmatrix.cuh"
#include "templates/ptx/mma.cuh"
#include "templates/tile/smem_layout.cuh"

namespace att {

// Which row and unit of a 16 x 16 block a lane addresses for ldmatrix_x4. As A operand, or as a
// transposed B operand (V): matrices go down the rows first. As a plain B operand (K): across
// first.
ATT_FN int down_row(int lane) { return lane % 16; }
ATT_FN int down_unit(int lane) { return lane / 16; }
ATT_FN int across_row(int lane) { return lane / 16 * 8 + lane % 8; }
ATT_FN int across_unit(int lane) { return lane / 8 % 2; }

// s[m][n] = Q K^T for kBlocks x 16 queries and kKeys keys: `q` gives the A fragment of block m and
// step k; `k_address` is this lane's ldmatrix address of the chunk's first 16 keys. kUnroll steps
// stand in one loop body.
template <int kBlocks, int kKeys, int kDim, int kUnroll, typename QFragment>
ATT_FN void product_qk(float (&s)[kBlocks][kKeys / 8][4], const QFragment& q, unsigned k_address) {
  using Layout = RowLayout<kDim>;
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[m][n][e] = 0.0f;
    }
  }
#pragma unroll kUnroll
  for (int k = 0; k < kDim / 16; ++k) {
    unsigned a[kBlocks][4];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) q(a[m], m, k);
    const unsigned column = Layout::step(k_address, 2 * k);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      unsigned b[4];
      ldmatrix_x4(b, column + n * 16 * Layout::kRowBytes);
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        mma_m16n8k16<spec::kDType>(s[m][2 * n], a[m], b[0], b[1]);
        mma_m16n8k16<spec::kDType>(s[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// o[m][n] += P V for kBlocks x 16 queries and 16 keys: `p` are A fragments, `v_address` this lane's
// transposing ldmatrix address of the 16 keys.
template <int kBlocks, int kDim>
ATT_FN void product_pv(float (&o)[kBlocks][kDim / 8][4], const unsigned (&p)[kBlocks][4],
                       unsigned v_address) {
  using Layout = RowLayout<kDim>;
#pragma unroll
  for (int n = 0; n < kDim / 16; ++n) {
    unsigned b[4];
    ldmatrix_x4_trans(b, Layout::step(v_address, 2 * n));
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      mma_m16n8k16<spec::kDType>(o[m][2 * n], p[m], b[0], b[1]);
      mma_m16n8k16<spec::kDType>(o[m][2 * n + 1], p[m], b[2], b[3]);
    }
  }
}

}  // namespace att
