// The operands of fp32's products: tf32, one of plan::kTf32Products = 1 product, or in two parts
// for three, with fp32's errors. x = big + small, each of them a tf32: big big is added up by
// itself, big small + small big beside it (small small is below fp32's rounding), and sums of many
// keys are kept in fp32 additions, which round to the nearest where the tensor core truncates.
#pragma once

#include "templates/ptx/mma_tf32.cuh"
#include "templates/tile/dropout_scores.cuh"
#include "templates/tile/elements_fp32.cuh"
#include "templates/tile/operands.cuh"

namespace att {

constexpr bool kInParts = plan::kTf32Products == 3;

// kCount elements, as fp32's bits.
template <int kCount>
struct Tf32Elements {
  unsigned big[kCount];
  unsigned small[kCount];  // only with three products

  ATT_MEMBER void set(int i, unsigned x) {
    if constexpr (kInParts) {
      // What becomes of a NaN here does not matter: its small part is NaN. Tensor cores read no
      // more than tf32's bits, so that one bit of the small part is lost at most: rounding it would
      // change that one's sign alone.
      big[i] = (x + 0x1000u) & 0xffffe000u;
      small[i] = __builtin_bit_cast(
          unsigned, __builtin_bit_cast(float, x) - __builtin_bit_cast(float, big[i]));
    } else {
      big[i] = round_to_tf32(x);
    }
  }
};
using Tf32Rows = Tf32Elements<4>;     // an A fragment
using Tf32Columns = Tf32Elements<2>;  // a B fragment

ATT_FN void multiply_small_parts(float (&sum)[4], const Tf32Rows& a, const Tf32Columns& b) {
  mma_m16n8k8_tf32(sum, a.big, b.small[0], b.small[1]);
  mma_m16n8k8_tf32(sum, a.small, b.big[0], b.big[1]);
}

// big += a b's large part, small += the rest. small is not touched with one product.
ATT_FN void multiply_tf32(float (&big)[4], float (&small)[4], const Tf32Rows& a,
                          const Tf32Columns& b) {
  if constexpr (kInParts) multiply_small_parts(small, a, b);
  mma_m16n8k8_tf32(big, a.big, b.big[0], b.big[1]);
}

// Where an infinity is in play, the small parts are NaN, and the big ones tell what there is.
ATT_FN float joined_parts(float big, float small) {
  return math_abs(big) < infinity() ? big + small : big;
}

template <>
struct Operands<DType::f32> {
  static constexpr int kDepth = 8;
  static constexpr int kLongestChunk = 32;
  static constexpr int kStepsAtOnce = 2;

  // Matrices of ldmatrix are 8 rows of 16 bytes: of 2-byte elements 8 columns, of fp32 4, and the
  // same addresses give the fragments of m16n8k8 that give those of m16n8k16.
  template <int kBlocks, int kKeys, int kDim, int kUnroll, typename Fragment>
  static ATT_MEMBER void multiply(float (&s)[kBlocks][kKeys / 8][4], const Fragment& rows,
                                  unsigned address) {
    using Layout = WideRowLayout<kDim>;
    float small[kBlocks][kKeys / 8][4];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n][e] = small[m][n][e] = 0.0f;
      }
    }
#pragma unroll kUnroll
    for (int k = 0; k < kDim / kDepth; ++k) {
      Tf32Rows a[kBlocks];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        unsigned raw[4];
        rows(raw, m, k);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[m].set(i, raw[i]);
      }
      const unsigned column = Layout::step(address, 2 * k);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        unsigned raw[4];
        ldmatrix_x4(raw, column + n * 16 * Layout::kRowBytes);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          Tf32Columns b;
          b.set(0, raw[2 * half]);
          b.set(1, raw[2 * half + 1]);
