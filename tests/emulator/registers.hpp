// Asm statements' operands as a thread's registers, which are bits, and PTX instructions that read
// and write nothing else.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <tuple>
#include <type_traits>

#include "tests/emulator/machine_calls.hpp"

namespace emu {

struct u128 {
  u64 low, high;
};

// What an asm statement's operand of constraint r, f, h, l and d puts into a register.
template <typename T>
u32 bits_r(T x) {
  if constexpr (std::is_floating_point_v<T>)
    return __builtin_bit_cast(u32, x);
  else
    return static_cast<u32>(x);
}
inline u32 bits_f(float x) { return __builtin_bit_cast(u32, x); }
inline u16 bits_h(u16 x) { return x; }
template <typename T>
u64 bits_l(T x) {
  if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<u64>(x);
  else
    return static_cast<u64>(x);
}
inline u64 bits_d(double x) { return __builtin_bit_cast(u64, x); }

// An output operand.
template <typename T>
struct Target {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
  using Bits =
      std::conditional_t<sizeof(T) == 2, u16, std::conditional_t<sizeof(T) == 4, u32, u64>>;
  T& place;
  Bits bits() const { return __builtin_bit_cast(Bits, place); }
  Bits undefined() const { return static_cast<Bits>(0x5EADBEEF5EADBEEFull); }
  void take(Bits value) const { place = __builtin_bit_cast(T, value); }
};
template <typename T>
Target(T&) -> Target<T>;

template <typename... T>
std::tuple<T&&...> list(T&&... each) {
  return {static_cast<T&&>(each)...};
}

inline float as_float(u32 x) { return __builtin_bit_cast(float, x); }
inline u32 of_float(float x) { return __builtin_bit_cast(u32, x); }
inline double as_double(u64 x) { return __builtin_bit_cast(double, x); }
inline u64 of_double(double x) { return __builtin_bit_cast(u64, x); }
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

// Moves and integers.
template <typename T>
void mov_b32(u32& d, T a) {
  d = static_cast<u32>(a);
}
inline void mov_b32(const std::tuple<u16&, u16&>& d, u32 a) {
  std::get<0>(d) = static_cast<u16>(a);
  std::get<1>(d) = static_cast<u16>(a >> 16);
}
inline void mov_u32(u32& d, u32 a) { d = a; }
inline void mov_f32(u32& d, u32 a) { d = a; }
inline void mov_b64(u64& d, int a) { d = static_cast<u64>(a); }
template <typename A, typename B>
void mov_b64(u64& d, const std::tuple<A, B>& a) {
  d = static_cast<u32>(std::get<0>(a)) | static_cast<u64>(static_cast<u32>(std::get<1>(a))) << 32;
}
inline void mov_b64(const std::tuple<u32&, u32&>& d, u64 a) {
  std::get<0>(d) = static_cast<u32>(a);
  std::get<1>(d) = static_cast<u32>(a >> 32);
}
template <typename A, typename B>
void mov_b128(u128& d, const std::tuple<A, B>& a) {
  d = {std::get<0>(a), std::get<1>(a)};
}
inline void mov_b128(const std::tuple<u64&, u64&>& d, u128 a) {
  std::get<0>(d) = a.low;
  std::get<1>(d) = a.high;
}
inline void add_u32(u32& d, u32 a, long long b) { d = a + static_cast<u32>(b); }
inline void and_b32(u32& d, u32 a, u32 b) { d = a & b; }
inline void xor_b32(u32& d, u32 a, u32 b) { d = a ^ b; }
inline void mul_wide_u32(u64& d, u32 a, u32 b) { d = static_cast<u64>(a) * b; }
inline void mad_wide_u32(u64& d, u32 a, u32 b, u64 c) { d = static_cast<u64>(a) * b + c; }
inline void popc_b32(u32& d, u32 a) { d = static_cast<u32>(__builtin_popcount(a)); }
inline void bfind_u32(u32& d, u32 a) {
  d = a == 0 ? ~0u : 31u - static_cast<u32>(__builtin_clz(a));
}
inline void prmt_b32(u32& d, u32 a, u32 b, u32 selector) {
  const u64 bytes = static_cast<u64>(b) << 32 | a;
  d = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 pick = selector >> 4 * i & 15;
    u32 byte = static_cast<u32>(bytes >> 8 * (pick & 7)) & 0xFF;
    if (pick & 8) byte = byte & 0x80 ? 0xFF : 0;
    d |= byte << 8 * i;
  }
}
inline void setp_ne_b32(bool& p, u32 a, u32 b) { p = a != b; }
inline void setp_ne_u32(bool& p, u32 a, u32 b) { p = a != b; }
inline void setp_eq_u32(bool& p, u32 a, u32 b) { p = a == b; }
inline void selp_u32(u32& d, u32 a, u32 b, bool p) { d = p ? a : b; }
inline void selp_b32(u32& d, u32 a, u32 b, bool p) { d = p ? a : b; }

