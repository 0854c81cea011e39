// What translated kernels call: PTX instructions under their own names, with "_" for "." and ":".
// Registers are bits. Instructions of one thread are here; those that have to do with other threads
// or with memory are the machine's.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cmath>
#include <tuple>
#include <type_traits>
#include <utility>

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

// Global memory.
template <typename T>
T& global(u64 address) {
  return *static_cast<T*>(global_memory(address, sizeof(T)));
}
inline void ld_global_nc_s32(u32& d, u64 a) { d = global<u32>(a); }
inline void ld_global_nc_f32(u32& d, u64 a) { d = global<u32>(a); }
inline void ld_global_nc_u8(u32& d, u64 a) { d = global<unsigned char>(a); }
inline void ld_global_nc_u16(u16& d, u64 a) { d = global<u16>(a); }
inline void ld_global_nc_u64(u64& d, u64 a) { d = global<u64>(a); }
template <typename List>
void load_list(const List& d, void* from) {
  const u32* words = static_cast<const u32*>(from);
  std::apply([&](auto&... each) { ((each = *words++), ...); }, d);
}
template <typename List>
void store_list(void* to, const List& a) {
  u32* words = static_cast<u32*>(to);
  std::apply([&](const auto&... each) { ((*words++ = each), ...); }, a);
}
template <typename List>
constexpr unsigned bytes_of(const List&) {
  return 4 * std::tuple_size_v<List>;
}
template <typename List>
void ld_global_nc_v4_b32(const List& d, u64 a) {
  load_list(d, global_memory(a, bytes_of(d)));
}
template <typename List>
void ld_global_cg_v4_f32(const List& d, u64 a) {
  load_list(d, global_memory(a, bytes_of(d)));
}
template <typename List>
void st_global_v4_b32(u64 a, const List& b) {
  store_list(global_memory(a, bytes_of(b)), b);
}
template <typename List>
void st_global_v2_b32(u64 a, const List& b) {
  store_list(global_memory(a, bytes_of(b)), b);
}
inline void prefetch_global_L1(u64) {}
inline void cp_async_bulk_prefetch_L2_global(u64, u32) {}
inline void prefetch_tensormap(u64) {}
// Threads take turns, never within an instruction: atomics are plain. Who reads what others write
// may be waiting for it, and lets them.
inline void ld_acquire_gpu_global_u32(u32& d, u64 a) {
  let_others_run();
  d = global<u32>(a);
}
inline void ld_relaxed_gpu_global_u32(u32& d, u64 a) { ld_acquire_gpu_global_u32(d, a); }
inline void nanosleep_u32(u32) { let_others_run(); }
inline void atom_relaxed_gpu_global_add_u32(u32& d, u64 a, u32 b) {
  d = global<u32>(a);
  global<u32>(a) = d + b;
}
inline void atom_acq_rel_gpu_global_add_u32(u32& d, u64 a, u32 b) {
  atom_relaxed_gpu_global_add_u32(d, a, b);
}
inline void atom_relaxed_gpu_global_exch_b128(u128& d, u64 a, u128 b) {
  d = global<u128>(a);
  global<u128>(a) = b;
}
inline void red_release_gpu_global_max_s32(u64 a, u32 b) {
  int& place = global<int>(a);
  if (static_cast<int>(b) > place) place = static_cast<int>(b);
}
inline void red_relaxed_gpu_global_add_f32(u64 a, u32 b) { global<float>(a) += as_float(b); }
inline void red_relaxed_gpu_global_add_f64(u64 a, u64 b) { global<double>(a) += as_double(b); }
template <typename List>
void red_relaxed_gpu_global_add_v4_f32(u64 a, const List& b) {
  float* to = static_cast<float*>(global_memory(a, 16));
  std::apply([&](const auto&... each) { ((*to++ += as_float(each)), ...); }, b);
}

