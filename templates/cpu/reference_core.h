// What templates/tile/reference_warp.cuh has, for one core in a warp's place: so the oracle of
// gradients can be run and looked at where there is no GPU.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/tile/dropout.cuh"

namespace att {

constexpr int kReferenceWarps = 1;  // a call is a row
constexpr int kReferenceLanes = 1;

struct Words {
  unsigned at[spec::kDType == DType::f32 ? 8 : 4];
};

ATT_FN float element_of(unsigned bits) {  // the low half
  bits &= 0xffffu;
  if constexpr (spec::kDType == DType::bf16) return __builtin_bit_cast(float, bits << 16);
  const unsigned size = (bits & 0x7fffu) << 13, sign = (bits & 0x8000u) << 16;
  // Infinity and NaN; else the exponent's bias differs.
  const float value = size >= 0x7c00u << 13 ? __builtin_bit_cast(float, size | 0x7f800000u)
                                            : __builtin_bit_cast(float, size) * 0x1p112f;
  return __builtin_bit_cast(float, __builtin_bit_cast(unsigned, value) | sign);
}

ATT_FN float read_element(const void* base, long long at) {
  if constexpr (spec::kDType == DType::f32) return static_cast<const float*>(base)[at];
  return element_of(static_cast<const unsigned short*>(base)[at]);
}

ATT_FN float element(const Words& words, int i) {
  if constexpr (spec::kDType == DType::f32) return __builtin_bit_cast(float, words.at[i]);
  return element_of(words.at[i / 2] >> (16 * (i % 2)));
}
ATT_FN Words read_8(const void* base, long long at) {
  constexpr int kBytes = spec::kDType == DType::f32 ? 4 : 2;
  Words words;
  __builtin_memcpy(&words, static_cast<const char*>(base) + at * kBytes, sizeof words);
  return words;
}

ATT_FN double shuffle_from(double x, int) { return x; }
ATT_FN unsigned ballot(bool condition) { return condition ? 1u : 0u; }
ATT_FN double warp_sum(double x) { return x; }
ATT_FN float warp_max(float x) { return x; }

ATT_FN double sqrt_exact(double x) { return __builtin_sqrt(x); }

ATT_FN void atomic_add(double* to, double value) {
  typedef unsigned long long __attribute__((may_alias)) Bits;
  Bits* const at = reinterpret_cast<Bits*>(to);
  Bits old = __atomic_load_n(at, __ATOMIC_RELAXED);
  Bits sum = 0;
  do {
    sum = __builtin_bit_cast(Bits, __builtin_bit_cast(double, old) + value);
  } while (!__atomic_compare_exchange_n(at, &old, sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

// Philox4x32-7 as in templates/tile/dropout.cuh.
ATT_FN bool is_dropped(const Context& c, int q_idx, int kv_idx) {
  const unsigned long long seed = dropout_seed(c.params), offset = dropout_offset(c.params);
  unsigned x[4] = {static_cast<unsigned>(kv_idx / 32 * 4 + kv_idx % 8 / 2),
                   static_cast<unsigned>(q_idx / 16 * 8 + q_idx % 8),
                   static_cast<unsigned>(c.b * c.params.heads + c.h),
                   static_cast<unsigned>(offset)};
  unsigned key0 = static_cast<unsigned>(seed);
  unsigned key1 = static_cast<unsigned>(seed >> 32) + static_cast<unsigned>(offset >> 32);
  for (int round = 0; round < 7; ++round) {
    const unsigned long long a = 0xD2511F53ull * x[0], b = 0xCD9E8D57ull * x[2];
    x[0] = static_cast<unsigned>(b >> 32) ^ x[1] ^ key0;
    x[1] = static_cast<unsigned>(b);
    x[2] = static_cast<unsigned>(a >> 32) ^ x[3] ^ key1;
    x[3] = static_cast<unsigned>(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const int byte = q_idx % 16 / 8 * 8 + kv_idx % 32 / 8 * 2 + kv_idx % 2;
  return (x[byte / 4] >> (8 * (byte % 4)) & 255u) < dropout_drop_below(c);
}

}  // namespace att