// Floats.
inline void mul_f32(u32& d, u32 a, u32 b) { d = of_float(as_float(a) * as_float(b)); }
inline void mul_rn_f32(u32& d, u32 a, u32 b) { mul_f32(d, a, b); }
inline void add_f32(u32& d, u32 a, u32 b) { d = of_float(as_float(a) + as_float(b)); }
inline void add_rn_f32(u32& d, u32 a, u32 b) { add_f32(d, a, b); }
inline void fma_rn_f32(u32& d, u32 a, u32 b, u32 c) {
  d = of_float(std::fma(as_float(a), as_float(b), as_float(c)));
}
inline void fma_rn_sat_f32(u32& d, u32 a, u32 b, u32 c) {
  const float x = std::fma(as_float(a), as_float(b), as_float(c));
  d = of_float(x > 1.0f ? 1.0f : x > 0.0f ? x : 0.0f);  // NaN gives 0
}
inline void abs_f32(u32& d, u32 a) { d = a & 0x7FFFFFFFu; }
inline void min_f32(u32& d, u32 a, u32 b) { d = of_float(std::fmin(as_float(a), as_float(b))); }
inline void max_f32(u32& d, u32 a, u32 b) { d = of_float(std::fmax(as_float(a), as_float(b))); }
inline void max_NaN_f32(u32& d, u32 a, u32 b) {
  const float x = as_float(a), y = as_float(b);
  d = std::isnan(x) || std::isnan(y) ? 0x7FFFFFFFu : of_float(x > y ? x : y);
}
inline void ex2_approx_ftz_f32(u32& d, u32 a) {
  d = of_float(flushed(std::exp2(flushed(as_float(a)))));
}
inline void lg2_approx_ftz_f32(u32& d, u32 a) { d = of_float(std::log2(flushed(as_float(a)))); }
inline void rcp_approx_ftz_f32(u32& d, u32 a) {
  d = of_float(flushed(1.0f / flushed(as_float(a))));
}
inline void sqrt_approx_ftz_f32(u32& d, u32 a) { d = of_float(std::sqrt(flushed(as_float(a)))); }
inline void sqrt_rn_f64(u64& d, u64 a) { d = of_double(std::sqrt(as_double(a))); }
inline void cvt_rmi_s32_f32(u32& d, u32 a) {
  const double x = std::floor(static_cast<double>(as_float(a)));
  d = std::isnan(x)       ? 0
      : x >= 2147483648.0 ? 0x7FFFFFFFu
      : x < -2147483648.0 ? 0x80000000u
                          : static_cast<u32>(static_cast<int>(x));
}

// Narrow floats.
inline float widened_f16(u16 half) { return _cvtsh_ss(half); }
inline u16 narrowed_f16(float x) { return _cvtss_sh(x, 0); }
inline float widened_bf16(u16 half) { return as_float(static_cast<u32>(half) << 16); }
inline u16 narrowed_bf16(float x) {
  const u32 all = of_float(x);
  if (std::isnan(x)) return 0x7FFF;
  return static_cast<u16>((all + 0x7FFF + (all >> 16 & 1)) >> 16);
}
inline void cvt_f32_f16(u32& d, u16 a) { d = of_float(widened_f16(a)); }
inline void cvt_rn_f16_f32(u16& d, u32 a) { d = narrowed_f16(as_float(a)); }
inline void cvt_rn_bf16_f32(u16& d, u32 a) { d = narrowed_bf16(as_float(a)); }
inline void cvt_rn_f16x2_f32(u32& d, u32 high, u32 low) {
  d = static_cast<u32>(narrowed_f16(as_float(high))) << 16 | narrowed_f16(as_float(low));
}
inline void cvt_rn_bf16x2_f32(u32& d, u32 high, u32 low) {
  d = static_cast<u32>(narrowed_bf16(as_float(high))) << 16 | narrowed_bf16(as_float(low));
}
inline void cvt_u16_u32(u16& d, u32 a) { d = static_cast<u16>(a); }
inline void cvt_rna_tf32_f32(u32& d, u32 a) {
  const bool is_finite = (a & 0x7F800000u) != 0x7F800000u;
  d = is_finite ? (a + 0x1000u) & ~0x1FFFu : a;
}
inline void cvt_rn_satfinite_e4m3x2_f32(u16& d, u32 high, u32 low) {
  d = static_cast<u16>(narrowed_e4m3(as_float(high)) << 8 | narrowed_e4m3(as_float(low)));
}
inline void mul_rn_bf16x2(u32& d, u32 a, u32 b) {
  const auto half = [&](int shift) {
    return narrowed_bf16(widened_bf16(static_cast<u16>(a >> shift)) *
                         widened_bf16(static_cast<u16>(b >> shift)));
  };
  d = static_cast<u32>(half(16)) << 16 | half(0);
}
inline void fma_rn_bf16x2(u32& d, u32 a, u32 b, u32 c) {
  const auto half = [&](int shift) {
    return narrowed_bf16(std::fma(widened_bf16(static_cast<u16>(a >> shift)),
                                  widened_bf16(static_cast<u16>(b >> shift)),
                                  widened_bf16(static_cast<u16>(c >> shift))));
  };
  d = static_cast<u32>(half(16)) << 16 | half(0);
}
inline void mul_rn_f16x2(u32& d, u32 a, u32 b) {
  const auto half = [&](int shift) {
    return narrowed_f16(widened_f16(static_cast<u16>(a >> shift)) *
                        widened_f16(static_cast<u16>(b >> shift)));
  };
  d = static_cast<u32>(half(16)) << 16 | half(0);
}

}  // namespace emu