// Shared memory.
template <typename T>
T& shared(u32 address) {
  return *static_cast<T*>(shared_memory(address, sizeof(T)));
}
inline void cvta_to_shared_u64(u64& d, u64 a) { d = shared_address(reinterpret_cast<void*>(a)); }
inline void ld_shared_b32(u32& d, u32 a) { d = shared<u32>(a); }
inline void st_shared_b32(u32 a, u32 b) { shared<u32>(a) = b; }
template <typename List>
void ld_shared_v2_b32(const List& d, u32 a) {
  load_list(d, shared_memory(a, bytes_of(d)));
}
template <typename List>
void ld_shared_v2_f32(const List& d, u32 a) {
  load_list(d, shared_memory(a, bytes_of(d)));
}
template <typename List>
void ld_shared_v4_b32(const List& d, u32 a) {
  load_list(d, shared_memory(a, bytes_of(d)));
}
template <typename List>
void ld_shared_v4_f32(const List& d, u32 a) {
  load_list(d, shared_memory(a, bytes_of(d)));
}
template <typename List>
void st_shared_v2_b32(u32 a, const List& b) {
  store_list(shared_memory(a, bytes_of(b)), b);
}
template <typename List>
void st_shared_v2_f32(u32 a, const List& b) {
  store_list(shared_memory(a, bytes_of(b)), b);
}
template <typename List>
void st_shared_v4_b32(u32 a, const List& b) {
  store_list(shared_memory(a, bytes_of(b)), b);
}
template <typename List>
void st_shared_v4_f32(u32 a, const List& b) {
  store_list(shared_memory(a, bytes_of(b)), b);
}
inline void atom_shared_add_u32(u32& d, u32 a, u32 b) {
  d = shared<u32>(a);
  shared<u32>(a) = d + b;
}
inline void red_shared_add_s32(u32 a, u32 b) { shared<u32>(a) += b; }
inline void red_shared_max_s32(u32 a, u32 b) {
  int& place = shared<int>(a);
  if (static_cast<int>(b) > place) place = static_cast<int>(b);
}
inline void red_shared_or_b32(u32 a, u32 b) { shared<u32>(a) |= b; }
inline void red_relaxed_cluster_shared__cluster_or_b32(u32 a, u32 b) { shared<u32>(a) |= b; }
inline void mapa_shared__cluster_u32(u32& d, u32 a, u32 rank) { d = (a & 0xFFFFFFu) | rank << 24; }
template <typename List>
void st_async_shared__cluster_mbarrier__complete_tx__bytes_v2_f32(u32 a, const List& b, u32 told) {
  u32 words[std::tuple_size_v<List>];
  store_list(words, b);
  store_async(a, words, std::tuple_size_v<List>, told);
}
template <typename List>
void st_async_shared__cluster_mbarrier__complete_tx__bytes_v4_f32(u32 a, const List& b, u32 told) {
  st_async_shared__cluster_mbarrier__complete_tx__bytes_v2_f32(a, b, told);
}

