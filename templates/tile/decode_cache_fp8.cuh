// K and V of fp8 (e4m3) in the decode family: bytes on the way and in shared memory, 16 bits as
// operands. A step's scales, one a key, are copied beside its keys.
//
// S = Q K^T is a product of fp16, of which the widened elements take no multiplication: their power
// of two goes to the scores, with the scale of K. Q of bf16 becomes fp16 too, a row over a power of
// two that puts its largest element at 2^14: what is lost is 2^-39 of that. O = P V is a product of
// bf16, because the scale of V goes to P, which may then be of any size.
//
// ldmatrix brings 16 bytes of a row as pairs, so which column of a product is which of the head is
// not as elsewhere. Of Q K^T a lane has four columns that follow one another, in Q and K alike. Of
// P V a pair of bytes are an even and an odd column of O, in two of the tensor core's tiles.
#pragma once

#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/fp8.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/decode_cache.cuh"
#include "templates/tile/quad.cuh"

namespace att {

template <>
struct DecodeCache<DType::f8_e4m3> {
  static constexpr int kBytes = 1;
  static constexpr int kScaleBytes = 2 * 4 * plan::kStepKeys;
  static ATT_MEMBER constexpr int padded(int dim) { return (dim + 31) / 32 * 32; }

  template <int kDim>
  using Rows = RowLayout<kDim / 2>;

  static ATT_MEMBER constexpr int copied(int dim) { return dim / 2; }
  // Strides are multiples of 16.
  static ATT_MEMBER Strides copied(const Strides& stride) {
    return {stride.batch >> 1, stride.seq >> 1, stride.head >> 1};
  }

  template <typename Params>
  static ATT_MEMBER void load_scales(const Params& p, unsigned to, int h_kv, int slice) {
    const int lane = lane_index();
    if constexpr (plan::kStepKeys == 32) {
      load_scale(p.k_scales, to + 4 * lane, h_kv, slice);
      load_scale(p.v_scales, to + 4 * (32 + lane), h_kv, slice);
    } else {
      load_scale(lane < 16 ? p.k_scales : p.v_scales, to + 4 * lane, h_kv, slice);
    }
  }

  template <int kBlocks, int kDim>
  struct Queries {
    unsigned words[kBlocks][kDim / 16][4];
    float units[kBlocks][2];  // what a row of scores is to be multiplied by

    ATT_MEMBER void keep(unsigned shared) {
      using Layout = RowLayout<kDim>;
      const int lane = lane_index();
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = 16 * m + lane / 4 + 8 * half;
#pragma unroll
          for (int k = 0; k < kDim / 16; ++k) {
            unsigned low, high;
            load_shared_8(shared + Layout::offset(row, 2 * k + lane % 4 / 2) + lane % 2 * 8, low,
                          high);
            words[m][k][half] = byte_permute(low, high, 0x5410);
            words[m][k][half + 2] = byte_permute(low, high, 0x7632);
          }
          if constexpr (spec::kDType == DType::bf16) narrow(m, half);
        }
      }
    }

    ATT_MEMBER float unit(int m, int half) const {
      return spec::kDType == DType::bf16 ? units[m][half] : kFp8OfF16;
    }

   private:
    // A row of bf16 as fp16.
    ATT_MEMBER void narrow(int m, int half) {
      unsigned largest = 0;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
        for (int i = half; i < 4; i += 2) {
          const unsigned magnitudes = words[m][k][i] & 0x7fff7fffu;
          const unsigned low = magnitudes << 16;
          largest = low > largest ? low : largest;
          largest = magnitudes > largest ? magnitudes : largest;
        }
      }
      const float of_row = quad_max(__builtin_bit_cast(float, largest & 0xffff0000u));
      // 2^14 over the power of two below it, and back; both are normal numbers.
      const unsigned bits = __builtin_bit_cast(unsigned, of_row) >> 23;
      const unsigned power = bits < 27 ? 27 : bits > 250 ? 250 : bits;
      const float factor = __builtin_bit_cast(float, (268 - power) << 23);
      units[m][half] = __builtin_bit_cast(float, (power - 14) << 23) * kFp8OfF16;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
        for (int i = half; i < 4; i += 2) {
          unsigned& word = words[m][k][i];
          word = pack_2<DType::f16>(__builtin_bit_cast(float, word << 16) * factor,
                                    __builtin_bit_cast(float, word & 0xffff0000u) * factor);
        }
      }
    }
  };

  template <int kBlocks, int kKeys, int kDim>
  static ATT_MEMBER void multiply(float (&s)[kBlocks][kKeys / 8][4],
                                  const Queries<kBlocks, kDim>& queries, unsigned k,
                                  unsigned scales, int lane) {
    using Layout = Rows<kDim>;
    const unsigned address = k + Layout::offset(across_row(lane), across_unit(lane));
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n][e] = 0.0f;
      }
    }
