// What the oracles on a GPU are written with: elements of any dtype, exchange among the lanes of a
// warp in fp64, and whether an element is dropped. templates/cpu/reference_core.h has the same
// names for one core.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/dropout.cuh"

namespace att {

constexpr int kReferenceWarps = 4;  // of a block, a row each
constexpr int kReferenceLanes = 32;

// Eight consecutive elements, 16-byte aligned.
struct alignas(16) Words {
  unsigned at[spec::kDType == DType::f32 ? 8 : 4];
};

ATT_FN float element_of(unsigned bits) {  // the low half
  if constexpr (spec::kDType == DType::bf16) return __builtin_bit_cast(float, bits << 16);
  float value;
  asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(value) : "r"(bits));
  return value;
}

ATT_FN float read_element(const void* base, long long at) {
  if constexpr (spec::kDType == DType::f32) return static_cast<const float*>(base)[at];
  return element_of(static_cast<const unsigned short*>(base)[at]);
}

// Element i of eight.
ATT_FN float element(const Words& words, int i) {
  if constexpr (spec::kDType == DType::f32) return __builtin_bit_cast(float, words.at[i]);
  return element_of(words.at[i / 2] >> (16 * (i % 2)));
}
ATT_FN Words read_8(const void* base, long long at) {
  constexpr int kBytes = spec::kDType == DType::f32 ? 4 : 2;
  return *reinterpret_cast<const Words*>(static_cast<const char*>(base) + at * kBytes);
}

ATT_FN double shuffle_xor(double x, int distance) {
  double y;
  asm volatile(
      "{.reg .b32 lo, hi; mov.b64 {lo, hi}, %1; shfl.sync.bfly.b32 lo, lo, %2, 31, -1;"
      "shfl.sync.bfly.b32 hi, hi, %2, 31, -1; mov.b64 %0, {lo, hi};}"
      : "=d"(y)
      : "d"(x), "r"(distance));
  return y;
}
ATT_FN double shuffle_from(double x, int lane) {
  double y;
  asm volatile(
      "{.reg .b32 lo, hi; mov.b64 {lo, hi}, %1; shfl.sync.idx.b32 lo, lo, %2, 31, -1;"
      "shfl.sync.idx.b32 hi, hi, %2, 31, -1; mov.b64 %0, {lo, hi};}"
      : "=d"(y)
      : "d"(x), "r"(lane));
  return y;
}
ATT_FN double warp_sum(double x) {
  for (int distance = 16; distance > 0; distance /= 2) x += shuffle_xor(x, distance);
  return x;
}
ATT_FN float warp_max(float x) {
  for (int distance = 16; distance > 0; distance /= 2) x = math_max(x, shuffle_xor(x, distance));
  return x;
}

ATT_FN double sqrt_exact(double x) {
  double y;
  asm("sqrt.rn.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
}

ATT_FN void atomic_add(double* to, double value) {
  asm volatile("red.relaxed.gpu.global.add.f64 [%0], %1;" ::"l"(to), "d"(value) : "memory");
}

ATT_FN bool is_dropped(const Context& c, int q_idx, int kv_idx) {
  unsigned words[4];
  dropout_words(c, q_idx / 16, q_idx % 8, kv_idx / 32, kv_idx % 8 / 2, words);
  const int byte = q_idx % 16 / 8 * 8 + kv_idx % 32 / 8 * 2 + kv_idx % 2;
  return (words[byte / 4] >> (8 * (byte % 4)) & 255u) < dropout_drop_below(c);
}

}  // namespace att