// Copies.
inline void cp_async_cg_shared_global_L2__128B(u32 to, u64 from, u32 bytes, u32 read = 16) {
  copy_async(to, from, bytes, read);
}
inline void cp_async_ca_shared_global(u32 to, u64 from, u32 bytes, u32 read) {
  copy_async(to, from, bytes, read);
}
inline void cp_async_commit_group() { copy_commit(); }
inline void cp_async_wait_group(int groups) { copy_wait(groups); }
inline void cp_async_mbarrier_arrive_noinc_shared_b64(u32 barrier) { copy_arrive(barrier); }
inline void cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes(u32 to, u64 from,
                                                                              u32 bytes,
                                                                              u32 barrier) {
  bulk_load(to, from, bytes, barrier);
}
template <typename List>
void box_load(u32 to, u64 map, const List& at, u32 barrier, u32 ctas) {
  int coordinates[5] = {}, *each = coordinates;
  std::apply([&](const auto&... one) { ((*each++ = static_cast<int>(one)), ...); }, at);
  tensor_load(to, map, coordinates, std::tuple_size_v<List>, barrier, ctas);
}
constexpr u32 kOwnCta = 0;
template <typename List>
void cp_async_bulk_tensor_4d_shared__cluster_global_mbarrier__complete_tx__bytes_L2__cache_hint(
    u32 to, u64 map, const List& at, u32 barrier, u64) {
  box_load(to, map, at, barrier, kOwnCta);
}
template <typename List>
void cp_async_bulk_tensor_5d_shared__cluster_global_mbarrier__complete_tx__bytes_L2__cache_hint(
    u32 to, u64 map, const List& at, u32 barrier, u64) {
  box_load(to, map, at, barrier, kOwnCta);
}
template <typename List>
void cp_async_bulk_tensor_4d_shared__cluster_global_mbarrier__complete_tx__bytes_multicast__cluster_L2__cache_hint(
    u32 to, u64 map, const List& at, u32 barrier, u16 ctas, u64) {
  box_load(to, map, at, barrier, ctas);
}
template <typename List>
void cp_async_bulk_tensor_5d_shared__cluster_global_mbarrier__complete_tx__bytes_multicast__cluster_L2__cache_hint(
    u32 to, u64 map, const List& at, u32 barrier, u16 ctas, u64) {
  box_load(to, map, at, barrier, ctas);
}
template <typename List>
void cp_async_bulk_tensor_4d_global_shared__cta_bulk_group(u64 map, const List& at, u32 from) {
  int coordinates[5] = {}, *each = coordinates;
  std::apply([&](const auto&... one) { ((*each++ = static_cast<int>(one)), ...); }, at);
  tensor_store(map, coordinates, std::tuple_size_v<List>, from);
}
template <typename List>
void cp_async_bulk_tensor_5d_global_shared__cta_bulk_group(u64 map, const List& at, u32 from) {
  cp_async_bulk_tensor_4d_global_shared__cta_bulk_group(map, at, from);
}
inline void cp_async_bulk_commit_group() { store_commit(); }
inline void cp_async_bulk_wait_group_read(int groups) { store_wait(groups); }
inline void cp_async_bulk_wait_group(int groups) { store_wait(groups); }
inline void fence_proxy_async_shared__cta() {}
inline void fence_proxy_async_global() {}
inline void fence_mbarrier_init_release_cluster() {}

// Barriers.
inline void mbarrier_init_shared__cta_b64(u32 a, u32 arrivals) { mbarrier_init(a, arrivals); }
inline void mbarrier_arrive_shared__cta_b64(u32 a) { mbarrier_arrive(a, 0); }
inline void mbarrier_arrive_shared__cluster_b64(u32 a) { mbarrier_arrive(a, 0); }
inline void mbarrier_arrive_release_cluster_shared__cluster_b64(u32 a) { mbarrier_arrive(a, 0); }
inline void mbarrier_arrive_expect_tx_shared__cta_b64(u32 a, u32 bytes) {
  mbarrier_arrive(a, bytes);
}
inline void mbarrier_try_wait_parity_shared__cta_b64(bool& p, u32 a, u32 parity) {
  p = mbarrier_try_wait(a, parity);
}
inline void mbarrier_try_wait_parity_acquire_cluster_shared__cta_b64(bool& p, u32 a, u32 parity) {
  p = mbarrier_try_wait(a, parity);
}
inline void barrier_cta_sync(u32 barrier, u32 threads) { barrier_arrive(barrier, threads, true); }
inline void barrier_cta_arrive(u32 barrier, u32 threads) {
  barrier_arrive(barrier, threads, false);
}
inline void barrier_cta_red_or_pred(bool& d, u32 barrier, u32 threads, bool p) {
  d = barrier_any(barrier, threads, p);
}
inline void barrier_cluster_arrive_release_aligned() { cluster_arrive(); }
inline void barrier_cluster_wait_acquire_aligned() { cluster_wait(); }
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}
inline void setmaxnreg_inc_sync_aligned_u32(int) {}
inline void setmaxnreg_dec_sync_aligned_u32(int) {}
[[noreturn]] inline void exit() { end_thread(); }
inline u32 special_cluster_ctarank() { return cluster_rank(); }