#pragma unroll
    for (int step = 0; step < kDim / 32; ++step) {
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        unsigned bytes[4];  // 8 keys by 16 columns each, across first
        ldmatrix_x4(bytes, Layout::step(address, 2 * step) + n * 16 * Layout::kRowBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int side = i % 2, unit = i / 2;  // products that follow one another add to two sums
          unsigned even, odd;
          widen_fp8_to_f16(bytes[2 * side + unit], even, odd);
#pragma unroll
          for (int m = 0; m < kBlocks; ++m) {
            mma_m16n8k16<DType::f16>(s[m][2 * n + side], queries.words[m][2 * step + unit], even,
                                     odd);
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      float scale[2];
      load_shared_8(scales + 4 * (8 * n + lane % 4 * 2), scale[0], scale[1]);
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n][e] *= scale[e % 2] * queries.unit(m, e / 2);
      }
    }
  }

  static constexpr DType kWeights = DType::bf16;

  template <int kBlocks, int kKeys>
  static ATT_MEMBER void scale_weights(float (&p)[kBlocks][kKeys / 8][4], unsigned scales,
                                       int lane) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      float scale[2];
      load_shared_8(scales + 4 * (kKeys + 8 * n + lane % 4 * 2), scale[0], scale[1]);
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) p[m][n][e] *= scale[e % 2];
      }
    }
  }

  template <int kBlocks, int kDim>
  static ATT_MEMBER void add_values(float (&o)[kBlocks][kDim / 8][4],
                                    const unsigned (&p)[kBlocks][4], unsigned v) {
#pragma unroll
    for (int n = 0; n < kDim / 32; ++n) {
      unsigned bytes[4];  // 8 keys by 16 columns each, down first
      ldmatrix_x4_trans(bytes, Rows<kDim>::step(v, 2 * n));
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        unsigned even[2], odd[2];  // columns, of the first 8 keys and of the others
        split_columns(bytes[i], even[0], odd[0]);
        split_columns(bytes[i + 1], even[1], odd[1]);
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          mma_m16n8k16<DType::bf16>(o[m][4 * n + i], p[m], even[0], even[1]);
          mma_m16n8k16<DType::bf16>(o[m][4 * n + i + 1], p[m], odd[0], odd[1]);
        }
      }
    }
  }

  static ATT_MEMBER int first_column(int lane) { return lane % 4 * 4; }
  static ATT_MEMBER constexpr int column(int n, int e) { return n / 2 * 16 + 2 * e + n % 2; }

 private:
  static ATT_MEMBER void load_scale(const CacheScales& scales, unsigned to, int h_kv, int slice) {
    if (scales.values == nullptr) {
      store_shared_4(to, __builtin_bit_cast(unsigned, slice < 0 ? 0.0f : 1.0f));
      return;
    }
    const float* const from =
        scales.values + (slice < 0 ? 0 : slice) * scales.slice + h_kv * scales.head;
    cp_async_4_or_zero(to, from, slice >= 0);
  }

  // Two columns of one key, then of the next, as bf16: each column's pair of keys.
  static ATT_MEMBER void split_columns(unsigned bytes, unsigned& even, unsigned& odd) {
    widen_fp8_to_bf16(bytes, even, odd);
    even = times_2_120(even);
    odd = times_2_120(odd);
  }
};

}  // namespace att