#pragma unroll
          for (int m = 0; m < kBlocks; ++m) {
            multiply_tf32(s[m][2 * n + half], small[m][2 * n + half], a[m], b);
          }
        }
      }
    }
    if constexpr (kInParts) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) s[m][n][e] = joined_parts(s[m][n][e], small[m][n][e]);
        }
      }
    }
  }

  // Accumulators hold columns 2t and 2t + 1 of 8 where an A fragment wants t and t + 4. The rows
  // that are summed over may come in any order: a B fragment's rows t and t + 4 are 2t and 2t + 1.
  // `row` and `unit` are a lane's down_row and down_unit: lane 4g + t begins at row 2t, column g.
  template <int kDim>
  struct Summed {
    static ATT_MEMBER int offset(int row, int unit) {
      return WideRowLayout<kDim>::offset(row % 4 * 2, unit) + row / 4 * 4;
    }
  };
  static ATT_MEMBER void set_rows(Tf32Rows& a, const float (&accumulators)[4]) {
    constexpr int kOf[] = {0, 2, 1, 3};
#pragma unroll
    for (int i = 0; i < 4; ++i) a.set(i, __builtin_bit_cast(unsigned, accumulators[kOf[i]]));
  }

  // sum(m, n) += a[m] times columns kFirst + 8n of kSteps x 8 rows, n < kCount / 8; this lane reads
  // the rows at `from`. Of kFinite sums, of which an infinity may make NaN, the large products join
  // the small ones in their accumulator.
  template <bool kFinite, int kBlocks, int kSteps, int kDim, int kFirst, int kCount, typename Sum>
  static ATT_MEMBER void add_product(const Sum& sum, const Tf32Rows (&a)[kBlocks][kSteps],
                                     unsigned from) {
    using Layout = WideRowLayout<kDim>;
#pragma unroll
    for (int n = 0; n < kCount / 8; ++n) {
      const unsigned even = Layout::step(from, kFirst / 4 + 2 * n);
      const unsigned odd = (even ^ 16u) + Layout::kRowBytes;
      Tf32Columns b[kSteps];
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        b[j].set(0, load_shared_4(even + j * 8 * Layout::kRowBytes));
        b[j].set(1, load_shared_4(odd + j * 8 * Layout::kRowBytes));
      }
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        if constexpr (kInParts) {
          float small[4] = {};
#pragma unroll
          for (int j = 0; j < kSteps; ++j) multiply_small_parts(small, a[m][j], b[j]);
          float apart[4] = {};
          float(&big)[4] = kFinite ? small : apart;
#pragma unroll
          for (int j = 0; j < kSteps; ++j) {
            mma_m16n8k8_tf32(big, a[m][j].big, b[j].big[0], b[j].big[1]);
          }
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            sum(m, n)[e] += kFinite ? big[e] : joined_parts(big[e], small[e]);
          }
        } else {
#pragma unroll
          for (int j = 0; j < kSteps; ++j) {
            mma_m16n8k8_tf32(sum(m, n), a[m][j].big, b[j].big[0], b[j].big[1]);
          }
        }
      }
    }
  }

  template <bool kFinite, int kBlocks, int kKeys, int kDim, typename Address>
  static ATT_MEMBER void add_values(float (&o)[kBlocks][kDim / 8][4],
                                    float (&s)[kBlocks][kKeys / 8][4], const Context& c, int q0,
                                    int k0, const Address& values) {
    // Keys whose products are added up before they join O: registers have room for no more.
    constexpr int kGroup = kBlocks == 1 && kDim <= 128 && kKeys % 32 == 0 ? 32 : 16;
#pragma unroll
    for (int first = 0; first < kKeys; first += kGroup) {
      if constexpr (spec::kHasDropout) {
        constexpr int kDrawn = kKeys < 32 ? kKeys : 32;
        if (first % kDrawn == 0) drop_probabilities<kDrawn>(s, first / 8, c, q0, k0 + first);
      }
      Tf32Rows p[kBlocks][kGroup / 8];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int j = 0; j < kGroup / 8; ++j) set_rows(p[m][j], s[m][first / 8 + j]);
      }
      add_product<kFinite, kBlocks, kGroup / 8, kDim, 0, kDim>(
          [&](int m, int n) -> float(&)[4] { return o[m][n]; }, p, values(first));
    }
  }

  template <int kStep>
  struct Factor {
    float values[kStep / 8][4];
    ATT_MEMBER void set(int n, int half, float low, float high) {
      values[n][2 * half] = low;
      values[n][2 * half + 1] = high;
    }
  };

  template <int kDim, int kFirst, int kCount, int kStep>
  static ATT_MEMBER void add_rows(float (&sum)[kCount / 8][4], const Factor<kStep>& factor,
                                  unsigned tile) {
    const int lane = lane_index();
    const unsigned from = tile + Summed<kDim>::offset(down_row(lane), down_unit(lane));
    constexpr int kGroup = kStep % 32 == 0 ? 32 : 16;
#pragma unroll
    for (int first = 0; first < kStep; first += kGroup) {
      Tf32Rows a[1][kGroup / 8];
#pragma unroll
      for (int j = 0; j < kGroup / 8; ++j) set_rows(a[0][j], factor.values[first / 8 + j]);
      add_product<false, 1, kGroup / 8, kDim, kFirst, kCount>(
          [&](int, int n) -> float(&)[4] { return sum[n]; }, a,
          from + first * WideRowLayout<kDim>::kRowBytes);
    }
  }
};

}  // namespace att