// Warps.
constexpr u32 kWholeWarp = 0xFFFFFFFFu;
inline void whole(u32 mask) {
  if (mask != kWholeWarp) fault("a warp's instruction without all lanes");
}
inline void shfl_sync_bfly_b32(u32& d, u32 a, u32 lanes, u32 bounds, u32 mask) {
  whole(mask);
  d = shuffle(a, lanes, bounds, true);
}
inline void shfl_sync_idx_b32(u32& d, u32 a, u32 lane, u32 bounds, u32 mask) {
  whole(mask);
  d = shuffle(a, lane, bounds, false);
}
inline void redux_sync_min_u32(u32& d, u32 a, u32 mask) { whole(mask), d = reduce_least(a); }
inline void redux_sync_max_u32(u32& d, u32 a, u32 mask) { whole(mask), d = reduce_most(a); }
inline void redux_sync_add_s32(u32& d, u32 a, u32 mask) { whole(mask), d = reduce_sum(a); }
inline void vote_sync_ballot_b32(u32& d, bool p, u32 mask) { whole(mask), d = ballot(p); }
inline void match_any_sync_b32(u32& d, u32 a, u32 mask) { whole(mask), d = lanes_of_same(a); }
inline void bar_warp_sync(u32 mask) { whole(mask), ballot(false); }
inline void movmatrix_sync_aligned_m8n8_trans_b16(u32& d, u32 a) { d = transposed_matrix(a); }
template <typename List, bool kTransposed = false>
void ldmatrix_sync_aligned_m8n8_x4_shared_b16(const List& d, u32 address) {
  u32 words[4];
  load_matrices(words, address, kTransposed);
  load_list(d, words);
}
template <typename List>
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(const List& d, u32 address) {
  ldmatrix_sync_aligned_m8n8_x4_shared_b16<List, true>(d, address);
}
template <typename List, bool kTransposed = false>
void stmatrix_sync_aligned_m8n8_x4_shared_b16(u32 address, const List& a) {
  u32 words[4];
  store_list(words, a);
  store_matrices(address, words, kTransposed);
}
template <typename List>
void stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(u32 address, const List& a) {
  stmatrix_sync_aligned_m8n8_x4_shared_b16<List, true>(address, a);
}
template <typename D, typename A, typename B>
void warp_product(const D& d, const A& a, const B& b, Element element) {
  u32 sums[4], left[4], right[2];
  store_list(sums, d);
  store_list(left, a);
  store_list(right, b);
  multiply_warp(sums, left, right, element);
  load_list(d, sums);
}
template <typename D, typename A, typename B>
void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(const D& d, const A& a, const B& b,
                                                         const D&) {
  warp_product(d, a, b, Element::bf16);
}
template <typename D, typename A, typename B>
void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(const D& d, const A& a, const B& b,
                                                       const D&) {
  warp_product(d, a, b, Element::f16);
}
template <typename D, typename A, typename B>
void mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(const D& d, const A& a, const B& b,
                                                        const D&) {
  warp_product(d, a, b, Element::tf32);
}

// Warpgroups. D's registers are written where they are, when the products are done.
struct Accumulators {
  float* first;
};
template <typename... T>
Accumulators registers(float& first, T&... others) {
  const float* each = &first;
  if (!((&others == ++each) && ...)) fault("a product's registers are not one array");
  return {&first};
}
struct Fragment {
  u32 words[4];
};
inline Fragment registers(u32 a, u32 b, u32 c, u32 d) { return {{a, b, c, d}}; }
inline void wgmma_fence_sync_aligned() {}
inline void wgmma_commit_group_sync_aligned() { products_commit(); }
inline void wgmma_wait_group_sync_aligned(int groups) { products_wait(groups); }
template <int kColumns, Element kElement>
void group_product(Accumulators d, const Fragment& a, u64 b, bool adds, int, int,
                   int transposes_b) {
  multiply_group({.sums = d.first,
                  .columns = kColumns,
                  .element = kElement,
                  .adds = adds,
                  .a_in_registers = true,
                  .transposes_b = transposes_b != 0,
                  .a = {a.words[0], a.words[1], a.words[2], a.words[3]},
                  .b_descriptor = b});
}
template <int kColumns, Element kElement>
void group_product(Accumulators d, u64 a, u64 b, bool adds, int, int, int transposes_a,
                   int transposes_b) {
  multiply_group({.sums = d.first,
                  .columns = kColumns,
                  .element = kElement,
                  .adds = adds,
                  .transposes_a = transposes_a != 0,
                  .transposes_b = transposes_b != 0,
                  .a_descriptor = a,
                  .b_descriptor = b});
}
#define EMU_GROUP_PRODUCT(columns)                                                       \
  template <typename... T>                                                               \
  void wgmma_mma_async_sync_aligned_m64n##columns##k16_f32_bf16_bf16(const T&... each) { \
    group_product<columns, Element::bf16>(each...);                                      \
  }                                                                                      \
  template <typename... T>                                                               \
  void wgmma_mma_async_sync_aligned_m64n##columns##k16_f32_f16_f16(const T&... each) {   \
    group_product<columns, Element::f16>(each...);                                       \
  }
EMU_GROUP_PRODUCT(8)
EMU_GROUP_PRODUCT(16)
EMU_GROUP_PRODUCT(24)
EMU_GROUP_PRODUCT(32)
EMU_GROUP_PRODUCT(40)
EMU_GROUP_PRODUCT(48)
EMU_GROUP_PRODUCT(56)
EMU_GROUP_PRODUCT(64)
EMU_GROUP_PRODUCT(72)
EMU_GROUP_PRODUCT(80)
EMU_GROUP_PRODUCT(88)
EMU_GROUP_PRODUCT(96)
EMU_GROUP_PRODUCT(104)
EMU_GROUP_PRODUCT(112)
EMU_GROUP_PRODUCT(120)
EMU_GROUP_PRODUCT(128)
EMU_GROUP_PRODUCT(136)
EMU_GROUP_PRODUCT(144)
EMU_GROUP_PRODUCT(152)
EMU_GROUP_PRODUCT(160)
EMU_GROUP_PRODUCT(168)
EMU_GROUP_PRODUCT(176)
EMU_GROUP_PRODUCT(184)
EMU_GROUP_PRODUCT(192)
EMU_GROUP_PRODUCT(200)
EMU_GROUP_PRODUCT(208)
EMU_GROUP_PRODUCT(216)
EMU_GROUP_PRODUCT(224)
EMU_GROUP_PRODUCT(232)
EMU_GROUP_PRODUCT(240)
EMU_GROUP_PRODUCT(248)
EMU_GROUP_PRODUCT(256)
#undef EMU_GROUP_PRODUCT

// Kernels.
template <auto kKernel>
struct Bound;
template <typename... T, void (*kKernel)(T...)>
struct Bound<kKernel> : BoundKernel {
  explicit Bound(void** arguments) : values(read(arguments, std::index_sequence_for<T...>())) {}
  void run() const override { std::apply(kKernel, values); }
  template <std::size_t... kIndex>
  static std::tuple<T...> read(void** arguments, std::index_sequence<kIndex...>) {
    return {*static_cast<T*>(arguments[kIndex])...};
  }
  std::tuple<T...> values;
};
template <auto kKernel>
BoundKernel* bound(void** arguments) {
  return new Bound<kKernel>(arguments);
}
static const KernelEntry* last_kernel = nullptr;
inline KernelEntry::KernelEntry(const char* its_name, BoundKernel* (*its_bind)(void**))
    : name(its_name), bind(its_bind), next(last_kernel) {
  last_kernel = this;
}
extern "C" const KernelEntry* emu_kernels() { return last_kernel; }

}  // namespace emu

#define threadIdx (::emu::Index{::emu::thread_index()})
#define blockIdx (::emu::Index{::emu::block_index()})
#define gridDim (::emu::Index{::emu::block_count()})
inline void __syncthreads() { ::emu::sync_threads(false); }
inline int __syncthreads_or(int value) { return ::emu::sync_threads(value != 0); }
